"""Atomic checkpoints: safetensors and JSON with checksums, written aside, flushed, renamed. Nothing is unpickled.

Tensors are written and read a part at a time: they are never in memory all together. Ranks that share a policy write
their own rows of each, beside the steps that follow. ``torch.distributed.checkpoint`` would do the same with metadata
that is pickled, or, in its safetensors, that do not say whether a rank's part is missing.
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
"""Metadata of a file of tensors: the row of the whole at which each begins of which it has a part."""
PART = 2**30
"""Most bytes of tensors that are held at a time; a single one may have more."""
WHOLE, INDEX = "model.safetensors", "model.safetensors.index.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A run after ``step`` steps.

    Attributes:
        tensors: Policy and optimizer, and the critic where there is one; read one at a time, while it is saved and
            while a learner takes it over. Where they have a method ``write``, as those of ranks do, ``write(folder)``
            copies them and returns a function that waits until they are written, for the checksums of their files by
            name; or it returns None, and they are read.
        progress: Plain values of the run: cumulative counts, the evaluations so far and the cursor in the problems.
        settings: Plain values that the run depends on, by their names; see ``training.run.settings_of``.
        pipe: Tensors of what was begun and not learnt from, in a file of their own.
    """

    step: int
    tensors: Mapping[str, torch.Tensor]
    values: dict[str, Any]
    progress: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    pipe: Mapping[str, torch.Tensor] = field(default_factory=dict)


class Checkpoints:
    """The checkpoints of one run, in one folder; the newest ones are kept.

    When they are saved changes no result: a run that continues takes the steps since the last one again. Where both
    intervals are given a checkpoint is saved when either is over; the loop saves another one where a run ends.

    Args:
        folder: The folder, made with the first checkpoint.
        every_evaluations: Evaluations between checkpoints, or None; ``every_steps`` says the same of steps.
        keep: How many of the newest are kept; with 1 there is none to continue from where that one is damaged later.
        keep_steps: Steps after which a checkpoint is saved, too, and kept for good, beside ``keep`` others: those from
            which a ``branch`` begins.
        may_change: Settings in which a run that continues may differ from its checkpoint, of those that change rounding
            only (``config.ROUNDING``), such as ``compute.micro_batch_tokens`` where an update ran out of memory. It is
            then the same run to rounding and no longer bit for bit, which its progress and its records say.
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
        """Hold the folder for one run, which ends with its process: two that save there would mix their checkpoints."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            handle = os.open(self.folder, os.O_RDONLY)
        except OSError as error:
            raise CheckpointError(f"{self.folder}: cannot hold checkpoints ({reason_of(error)})") from None
        # Windows, which lacks it, opens no folders.
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
                # Where the run has failed, that is what is said.
                saving, self._saving = self._saving, None
                if saving is not None and (failure := saving.exception()) is not None:
                    logger.warning("%s: the last checkpoint was not saved (%s)", self.folder, failure)
                # Also for forks, which have the handle.
                with suppress(OSError):
                    fcntl.flock(handle, fcntl.LOCK_UN)
        finally:
            os.close(handle)

    def due(self, *, step: int, evaluations: int | None) -> bool:
        """Return whether a checkpoint is due, of the evaluations so far; None where none was made after this step."""
        by_steps = self._every_steps is not None and step > 0 and step % self._every_steps == 0
        by_steps = by_steps or step in self._keep_steps
        if evaluations is None or self._every_evaluations is None:
            return by_steps
        # The first one is that of the base model, before the first step.
        return by_steps or (evaluations - 1) % self._every_evaluations == 0

    def save(self, checkpoint: Checkpoint) -> Path:
        """Write a checkpoint whole or not at all, and delete those that are not kept; returns its folder.

        What ranks write goes on when this returns, till the next one, ``settle`` or the end of ``held``.

        Raises:
            CheckpointError: It, or the one before, cannot be written; those before stay.
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
        # What is not copied by then must not be changed by the next update.
        first: list[Future[Any]] = [copied, self._saving]
        wait(first, return_when=FIRST_COMPLETED)
        if self._saving.done():
            self.settle()
        return self._folder_of(checkpoint.step)

    def settle(self) -> None:
        """Wait for the checkpoint that is being written, if there is one."""
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
            # Of the end of a shorter run, which this one goes on from before: it must not be taken for the newest.
            if _step_of(folder) > checkpoint.step and _is_drained(folder):
                remove_folder(folder)
        self._prune()
        return final

    def prune(self) -> None:
        """Delete those that are not kept, and what a kill has left of one that was being written or deleted."""
        self.settle()
        self._prune()

    def _prune(self) -> None:
        try:
            forever = {self._folder_of(step) for step in self._keep_steps}
            # One that another of its step has replaced is like any other.
            forever |= {_before(folder) for folder in forever if not folder.exists()}
            for old in [folder for folder in self._complete() if folder not in forever][: -self.keep]:
                remove_folder(old)
            for left in self.folder.glob(".step-*"):
                shutil.rmtree(left, ignore_errors=True)
        except OSError as error:
            raise CheckpointError(f"{self.folder}: an old checkpoint cannot be deleted ({error.strerror})") from None

    def newest(self) -> Checkpoint | None:
        """Read the newest checkpoint that is whole, or None when there is none; a damaged one is put aside."""
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
        """The step of the newest checkpoint, whole or damaged; None when there is none."""
        complete = self._complete()
        return _step_of(complete[-1]) if complete else None

    def read(self, step: int) -> Checkpoint:
        """Read the checkpoint of a step; one that is damaged stays where it is, and is an error, as none is."""
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
        """Those that were written whole, the newest last; one that another of its step has replaced, before it."""
        return sorted(self.folder.glob("step-*"), key=_age) if self.folder.is_dir() else []


def write_checksums(folder: Path, *, known: Mapping[str, str] | None = None) -> None:
    """Write down what the files of a checkpoint must be; ``known`` are checksums that their writers have taken."""
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
    """Write tensors into files of a checkpoint, as they come; returns the checksum of each file, by its name.

    ``begins`` has for each tensor that is a part of a whole the first of its rows there.
    """
    found = {}
    for number, part in enumerate(parts(tensors)):
        own = {name: row for name, row in (begins or {}).items() if name in part}
        path = folder / TENSORS.format(rank + number * ranks)
        save_file(part, path, metadata={ROWS: json.dumps(own)} if own else None)
        found[path.name] = _checksum(path)
    return found


def _read(folder: Path) -> Checkpoint:
    """Read a checkpoint that has its state and its tensors, all that were written and no others."""
    checksums = json.loads((folder / CHECKSUMS).read_text())
    tensors = sorted(path.name for path in folder.glob("*.safetensors"))
    # From the files that are there, so that those of another step beside them are noticed.
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
    """Whether a checkpoint is of the end of a run that has sampled ahead; an unreadable one is not."""
    with suppress(OSError, ValueError):
        return json.loads((folder / STATE).read_text()).get("progress", {}).get("drained") is not None
    return False


def _before(folder: Path) -> Path:
    """Where a checkpoint is while another of its step takes its place."""
    return folder.with_name(f"{folder.name}.before")


def _age(folder: Path) -> tuple[str, bool]:
    return folder.name.removesuffix(".before"), not folder.name.endswith(".before")


@contextmanager
def whole_folder(final: Path, *, what: str, error: type[LearnerError]) -> Iterator[Path]:
    """Fill a folder aside, and put it in its place when the block succeeds; ``what`` it is stands in the ``error``.

    Killed at any instant, what was there stays, for the moment between two renames with ``.before`` behind its name.
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
            # One that a kill has left beside it is older.
            remove_folder(before)
            final.rename(before)
        aside.rename(final)
        _flush(final.parent)
        remove_folder(before)
    except (OSError, SafetensorError) as problem:
        # safetensors reports a full disk as an error of its own.
        raise error(f"{final}: {what} cannot be written ({reason_of(problem)})") from None
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def remove_folder(folder: Path) -> None:
    """Delete a folder, if it is there; killed meanwhile, no half of it is left under its name."""
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
    """Take things as they come, several at a time: of ``most`` bytes together, though a single one may have more."""
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
    """The tensors of safetensors files by name, each read when it is asked for; one in several is put together."""

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
        """Some rows of a tensor that is in one file; no others are read."""
        ((_, file),) = self._files[name].items()
        found: torch.Tensor = file.get_slice(name)[rows]
        return found


