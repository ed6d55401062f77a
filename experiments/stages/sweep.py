"""Find the learning rates with pilots, where they are not declared, then run every cell of a sweep."""

from __future__ import annotations

from collections.abc import Sequence

from ..rates.search import Pilot
from ..running.cells import Cell
from ..running.opening import training_workers
from ..running.pool import Pool
from ..running.schedule import Run
from ..running.tracker import Tracker
from ..settings import Preset
from .search import base_score, chosen_lines, find, write_pilot
from .shared import OUT, log
from .training import Setup, collect, setup_of


def run(preset: Preset, problem_set: str) -> None:
    """Run the pilots and the cells that are not finished, and join their tables."""
    setup = setup_of(preset, problem_set)
    tracker = Tracker(f"{preset.name}-{problem_set}-sweep")
    pilot: Pilot | None = None
    tried: list[Cell] = []
    with training_workers(preset, setup.models) as pool:
        rates = setup.designs[0].declared_rates()
        if rates is None:
            pilot, tried = _search(preset, problem_set, setup, pool)
            rates = pilot.rates()
        cells = [cell for design in setup.designs for cell in design.cells(rates)]
        swept = Run(cells, setup.problems, pool, tracker, title=f"sweep {problem_set}")
        swept.finish(reverse=preset.resources.reverse)
    out = OUT / "sweep" / problem_set
    collect(cells, out, pilot=tried, keep_policies=preset.resources.keep_policies)
    if pilot:
        figures = write_pilot(pilot, out)
        log(preset, f"{problem_set}-rates", {"pilot": out / "pilot.json"}, figures=figures)


def _search(preset: Preset, problem_set: str, setup: Setup, pool: Pool) -> tuple[Pilot, list[Cell]]:
    """Run the pilots, and print the rates that they chose."""
    pilots = Tracker(f"{preset.name}-{problem_set}-pilot")

    def train(cells: Sequence[Cell]) -> None:
        trials = Run(cells, setup.problems, pool, pilots, title=f"pilot {problem_set}")
        # The sweep's rates are not known yet.
        trials.finish(reverse=preset.resources.reverse, supersede=False)

    (design,) = setup.designs
    pilot, tried = find(design, train, base_score(problem_set, preset.evaluation.metric))
    pilots.mean(tried)
    for line in chosen_lines(pilot):
        print(f"pilot {problem_set}: {line}")
    return pilot, tried
