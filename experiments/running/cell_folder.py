"""The files of cells: one folder per cell, named by its run id, its records, its results, and base models.

A running cell appends records to an SQLite file, of which the driver reads what is new. Checkpoints and policies of
finished cells are kept under a disk limit. The evaluation before the first update, the baseline, is made and charged
once for all cells of one seed.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from hashlib import file_digest, sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl
from isocompute.budget import TRAINING_COHORTS, Counts, counts_by_cohort
from isocompute.learner.records.steps import EvaluationRecord, Record, from_plain, to_plain
from isocompute.rollout import EvaluationResult
from isocompute.rollout.contract import tables
from isocompute.rollout.contract.files import write_text
from isocompute.rollout.scoring.code import digest
from isocompute.rollout.store import Store

from ..errors import ExperimentError
from .cells import Cell

if TYPE_CHECKING:
    from ..settings import Preset

WORK = Path("work")
LEDGER, SAID, CHECKPOINTS = "run.ledger", "output.log", "checkpoints"
"""In the folder of a cell: its ledger, what its command printed, and its checkpoints."""
BESIDE_VLLM = "vllm.json"
"""In the folder of a first evaluation: how the base model's log-probabilities agree with vLLM's, where compared."""
OUT = Path("outputs")
"""Folder of the outputs that DVC keeps."""
PREPARED = OUT / "prepared"
"""Below which every base model has a folder with its problem sets."""
OF = PREPARED / "of.json"
"""For which preset these are."""
ONLY = "base"
"""Name of a base model that is given alone, and of the folder that a model is in."""
LARGE = 2**24
"""Bytes of a file from which on its hash is remembered."""


def folder_of(cell: Cell) -> Path:
    """The folder of a cell."""
    return WORK / "cells" / cell.run_id


def baseline_of(cell: Cell) -> Path:
    """The folder of the first evaluation that a cell shares."""
    return WORK / "starts" / cell.baseline_id


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """The contents of a finished cell's ``done.json``.

    Attributes:
        rollouts: The largest budget it was trained to.
        diverged_at: The step whose gradient was not finite, twice; None where there is none.
    """

    rollouts: int
    step: int
    diverged_at: int | None


def done(folder: Path) -> Done | None:
    """The contents of ``done.json``, or None if the cell has not finished at any budget."""
    path = folder / "done.json"
    return Done(**json.loads(path.read_text())) if path.exists() else None


def set_done(folder: Path, value: Done) -> None:
    """Record that a cell is finished to a budget."""
    write_json(folder / "done.json", asdict(value))


def finished(cell: Cell, folder: Path) -> bool:
    """Return whether a cell is finished to its budget; one that diverged is."""
    found = done(folder)
    return found is not None and (found.rollouts >= cell.rollouts or found.diverged_at is not None)


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write a document whole or not at all."""
    write_text(path, json.dumps(value, sort_keys=True, indent=1) + "\n")


def check_prompts(folder: Path, digest: str) -> None:
    """Record the prompts that a cell is begun with, or compare them with those that it is continued with."""
    path = folder / "prompts.json"
    if not path.exists():
        write_json(path, {"digest": digest})
    elif json.loads(path.read_text())["digest"] != digest:
        raise ExperimentError(
            f"{folder}: the prompts differ from those that it began with, since its tokenizer's chat template or a "
            "library renders them otherwise; restore these, or delete the folder to start the cell again"
        )


def newest_checkpoint(folder: Path) -> str:
    """Name of the checkpoint that a cell would be continued from; empty where there is none."""
    return max((path.name for path in (folder / CHECKPOINTS).glob("step-*")), default="")


def request_stop(folder: Path) -> None:
    """Ask whoever trains a cell, on whatever machine, to save a checkpoint after its step and end."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "stop").touch()


def stop_requested(folder: Path) -> bool:
    """Return whether a cell was asked to stop."""
    return (folder / "stop").exists()


def clear_stop(folder: Path) -> None:
    """Let a cell be trained that was asked to stop before."""
    (folder / "stop").unlink(missing_ok=True)


def keeps_policy(cell: Cell, which: str) -> bool:
    """Return whether the trained policy of a cell is kept; see ``ResourcesConfig.keep_policies``."""
    return which == "all" or (which == "last" and cell.purpose == "prescribe")


def policy_of(folder: Path) -> Path:
    """The Hugging Face folder of a cell's trained policy."""
    return folder / "policy"


