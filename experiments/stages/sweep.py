"""Find the learning rates with pilots, where they are not declared, then run every cell of a sweep."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import polars as pl

from ..rates.record import Pilot
from ..rates.trials import Evaluation
from ..running import work
from ..running.cells import Cell
from ..running.design import Design
from ..running.opening import workers
from ..running.pool import Pool
from ..running.schedule import run_cells
from ..running.tracker import Tracker
from ..settings import Preset
from .search import Searched, base_score, chosen_lines, find, first_score, write_pilot
from .shared import OUT, log
from .training import collect, design_of


def run(preset: Preset, problem_set: str) -> None:
    """Run the pilots and the cells that are not finished, and join their tables."""
    design, problems, model = design_of(preset, problem_set)
    metric, reverse = preset.evaluation.metric, preset.resources.reverse
    base = base_score(problem_set, metric)
    tracker = Tracker(f"{preset.name}-{problem_set}-sweep")
    with workers(preset, model, design.origin.base) as pool:
        rates, searched = design.declared_rates(), None
        if rates is None:
            searched = _search(design, problems, pool, base)
            rates = searched.pilot.rates()
        cells = design.cells(rates)
        folders = run_cells(cells, problems, pool, tracker, title=f"sweep {problem_set}", reverse=reverse)
    out = OUT / "sweep" / problem_set
    tried = searched.trained if searched else ()
    homes = {cell.run_id: work.folder_of(cell) for cell in tried}
    collect(cells, folders | homes, out, pilot=tried, keep_policies=preset.resources.keep_policies)
    pilot = searched.pilot if searched else Pilot.of(rates, metric=metric, base=base or first_score(cells, metric))
    figures = write_pilot(pilot, out)
    log(preset, f"{problem_set}-rates", {"pilot": out / "pilot.json"}, figures=figures)


def _search(design: Design, problems: pl.DataFrame, pool: Pool, base: Evaluation | None) -> Searched:
    """Run the pilots, and print the rates that they chose."""
    preset, name = design.preset, design.origin.problem_set
    pilots = Tracker(f"{preset.name}-{name}-pilot")

    def train(cells: Sequence[Cell]) -> Mapping[str, Path]:
        # The sweep's rates are not known yet.
        return run_cells(
            cells, problems, pool, pilots, title=f"pilot {name}", reverse=preset.resources.reverse, supersede=False
        )

    searched = find(design, train, base)
    pilots.mean(searched.trained)
    for line in chosen_lines(searched.pilot):
        print(f"pilot {name}: {line}")
    return searched
