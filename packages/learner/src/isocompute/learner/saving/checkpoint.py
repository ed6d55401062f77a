"""Atomic checkpoints: safetensors and JSON with checksums, written aside, flushed, renamed. Nothing is unpickled.

Tensors are written and read in parts, so they are never all in memory. Ranks that share a policy write their own rows
of each tensor, in parallel with the next steps. ``torch.distributed.checkpoint`` does the same, but pickles its
metadata; its safetensors format does not show whether a rank's part is missing.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from transformers.utils import cached_file

from ..config import ROUNDING
from ..contract.files import reason_of
from ..errors import CheckpointError, LearnerError

logger = logging.getLogger(__name__)
T = TypeVar("T")
CHECKSUMS = "checksums.json"
STATE, TENSORS, PIPE = "state.json", "tensors-{:05d}.safetensors", "pipe.safetensors"
ROWS = "rows"
"""Metadata of a tensor file: for each tensor that is a part of a whole, the row of the whole at which the part
begins."""
PART = 2**30
"""Most bytes of tensors held at a time; a single one may have more."""
WHOLE, INDEX = "model.safetensors", "model.safetensors.index.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """The state of a run after ``step`` steps.

    Attributes:
        tensors: Policy, optimizer and, if there is one, critic. They are read one at a time, both by ``save`` and by
            the learner that loads them. If they have a method ``write``, as those of ranks do, ``write(folder)`` copies
            them and returns a function that waits until they are written and returns the checksums of their files by
            name; or it returns None, and they are read.
        progress: Plain values of the run: cumulative counts, the evaluations so far and the cursor in the problems.
        settings: Plain values that the run depends on, by name; see ``training.run.settings_of``.
        pipe: Tensors of batches that were begun and not learnt from, in a separate file.
    """

    step: int
    tensors: Mapping[str, torch.Tensor]
    values: dict[str, Any]
    progress: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    pipe: Mapping[str, torch.Tensor] = field(default_factory=dict)


class Checkpoints:
    """The checkpoints of one run, in one folder; only the newest ones are kept.

    Their timing changes no result: a resumed run repeats the steps since the last one. If both intervals are given, a
    checkpoint is saved when either has passed; the loop saves another one at the end of a run.

    Args:
        folder: The folder, created with the first checkpoint.
        every_evaluations: Evaluations between checkpoints, or None; ``every_steps`` is the same for steps.
        keep: Number of the newest checkpoints to keep; with 1 there is no fallback if that one is damaged later.
        keep_steps: Steps after which a checkpoint is also saved, and kept for good in addition to ``keep`` others:
            those from which a ``branch`` begins.
        may_change: Settings in which a resumed run may differ from its checkpoint, among those that change rounding
            only (``config.ROUNDING``), such as ``compute.micro_batch_tokens`` after an update ran out of memory. The
            run is then the same only up to rounding and not bit for bit; its progress and its records say so.
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        every_evaluations: int | None = 1,
        every_steps: int | None = None,
        keep: int = 2,
        keep_steps: Collection[int] = (),
        may_change: Collection[str] = (),
    ) -> None:
        given = {"every_evaluations": every_evaluations, "every_steps": every_steps, "keep": keep}
        for name, value in given.items():
            if value is not None and value < 1:
                raise CheckpointError(f"{name} is {value}; it must be 1 or more")
        if any(step < 1 for step in keep_steps):
            raise CheckpointError(f"keep_steps is {sorted(keep_steps)}; steps are counted from 1")
        if every_evaluations is None and every_steps is None:
            raise CheckpointError("every_evaluations and every_steps are both None; one must say when to save")
        if more := sorted(set(may_change) - set(ROUNDING)):
            raise CheckpointError(
                f"may_change holds {', '.join(more)}; the settings that change rounding only are {', '.join(ROUNDING)}"
            )
        self.folder = Path(folder)
        self._every_evaluations, self._every_steps, self.keep = every_evaluations, every_steps, keep
        self._keep_steps, self.may_change = frozenset(keep_steps), frozenset(may_change)
        self._saving: Future[Path] | None = None

    @contextmanager
    def held(self) -> Iterator[None]:
        """Lock the folder for one run until its process ends: two runs that save there would mix their checkpoints."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            handle = os.open(self.folder, os.O_RDONLY)
        except OSError as error:
            raise CheckpointError(f"{self.folder}: cannot hold checkpoints ({reason_of(error)})") from None
        # Windows, which lacks fcntl, cannot open folders either.
        import fcntl

        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise CheckpointError(
                    f"{self.folder}: another run saves its checkpoints there: wait for it to end, or use another folder"
                ) from None
            except OSError as error:
                logger.warning("%s: cannot be locked (%s): only one run may save there", self.folder, error.strerror)
            try:
                yield
                self.settle()
            finally:
                # If the run has failed, report that error.
                saving, self._saving = self._saving, None
                if saving is not None and (failure := saving.exception()) is not None:
                    logger.warning("%s: the last checkpoint was not saved (%s)", self.folder, failure)
                # Also for forks, which share the handle.
                with suppress(OSError):
                    fcntl.flock(handle, fcntl.LOCK_UN)
        finally:
            os.close(handle)

    def due(self, *, step: int, evaluations: int | None) -> bool:
        """Return whether a checkpoint is due, given the evaluations so far (None: none was made after this step)."""
        by_steps = self._every_steps is not None and step > 0 and step % self._every_steps == 0
        by_steps = by_steps or step in self._keep_steps
        if evaluations is None or self._every_evaluations is None:
            return by_steps
        # The first evaluation is that of the base model, before the first step.
        return by_steps or (evaluations - 1) % self._every_evaluations == 0

    def save(self, checkpoint: Checkpoint) -> Path:
        """Write a checkpoint whole or not at all, and delete those that are not kept; return its folder.

        Ranks may continue to write after this returns, until the next ``save``, ``settle`` or the end of ``held``.

        Raises:
            CheckpointError: This checkpoint or the previous one cannot be written; earlier ones stay.
        """
        self.settle()
        tensors = checkpoint.tensors
        write = getattr(tensors, "write", None)
        if write is None:
            return self._save(checkpoint, lambda aside: write_tensors(aside, tensors.items()))
        copied: Future[None] = Future()

        def by_ranks(aside: Path) -> Mapping[str, str]:
            written = write(aside)
            if written is None:
                return write_tensors(aside, tensors.items())
            copied.set_result(None)
            found: Mapping[str, str] = written()
            return found

        pool = ThreadPoolExecutor(1)
        self._saving = pool.submit(self._save, checkpoint, by_ranks)
        pool.shutdown(wait=False)
        # Anything not copied by then must not be changed by the next update.
        first: list[Future[Any]] = [copied, self._saving]
        wait(first, return_when=FIRST_COMPLETED)
        if self._saving.done():
            self.settle()
        return self._folder_of(checkpoint.step)

    def settle(self) -> None:
        """Wait for the checkpoint that is being written, if any."""
        saving, self._saving = self._saving, None
        if saving is not None:
            saving.result()

    def _save(self, checkpoint: Checkpoint, write: Callable[[Path], Mapping[str, str]]) -> Path:
        final = self._folder_of(checkpoint.step)
        with whole_folder(final, what="the checkpoint", error=CheckpointError) as aside:
            checksums = write(aside)
            if checkpoint.pipe:
                save_file(dict(checkpoint.pipe), aside / PIPE)
            state = {name: getattr(checkpoint, name) for name in ("step", "values", "progress", "settings")}
            (aside / STATE).write_text(json.dumps(state))
            write_checksums(aside, known=checksums)
        for folder in self._complete():
            # A checkpoint of the end of a shorter run, before which this run continues, must not count as the newest.
            if _step_of(folder) > checkpoint.step and _is_drained(folder):
                remove_folder(folder)
        self._prune()
        return final

    def prune(self) -> None:
        """Delete checkpoints that are not kept, and leftovers of a write or delete that a kill interrupted."""
        self.settle()
        self._prune()

    def _prune(self) -> None:
        try:
            forever = {self._folder_of(step) for step in self._keep_steps}
            # One that another checkpoint of the same step has replaced is not special.
            forever |= {_before(folder) for folder in forever if not folder.exists()}
            for old in [folder for folder in self._complete() if folder not in forever][: -self.keep]:
                remove_folder(old)
            for left in self.folder.glob(".step-*"):
                shutil.rmtree(left, ignore_errors=True)
        except OSError as error:
            raise CheckpointError(f"{self.folder}: an old checkpoint cannot be deleted ({error.strerror})") from None

    def newest(self) -> Checkpoint | None:
        """Read the newest intact checkpoint, or return None if there is none; damaged ones are moved aside."""
        self.settle()
        damaged: dict[Path, str] = {}
        for folder in reversed(self._complete()):
            try:
                found = _read(folder)
            except Exception as error:
                damaged[folder] = f"{folder}: the checkpoint is damaged ({error})"
                continue
            for other, reason in damaged.items():
                remove_folder(aside := other.with_name(f"damaged-{other.name}"))
                other.rename(aside)
                logger.warning("%s and is now %s; %s is read instead", reason, aside.name, folder.name)
            return found
        if damaged:
            raise CheckpointError(
                f"{next(iter(damaged.values()))}; no other one is whole: delete {self.folder} to start the run again"
            )
        return None

    def newest_step(self) -> int | None:
        """The step of the newest checkpoint, intact or damaged; None if there is none."""
        complete = self._complete()
        return _step_of(complete[-1]) if complete else None

    def read(self, step: int) -> Checkpoint:
        """Read the checkpoint of a step. A damaged or missing one is an error; a damaged one stays in place."""
        self.settle()
        folder = self._folder_of(step)
        folder = folder if folder.exists() else _before(folder)
        if not folder.exists():
            there = ", ".join(each.name for each in self._complete()) or "none"
            raise CheckpointError(
                f"{self.folder}: there is no checkpoint of step {step} (of others: {there}); one that is needed later "
                "must be in keep_steps when the run gets there"
            )
        try:
            return _read(folder)
        except Exception as error:
            raise CheckpointError(f"{folder}: the checkpoint is damaged ({error})") from None

    def _folder_of(self, step: int) -> Path:
        return self.folder / f"step-{step:09d}"

    def _complete(self) -> list[Path]:
        """The complete checkpoints, newest last; one that another of its step has replaced comes before it."""
        return sorted(self.folder.glob("step-*"), key=_age) if self.folder.is_dir() else []


def write_checksums(folder: Path, *, known: Mapping[str, str] | None = None) -> None:
    """Record the checksums of a checkpoint's files; ``known`` are those that the writers have computed."""
    known, there = known or {}, [STATE, *sorted(path.name for path in folder.glob("*.safetensors"))]
    if missing := sorted(known.keys() - set(there)):
        raise CheckpointError(f"{folder}: {missing[0]}, which a rank has written, is not there")
    checksums = {name: known[name] if name in known else _checksum(folder / name) for name in there}
    (folder / CHECKSUMS).write_text(json.dumps(checksums))