def has_policy(folder: Path) -> bool:
    """Return whether a finished cell's policy was saved at its end; one of a shorter run does not count."""
    found, mark = done(folder), folder / "policy.json"
    if found is None or not mark.exists() or not policy_of(folder).is_dir():
        return False
    return bool(json.loads(mark.read_text())["step"] == found.step)


def lacks_policy(cell: Cell, folder: Path, which: str) -> bool:
    """Return whether a finished cell's policy must still be saved; one that diverged has none."""
    found = done(folder)
    if found is None or found.diverged_at is not None or not keeps_policy(cell, which):
        return False
    return not has_policy(folder) and bool(newest_checkpoint(folder))


def set_policy(folder: Path, step: int) -> None:
    """Record that the policy of a cell was saved whole."""
    write_json(folder / "policy.json", {"step": step})


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Results of a cell within its budget, whatever came later: steps, divergence, and tables, read when asked for."""

    folder: Path
    step: int
    diverged: bool

    def read(self, name: str) -> pl.DataFrame:
        """Its rows of a table, checked."""
        return tables.read(self.folder / f"{name}.parquet", name).filter(pl.col("step") <= self.step)


def outcome(cell: Cell) -> Outcome:
    """Return the results of a finished cell, cut off at its budget as the meter would have stopped it."""
    folder = folder_of(cell)
    step = last_step(tables.read(folder / "ledger.parquet", "ledger"), cell)
    found = done(folder)
    diverged_at = found.diverged_at if found else None
    return Outcome(folder=folder, step=step, diverged=diverged_at is not None and diverged_at <= step)


def joined(outcomes: Sequence[Outcome], name: str) -> pl.DataFrame:
    """The rows of a table of many cells, read together; where a file cannot be read, it is named."""
    try:
        scans = [
            pl.scan_parquet(each.folder / f"{name}.parquet").filter(pl.col("step") <= each.step) for each in outcomes
        ]
        frame = pl.concat(scans, how="diagonal_relaxed").collect()
    except (pl.exceptions.PolarsError, OSError):
        for each in outcomes:
            each.read(name)
        raise
    return tables.check(frame, name, where=f"the {name} tables of {len(outcomes)} cells")


def last_step(ledger: pl.DataFrame, cell: Cell) -> int:
    """The last step that a budget admits: the rollouts used before it and B together do not exceed it."""
    used = (
        ledger.filter(pl.col("cohort").is_in(TRAINING_COHORTS))
        .group_by("step")
        .agg(pl.col("rollouts").sum())
        .sort("step")
        .with_columns(before=pl.col("rollouts").cum_sum() - pl.col("rollouts"))
    )
    admitted = used.filter(pl.col("before") + cell.run.batch_rollouts <= cell.rollouts)
    return int(admitted["step"][-1]) if len(admitted) else 0


def prune(gigabytes: float, *, last: Collection[str] = (), keep: Collection[str] = ()) -> list[str]:
    """Delete checkpoints, then policies, of finished cells, the oldest first, until all that is kept fits a disk limit.

    Args:
        gigabytes: The limit, for the checkpoints and policies of all cells, unfinished ones too (10⁹ bytes each).
        last: Run ids whose checkpoints go after those of all others, and whose policies stay.
        keep: Run ids that are left alone, because they are in use.

    Returns:
        What was deleted, as ``RUN_ID/checkpoints`` or ``RUN_ID/policy``; a cell without a checkpoint is trained again
        when it is extended.
    """
    folders = [folder for folder in (WORK / "cells").glob("*") if folder.is_dir()]
    sizes = {folder / part: _size(folder / part) for folder in folders for part in (CHECKPOINTS, "policy")}
    ended = [(mark.stat().st_mtime_ns, mark.parent) for mark in (WORK / "cells").glob("*/done.json")]
    free = [folder for _, folder in sorted(ended) if folder.name not in keep]
    others, own = [f for f in free if f.name not in last], [f for f in free if f.name in last]
    order = [*(f / CHECKPOINTS for f in (*others, *own)), *(f / "policy" for f in others)]
    total, gone = sum(sizes.values()), []
    for place in order:
        if total <= gigabytes * 1e9:
            break
        if size := sizes.get(place, 0):
            shutil.rmtree(place)
            total -= size
            gone.append(f"{place.parent.name}/{place.name}")
    return gone


def _size(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        # A running cell replaces its checkpoints meanwhile.
        with suppress(FileNotFoundError):
            total += path.stat().st_size if path.is_file() else 0
    return total


def has_baseline(folder: Path) -> bool:
    """Return whether a first evaluation is there."""
    return (folder / "evaluation.json").exists()


def write_baseline(folder: Path, found: EvaluationResult) -> None:
    """Keep a first evaluation; the document goes last, so that it is there whole or not at all."""
    rates = found.pass_rates.with_columns(run_id=pl.lit(folder.name), step=pl.lit(0, dtype=pl.Int64))
    tables.write(rates, "pass_rates", folder / "pass_rates.parquet")
    tables.write(ledger(folder.name, cost(found.rollouts)), "ledger", folder / "ledger.parquet")
    plain = {"metrics": dict(found.metrics), "questions": found.questions, "samples": found.samples}
    write_json(folder / "evaluation.json", plain)


def read_baseline(folder: Path) -> EvaluationResult:
    """Read a first evaluation, without its responses."""
    plain = json.loads((folder / "evaluation.json").read_text())
    rates = tables.read(folder / "pass_rates.parquet", "pass_rates").select("problem_id", "successes", "samples")
    return EvaluationResult(**plain, pass_rates=rates, rollouts=pl.DataFrame())


def beside_vllm(folder: Path) -> dict[str, float]:
    """How a base model's log-probabilities agree with vLLM's (nats); empty where they were not compared."""
    path = folder / BESIDE_VLLM
    return dict(json.loads(path.read_text())) if path.exists() else {}


def ledger(run_id: str, spent: Mapping[str, int]) -> pl.DataFrame:
    """One evaluation outside of any run as a ``ledger`` table of its own."""
    row = {"run_id": run_id, "step": 0, "cohort": "eval", **spent}
    return tables.check(pl.DataFrame([row]), "ledger", where=f"run {run_id}")


def cost(rollouts: pl.DataFrame) -> dict[str, int]:
    """Count what a ``rollouts`` table cost: ``rollouts``, ``prompt_tokens``, ``response_tokens``."""
    counts = counts_by_cohort(rollouts.with_columns(cohort=pl.lit("eval")))
    return asdict(counts.get("eval", Counts()))


class Spool:
    """The records of one cell, in a file of its own beside its ledger, whose writer may be another program."""

    SCHEMA = """CREATE TABLE IF NOT EXISTS records (
        id INTEGER PRIMARY KEY AUTOINCREMENT, rollouts INTEGER, time INTEGER, record TEXT
    )"""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "run.sqlite"

    def write(self, record: Record) -> None:
        """Append one record."""
        values = (record.rollouts, time.time_ns() // 10**6, json.dumps(to_plain(record)))
        self._run("INSERT INTO records (rollouts, time, record) VALUES (?, ?, ?)", *values)

    def rewind(self, rollouts: int) -> None:
        """Drop what a killed attempt wrote beyond the checkpoint at ``rollouts``."""
        self._run("DELETE FROM records WHERE rollouts > ?", rollouts)

    def records(self) -> list[Record]:
        """Every record, in the order of writing."""
        return [spooled.record for spooled in self.since()]

    def since(self, last: int = 0) -> list[Spooled]:
        """The records that were written after the one of this id."""
        if not self.path.exists():
            return []
        rows = self._run("SELECT id, time, record FROM records WHERE id > ? ORDER BY id", last)
        return [Spooled(id=id, time=time, record=from_plain(json.loads(text))) for id, time, text in rows]

    def _run(self, statement: str, *values: Any) -> list[Any]:
        with Store(self.path, self.SCHEMA) as store:
            return store.run(statement, *values)


@dataclass(frozen=True, slots=True, kw_only=True)
class Spooled:
    """A record, its number in the order of writing, and when it was written, in ms since 1970: for charts alone."""

    id: int
    record: Record
    time: int

    @property
    def cursor(self) -> tuple[int, bool]:
        """Where it is in the run: a step and the evaluation after it share their rollouts."""
        return self.record.rollouts, isinstance(self.record, EvaluationRecord)


def local_path(model: str) -> str:
    """Local path of a model; ``name@revision`` is downloaded from the hub first."""
    name, at, revision = model.rpartition("@")
    if Path(model).is_dir():
        return model
    from huggingface_hub import snapshot_download

    return str(snapshot_download(name, revision=revision) if at else snapshot_download(model))


def describe(model: str) -> dict[str, Any]:
    """Describe a model before it is loaded: ``model_type``, ``vocabulary`` (tokens), ``content``."""
    from transformers import AutoConfig, AutoTokenizer

    try:
        place = local_path(model)
        return {
            "model_type": AutoConfig.from_pretrained(place).model_type,
            "vocabulary": len(AutoTokenizer.from_pretrained(place)),
            "content": content(place),
        }
    except Exception as error:
        reason = str(error).strip().splitlines()[0]
        raise ExperimentError(f"the base model {model} cannot be loaded ({reason})") from None


def content(place: str | Path) -> str:
    """Hash of what a folder holds; of a snapshot of the hub its commit, which names its content already."""
    folder = Path(place)
    if folder.parent.name == "snapshots":
        return folder.name
    return content_hash(folder)


def content_hash(path: Path) -> str:
    """Hash of a file, or of a folder's file names and contents.

    Hashes of large files are remembered by name, size and time, since a model of 7B takes half a minute.
    """
    remembered = WORK / "hashes.json"
    try:
        known: dict[str, str] = json.loads(remembered.read_text())
    except (OSError, ValueError):
        known = {}
    digest, before = sha256(), len(known)
    files = sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]
    for file in files:
        name = str(file.relative_to(path)) if path.is_dir() else file.name
        digest.update(name.encode() + b"\0" + bytes.fromhex(_hash_of(file, known)))
    if len(known) > before:
        write_json(remembered, known)
    return digest.hexdigest()[:16]


def _hash_of(file: Path, known: dict[str, str]) -> str:
    """Hash of a file's content; of a large one it is among those that are known, or comes to them."""
    status = file.stat()
    key = f"{file.resolve()} {status.st_size} {status.st_mtime_ns}"
    if key in known:
        return known[key]
    with file.open("rb") as stream:
        found = file_digest(stream, "sha256").hexdigest()
    if status.st_size >= LARGE:
        known[key] = found
    return found