def files_of(model: str) -> TensorFiles | None:
    """The tensors of a saved model as they are in its files; None where they are in other files than safetensors."""
    names = [WHOLE]
    # In this order, as transformers does where a folder has both.
    if file_of(model, WHOLE) is None and (index := file_of(model, INDEX)) is not None:
        names = sorted(set(json.loads(Path(index).read_text())["weight_map"].values()))
    paths = [file_of(model, name) for name in names]
    return None if None in paths else TensorFiles([Path(path) for path in paths if path is not None])


def tensors_hash(tensors: Mapping[str, torch.Tensor], *, threads: int = 1) -> str:
    """Hash of tensors' names, types, shapes and bytes: 16 digits of the SHA-256 over the SHA-256 of each, by name.

    All is read, as training may change any part of it, by several threads unless tensors are gathered from ranks.
    """

    def hashed(name: str) -> bytes:
        tensor = tensors[name].detach().cpu().contiguous()
        digest = hashlib.sha256(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy())
        return digest.digest()

    with ThreadPoolExecutor(threads) as pool:
        return hashlib.sha256(b"".join(pool.map(hashed, sorted(tensors)))).hexdigest()[:16]


def file_of(model: str, name: str) -> str | None:
    """A file of a saved model, or None where it has no such file."""
    found: str | None = cached_file(
        model,
        name,
        _raise_exceptions_for_gated_repo=False,
        _raise_exceptions_for_missing_entries=False,
        _raise_exceptions_for_connection_errors=False,
    )
    return found