def write_tensors(
    folder: Path,
    tensors: Iterable[tuple[str, torch.Tensor]],
    *,
    begins: Mapping[str, int] | None = None,
    rank: int = 0,
    ranks: int = 1,
) -> dict[str, str]:
    """Write tensors into files of a checkpoint as they come; return each file's checksum by name.

    For each tensor that is a part of a whole, ``begins`` has the first of its rows in the whole.
    """
    found = {}
    for number, part in enumerate(parts(tensors)):
        own = {name: row for name, row in (begins or {}).items() if name in part}
        path = folder / TENSORS.format(rank + number * ranks)
        save_file(part, path, metadata={ROWS: json.dumps(own)} if own else None)
        found[path.name] = _checksum(path)
    return found


def _read(folder: Path) -> Checkpoint:
    """Read a checkpoint with its state and exactly the tensors that were written."""
    checksums = json.loads((folder / CHECKSUMS).read_text())
    tensors = sorted(path.name for path in folder.glob("*.safetensors"))
    # Include the existing files, so that files of another step are noticed.
    for name in sorted({STATE, TENSORS.format(0), *tensors, *checksums}):
        if name not in checksums:
            raise CheckpointError(f"{name} is no file of this checkpoint" if name in tensors else f"it has no {name}")
        if _checksum(folder / name) != checksums[name]:
            raise CheckpointError(f"{name} is not what was written")
    state = json.loads((folder / STATE).read_text())
    if state["step"] != _step_of(folder):
        raise CheckpointError(f"{STATE} is that of step {state['step']}")
    pipe = TensorFiles([folder / PIPE]) if PIPE in tensors else {}
    return Checkpoint(**state, tensors=TensorFiles([folder / name for name in tensors if name != PIPE]), pipe=pipe)