def model_of(preset: Preset, name: str = ONLY) -> tuple[str, str]:
    """Return the folder or name of a base model, and the hash of its content, as ``prepare`` has recorded them."""
    folder, named = PREPARED / name / ONLY, preset.named_base
    if named is None:
        if not (folder / "config.json").exists():
            raise ExperimentError(f"{folder}: there is no base model; run the stage `prepare` first")
        return str(folder.resolve()), content_hash(folder)
    path = folder / "model.json"
    if not path.exists():
        raise ExperimentError(f"{path}: there is no base model; run the stage `prepare` first")
    recorded = json.loads(path.read_text())
    if recorded["model"] != named.model or recorded["revision"] != named.revision:
        raise ExperimentError(
            f"{path} records the model {recorded['model']}, and the preset names {named.name}: run `prepare` again"
        )
    # A name on the hub with its commit cannot change; a folder can.
    if Path(named.model).is_dir() and content(named.name) != recorded["content"]:
        raise ExperimentError(
            f"the base model {named.model} has changed since the stage `prepare` recorded it: "
            "`dvc repro` records what it is now"
        )
    return named.name, str(recorded["content"])


def base_score(base_model: str, problem_set: str) -> dict[str, Any]:
    """A base model's score on the validation problems of a set, as ``prepare`` writes it into ``base.json``."""
    return dict(json.loads((PREPARED / base_model / "base.json").read_text())[problem_set]["validation"])


def settings_of(preset: Preset, *more: str) -> dict[str, str]:
    """A preset's name, and a hash of its settings that outputs follow from: of base model and problems, and more."""
    names = {"base", "difficulty", "problems", "prompting", "sampling", "scoring", *more}
    return {"preset": preset.name, "settings": digest(preset.model_dump(mode="json", include=names))}


def check_made_for(path: Path, wanted: Mapping[str, str], stage: str) -> None:
    """Refuse outputs of another preset, or of other settings; those that do not say whose they are pass.

    Args:
        path: A JSON document whose ``of`` is a ``settings_of``.
        stage: What makes them anew.
    """
    found = json.loads(path.read_text()).get("of") if path.exists() else None
    if found is not None and found != wanted:
        whose = f"of preset {found['preset']}" if found["preset"] != wanted["preset"] else "of other settings"
        raise ExperimentError(f"{path.parent} is {whose}: run `{stage} --preset {wanted['preset']}` first")
