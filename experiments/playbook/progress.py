"""How far the panel is, what is missing, and what was spent: read from the folders, while it runs or not."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

from isocompute.budget import History

from .prepare import preset_of
from .study import Study, Unit

SPENT = Path("spent.jsonl")
"""CPU-seconds of each call that trained a cell, one line each, in a unit's folder."""


def plan(study: Study) -> Iterator[str]:
    """One line for each unit: its cells."""
    for unit in study.units():
        yield f"{unit.name}: {planned(study, unit)} cells and its ladder"


def planned(study: Study, unit: Unit) -> int:
    """Cells of a unit beside its ladder."""
    sizes = preset_of(unit).sweep_of(unit.problem_set).grid()
    cells = len(sizes) * (len(study.rate_factors) + len(study.branches.at))
    if unit.name in study.equal_batches.units:
        cells += len(study.equal_batches.problems_per_batch)
    if unit.name in study.further_seeds.units:
        cells += len(study.further_seeds.seeds) * len(sizes)
    return cells


def lines(study: Study, home: Path) -> Iterator[str]:
    """One line for each unit and one for all: cells finished, rollouts paid and lost, time of the processor."""
    done = wanted = whole = paid = lost = 0
    seconds = 0.0
    for unit in study.units():
        folder, cells = home / "units" / unit.name, planned(study, unit)
        ladder, finished = _finished(folder)
        totals = [History.read(path).fold.totals() for path in sorted(folder.glob("work/cells/*/ledger.bin"))]
        own, gone = sum(t.paid.rollouts for t in totals), sum(t.lost_training.rollouts for t in totals)
        took = sum(spent(folder).values())
        state = "finished" if finished == cells else "not begun" if not own else "under way"
        yield (
            f"{unit.name:12} {finished:3} of {cells:3} cells, ladder {ladder}, {state:9} {own:12,} rollouts paid "
            f"({gone:,} of training lost), {took / 3600:.2f} CPU-hours"
        )
        done, wanted, whole = done + finished, wanted + cells, whole + (finished == cells)
        paid, lost, seconds = paid + own, lost + gone, seconds + took
    yield (
        f"{'all':12} {done:3} of {wanted:3} cells, {whole} of {len(study.units())} units finished, {paid:,} rollouts "
        f"paid ({lost:,} of training lost), {seconds / 3600:.2f} CPU-hours"
    )


def spent(folder: Path) -> Mapping[str, float]:
    """CPU-seconds of each cell of a unit's folder, by run id."""
    found: dict[str, float] = {}
    path = folder / SPENT
    for line in path.read_text().splitlines() if path.exists() else ():
        each = json.loads(line)
        found[each["run_id"]] = found.get(each["run_id"], 0.0) + each["cpu_seconds"]
    return found


def _finished(folder: Path) -> tuple[int, int]:
    """Finished cells of the ladder, and the others."""
    path = folder / "results" / "cells.json"
    if not path.exists():
        return len(list(folder.glob("work/cells/*/done.json"))), 0
    cells = json.loads(path.read_text())["cells"]
    ladder = sum(cell["purpose"] == "pilot" for cell in cells)
    return ladder, len(cells) - ladder