def _step_of(folder: Path) -> int:
    return int(folder.name.removesuffix(".before").removeprefix("step-"))


def _checksum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _is_drained(folder: Path) -> bool:
    """Whether a checkpoint is of the end of a run that samples ahead; an unreadable one is not."""
    with suppress(OSError, ValueError):
        return json.loads((folder / STATE).read_text()).get("progress", {}).get("drained") is not None
    return False


def _before(folder: Path) -> Path:
    """Path of a checkpoint while another one of its step replaces it."""
    return folder.with_name(f"{folder.name}.before")


def _age(folder: Path) -> tuple[str, bool]:
    return folder.name.removesuffix(".before"), not folder.name.endswith(".before")


@contextmanager
def whole_folder(final: Path, *, what: str, error: type[LearnerError]) -> Iterator[Path]:
    """Fill a temporary folder, and move it into place if the block succeeds; the ``error`` names ``what`` it is.

    If killed at any instant, the old folder remains; between two renames it has ``.before`` appended to its name.
    """
    aside = final.with_name(f".{final.name}.writing")
    try:
        if final.exists() and not final.is_dir():
            raise error(f"{final}: {what} cannot be written (a file is there)")
        final.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir()
        yield aside
        for path in (*aside.rglob("*"), aside):
            _flush(path)
        before = final.with_name(f"{final.name}.before")
        if final.exists():
            # A leftover of a kill is older.
            remove_folder(before)
            final.rename(before)
        aside.rename(final)
        _flush(final.parent)
        remove_folder(before)
    except (OSError, SafetensorError) as problem:
        # safetensors reports a full disk with its own error type.
        raise error(f"{final}: {what} cannot be written ({reason_of(problem)})") from None
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def remove_folder(folder: Path) -> None:
    """Delete a folder if it exists; a kill leaves no half of it under its name."""
    if not folder.exists():
        return
    hidden = folder.with_name(f".{folder.name}.deleting")
    shutil.rmtree(hidden, ignore_errors=True)
    folder.rename(hidden)
    shutil.rmtree(hidden, ignore_errors=True)


