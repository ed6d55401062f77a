"""Find the learning rates with pilots, then run every cell of a sweep."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from ..rates.figure import rates_figure
from ..running import work
from ..running.cells import Cell
from ..running.opening import workers
from ..running.schedule import run_cells
from ..running.tracker import Tracker
from ..settings import Preset
from .search import base_score, chosen_lines, find
from .shared import OUT, log
from .training import collect, design_of


def run(preset: Preset, problem_set: str) -> None:
    """Run the pilots and the cells that are not finished, and join their tables."""
    design, problems, model = design_of(preset, problem_set)
    reverse = preset.resources.reverse
    tracker = Tracker(f"{preset.name}-{problem_set}-sweep")
    pilots = Tracker(f"{preset.name}-{problem_set}-pilot")
    with workers(preset, model, design.origin.base) as pool:

        def run_pilots(cells: Sequence[Cell]) -> Mapping[str, Path]:
            # The sweep's rates are not known yet.
            return run_cells(
                cells, problems, pool, pilots, title=f"pilot {problem_set}", reverse=reverse, supersede=False
            )

        searched = find(design, run_pilots, base_score(problem_set, preset.evaluation.metric))
        pilot, tried = searched.pilot, searched.trained
        homes = {cell.run_id: work.folder_of(cell) for cell in tried}
        pilots.mean(tried)
        for line in chosen_lines(pilot):
            print(f"pilot {problem_set}: {line}")
        cells = design.cells(pilot.rates())
        folders = run_cells(cells, problems, pool, tracker, title=f"sweep {problem_set}", reverse=reverse)
    out = OUT / "sweep" / problem_set
    collect(cells, folders | homes, out, pilot=tried, keep_policies=preset.resources.keep_policies)
    rates_figure(pilot, out / "rates")
    work.write_json(out / "pilot.json", pilot.document())
    figures = [out / "rates.svg", out / "rates.png"]
    log(preset, f"{problem_set}-rates", {"pilot": out / "pilot.json"}, figures=figures)
