"""How far the panel is, what is missing, and what was spent: read from the folders, while it runs or not."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from isocompute.budget import History

from .prepare import preset_of
from .study import Study, Unit
from .unit import spent


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitProgress:
    """How far a unit is.

    Attributes:
        ladder: Finished cells of the ladder that finds its rate.
        finished: Finished cells beside those.
        planned: Cells beside the ladder.
        paid: Rollouts paid for by every cell: trained, evaluated and lost.
        lost: Those of them that were generated for training and lost when the command was ended.
        cpu_seconds: Processor time of the process that trained them.
    """

    unit: Unit
    ladder: int
    finished: int
    planned: int
    paid: int
    lost: int
    cpu_seconds: float


def progress(study: Study, home: Path) -> Iterator[UnitProgress]:
    """How far every unit is."""
    for unit in study.units():
        folder = home / "units" / unit.name
        totals = [History.read(path).fold.totals() for path in sorted(folder.glob("work/cells/*/ledger.bin"))]
        ladder, finished = _finished(folder)
        yield UnitProgress(
            unit=unit,
            ladder=ladder,
            finished=finished,
            planned=planned(study, unit),
            paid=sum(each.paid.rollouts for each in totals),
            lost=sum(each.lost_training.rollouts for each in totals),
            cpu_seconds=sum(spent(folder).values()),
        )


def planned(study: Study, unit: Unit) -> int:
    """Cells of a unit beside its ladder."""
    sizes = preset_of(unit).sweep_of(unit.problem_set).grid()
    cells = len(sizes) * (len(study.rate_factors) + len(study.branches.at))
    if unit.name in study.equal_batches.units:
        cells += len(study.equal_batches.problems_per_batch)
    if unit.name in study.further_seeds.units:
        cells += len(study.further_seeds.seeds) * len(sizes)
    return cells


def _finished(folder: Path) -> tuple[int, int]:
    """Finished cells of the ladder, and the others."""
    path = folder / "results" / "cells.json"
    if not path.exists():
        return len(list(folder.glob("work/cells/*/done.json"))), 0
    cells = json.loads(path.read_text())["cells"]
    ladder = sum(cell["purpose"] == "pilot" for cell in cells)
    return ladder, len(cells) - ladder


def lines(study: Study, home: Path) -> Iterator[str]:
    """One line for each unit and one for all."""
    units = list(progress(study, home))
    for each in units:
        hours = each.cpu_seconds / 3600
        state = "finished" if each.finished == each.planned else "not begun" if not each.paid else "under way"
        yield (
            f"{each.unit.name:12} {each.finished:3} of {each.planned:3} cells, ladder {each.ladder}, {state:9} "
            f"{each.paid:12,} rollouts paid ({each.lost:,} of training lost), {hours:.2f} CPU-hours"
        )
    done, planned_cells = sum(each.finished for each in units), sum(each.planned for each in units)
    yield (
        f"{'all':12} {done:3} of {planned_cells:3} cells, "
        f"{sum(each.finished == each.planned for each in units)} of {len(units)} units finished, "
        f"{sum(each.paid for each in units):,} rollouts paid ({sum(each.lost for each in units):,} of training lost), "
        f"{sum(each.cpu_seconds for each in units) / 3600:.2f} CPU-hours"
    )