def _flush(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def parts(
    things: Iterable[tuple[str, T]], *, size: Callable[[Any], int] = attrgetter("nbytes"), most: int = PART
) -> Iterator[dict[str, T]]:
    """Group things, in order, into parts of at most ``most`` bytes; a single one may be larger."""
    part: dict[str, T] = {}
    held = 0
    for name, thing in things:
        if part and held + size(thing) > most:
            yield part
            part, held = {}, 0
        part[name], held = thing, held + size(thing)
    if part:
        yield part


class TensorFiles(Mapping[str, torch.Tensor]):
    """The tensors of safetensors files by name, read on access; a tensor in several files is joined."""

    def __init__(self, paths: Collection[Path]) -> None:
        self.paths = list(paths)
        # For each tensor its files, by the row of the whole at which they begin.
        self._files: dict[str, dict[int, Any]] = {}
        for path in paths:
            file: Any = safe_open(path, framework="pt")
            begins = json.loads((file.metadata() or {}).get(ROWS, "{}"))
            for name in file.keys():  # noqa: SIM118
                self._files.setdefault(name, {})[begins.get(name, 0)] = file

    def __getitem__(self, name: str) -> torch.Tensor:
        found = [file.get_tensor(name) for _, file in sorted(self._files[name].items())]
        return found[0] if len(found) == 1 else torch.cat(found)

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)

    def rows(self, name: str, rows: slice) -> torch.Tensor:
        """Read only some rows of a tensor that is in one file."""
        ((_, file),) = self._files[name].items()
        found: torch.Tensor = file.get_slice(name)[rows]
        return found


def files_of(model: str) -> TensorFiles | None:
    """The tensors of a saved model as stored in its files; None if they are not in safetensors files."""
    names = [WHOLE]
    # In this order, like transformers if a folder has both.
    if file_of(model, WHOLE) is None and (index := file_of(model, INDEX)) is not None:
        names = sorted(set(json.loads(Path(index).read_text())["weight_map"].values()))
    paths = [file_of(model, name) for name in names]
    return None if None in paths else TensorFiles([Path(path) for path in paths if path is not None])


def tensors_hash(tensors: Mapping[str, torch.Tensor], *, threads: int = 1) -> str:
    """Hash tensors' names, types, shapes and bytes: 16 digits of the SHA-256 over the SHA-256 of each, by name.

    It reads everything, since training may change any part. Several threads read, unless tensors are gathered from
    ranks.
    """

    def hashed(name: str) -> bytes:
        tensor = tensors[name].detach().cpu().contiguous()
        digest = hashlib.sha256(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy())
        return digest.digest()

    with ThreadPoolExecutor(threads) as pool:
        return hashlib.sha256(b"".join(pool.map(hashed, sorted(tensors)))).hexdigest()[:16]


def file_of(model: str, name: str) -> str | None:
    """A file of a saved model, or None if the model has no such file."""
    found: str | None = cached_file(
        model,
        name,
        _raise_exceptions_for_gated_repo=False,
        _raise_exceptions_for_missing_entries=False,
        _raise_exceptions_for_connection_errors=False,
    )
    return found
