"""What is kept of cells: one folder per cell, named by its run id, and checkpoints under a disk limit."""

from __future__ import annotations

import json
import shutil
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import polars as pl
from isocompute.budget import TRAINING_COHORTS
from isocompute.rollout.contract import tables
from isocompute.rollout.contract.files import write_text

from ..errors import ExperimentError
from .cells import Cell

WORK = Path("work")


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


def folder_of(cell: Cell) -> Path:
    """The folder of a cell."""
    return WORK / "cells" / cell.run_id


def start_of(cell: Cell) -> Path:
    """The folder of the first evaluation that a cell shares."""
    return WORK / "starts" / cell.start_id


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write a document whole or not at all."""
    write_text(path, json.dumps(value, sort_keys=True, indent=1) + "\n")


def done(folder: Path) -> Done | None:
    """The contents of ``done.json``, or None if the cell has not finished at any budget."""
    path = folder / "done.json"
    return Done(**json.loads(path.read_text())) if path.exists() else None


def set_done(folder: Path, value: Done) -> None:
    """Record that a cell is finished to a budget."""
    write_json(folder / "done.json", asdict(value))


def hold_prompts(folder: Path, digest: str) -> None:
    """Record the prompts that a cell is begun with, or compare them with those that it is continued with."""
    path = folder / "prompts.json"
    if not path.exists():
        write_json(path, {"digest": digest})
    elif json.loads(path.read_text())["digest"] != digest:
        raise ExperimentError(
            f"{folder}: the prompts differ from those that it began with, since its tokenizer's chat template or a "
            "library renders them otherwise; restore these, or delete the folder to start the cell again"
        )


def finished(cell: Cell, folder: Path) -> bool:
    """Whether a cell is finished to its budget; one that diverged is."""
    found = done(folder)
    return found is not None and (found.rollouts >= cell.rollouts or found.diverged_at is not None)


def newest_checkpoint(folder: Path) -> str:
    """Name of the checkpoint that a cell would be continued from; empty where there is none."""
    return max((path.name for path in (folder / "checkpoints").glob("step-*")), default="")


def ask_to_stop(folder: Path) -> None:
    """Ask whoever trains a cell, on whatever machine, to save a checkpoint after its step and end."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "stop").touch()


def asked_to_stop(folder: Path) -> bool:
    """Whether a cell was asked to stop."""
    return (folder / "stop").exists()


def forget_stop(folder: Path) -> None:
    """Let a cell be trained that was asked to stop before."""
    (folder / "stop").unlink(missing_ok=True)


def keeps_policy(cell: Cell, which: str) -> bool:
    """Whether the trained policy of a cell is kept.

    Args:
        which: ``none``, ``last`` or ``all``; see ``ResourcesConfig.keep_policies``.
    """
    return which == "all" or (which == "last" and cell.purpose == "prescribe")


def policy_of(folder: Path) -> Path:
    """The Hugging Face folder of a cell's trained policy."""
    return folder / "policy"


def has_policy(folder: Path) -> bool:
    """Whether the policy of a finished cell is there, as it was at its end; one of a shorter run does not count."""
    found, mark = done(folder), folder / "policy.json"
    if found is None or not mark.exists() or not policy_of(folder).is_dir():
        return False
    return bool(json.loads(mark.read_text())["step"] == found.step)


def lacks_policy(cell: Cell, folder: Path, which: str) -> bool:
    """Whether the policy of a finished cell is kept, not there, and can be saved; one that diverged has none."""
    found = done(folder)
    if found is None or found.diverged_at is not None or not keeps_policy(cell, which):
        return False
    return not has_policy(folder) and bool(newest_checkpoint(folder))


def set_policy(folder: Path, step: int) -> None:
    """Record that the policy of a cell was saved whole."""
    write_json(folder / "policy.json", {"step": step})


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a cell found within its budget, whatever came later: steps, divergence, and tables, read when asked for."""

    folder: Path
    step: int
    diverged: bool

    def read(self, name: str) -> pl.DataFrame:
        """Its rows of a table, checked."""
        return tables.read(self.folder / f"{name}.parquet", name).filter(pl.col("step") <= self.step)


def outcome(cell: Cell) -> Outcome:
    """What a finished cell found, cut off at its budget as the meter would have stopped it."""
    folder = folder_of(cell)
    step = last_step(tables.read(folder / "ledger.parquet", "ledger"), cell)
    found = done(folder)
    diverged_at = found.diverged_at if found else None
    return Outcome(folder=folder, step=step, diverged=diverged_at is not None and diverged_at <= step)


def joined(outcomes: Sequence[Outcome], name: str) -> pl.DataFrame:
    """The rows of a table of many cells, read together.

    Raises:
        TableError: A file cannot be read, which is named, or the rows break the schema of the table.
    """
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
    admitted = used.filter(pl.col("before") + cell.batch_rollouts <= cell.rollouts)
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
    sizes = {folder / part: _size(folder / part) for folder in folders for part in ("checkpoints", "policy")}
    ended = [(mark.stat().st_mtime_ns, mark.parent) for mark in (WORK / "cells").glob("*/done.json")]
    free = [folder for _, folder in sorted(ended) if folder.name not in keep]
    others, own = [f for f in free if f.name not in last], [f for f in free if f.name in last]
    order = [*(f / "checkpoints" for f in (*others, *own)), *(f / "policy" for f in others)]
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
