"""Search the learning rate of a problem set under a budget of its own (IsoCompute Playbook, Figure 4).

Not a stage that DVC runs: it trains the pilots that ``sweep`` would, which then finds them finished.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import polars as pl
from isocompute.budget import Ledger, Limits, Meter
from isocompute.rollout.contract.files import atomic_write

from ..errors import ExperimentError
from ..rates.record import Pilot
from ..running import work
from ..running.cells import Cell
from ..running.identity import digest
from ..running.opening import workers
from ..running.pool import Pool
from ..running.schedule import run_cells
from ..running.tracker import Tracker
from ..settings import Preset
from .search import Run, Searched, base_score, chosen_lines, find, search_of, write_pilot
from .shared import OUT, log
from .training import Setup, setup_of


def run(preset: Preset, problem_set: str, *, budget: int | None = None) -> None:
    """Train pilots until the budget admits no further one, and write what they scored.

    Args:
        budget: Rollouts that the pilots may be trained on, evaluations apart; None: all pilots are trained.

    Raises:
        ExperimentError: The rate is declared, the budget does not pay for one pilot, every rate diverged, or a cell
            failed.
    """
    least = search_of(preset.sweep_of(problem_set), problem_set).rollouts
    if budget is not None and budget < least:
        raise ExperimentError(f"a budget of {budget:,} rollouts does not pay for one pilot of {least:,}")
    setup = setup_of(preset, problem_set)
    with workers(preset, setup.models) as pool:
        found = search_within(budget, setup, pool)
    out = OUT / "anchor" / problem_set
    figures = _write(found.pilot, out)
    for line in [*spent_lines(found, budget), *chosen_lines(found.pilot)]:
        print(f"anchor {problem_set}: {line}")
    print(f"anchor {problem_set}: {out / 'rates.csv'}, {out / 'rates.svg'}")
    log(
        preset, f"{problem_set}-anchor", {"rates": out / "rates.csv", "pilot": out / "pilot.json"}, figures=figures
    )  # fmt: skip


def spent_lines(found: Searched, budget: int | None) -> list[str]:
    """What a search cost, and which pilots its budget left out, a line each.

    Args:
        budget: Rollouts that its pilots could be trained on; None: as many as they needed.
    """
    pilot, left = found.pilot, found.left_out
    limit, apart = (
        ("", "no budget counts") if budget is None else (f" (budget {budget:,})", "the budget does not count")
    )
    count = f"{len(found.trained)} pilot{'s' if len(found.trained) != 1 else ''}"
    lines = [
        f"{count}: {pilot.rollouts:,} rollouts of training{limit} and {pilot.evaluated:,} responses of evaluation, "
        f"which {apart}"
    ]
    if left:
        lines.append(f"the budget left out {len(left)} of {len(left) + len(found.trained)} pilots:")
    there = {(cell.rollouts_per_problem, cell.problems_per_batch) for cell in found.trained}
    for n, size in sorted({(cell.rollouts_per_problem, cell.problems_per_batch) for cell in left}):
        own = [c for c in left if (c.rollouts_per_problem, c.problems_per_batch) == (n, size)]
        rates = ", ".join(f"{cell.learner.learning_rate:g} (seed {cell.seed})" for cell in own)
        none = "" if (n, size) in there else "; none was trained, so that it has no rate of its own"
        lines.append(f"  n = {n}, B_p = {size}: learning rate {rates}{none}")
    if left:
        lines.append("a rate that lacks a seed is chosen only where every rate of that n lacks one")
    return lines


def search_within(budget: int | None, setup: Setup, pool: Pool) -> Searched:
    """Train pilots on workers until the budget admits no further one.

    Args:
        budget: Rollouts that the pilots may be trained on; None: all pilots are trained.
        setup: What the pilots are made from and begin with.

    Raises:
        ExperimentError: Every rate diverged, or a cell failed.
    """
    (design,) = setup.designs
    preset, name = design.preset, design.origin.problem_set
    tracker = Tracker(f"{preset.name}-{name}-pilot")

    def train(cells: Sequence[Cell]) -> dict[str, Path]:
        # What a sweep has tried beyond this stays what the experiment means.
        return run_cells(
            cells, setup.problems, pool, tracker, title=f"anchor {name}", reverse=preset.resources.reverse,
            supersede=False,
        )  # fmt: skip

    base = base_score(name, preset.evaluation.metric)
    search = digest([cell.run_id for cell in design.trials()])
    with metered(train, budget, together=preset.resources.workers, search=search) as some:
        return find(design, some, base)


@contextmanager
def metered(train: Run, budget: int | None, *, together: int, search: str) -> Iterator[Run]:
    """Run pilots in waves while a meter admits them; a pilot that is finished already is paid for like any other.

    Args:
        budget: The limit in rollouts; None for none.
        together: Cells of a wave.
        search: Name of the search, which its ledger carries.

    Yields:
        What runs as many of some cells, in their order, as the budget admits, and returns the folders of these.
    """
    if budget is None:
        yield train
        return
    charged: list[Cell] = []
    path = work.WORK / "anchor" / f"{search}.bin"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    with Ledger.open(path, run_id=search, resumed_from=0) as ledger:
        meter = Meter(ledger, Limits(rollouts=budget))

        def some(cells: Sequence[Cell]) -> Mapping[str, Path]:
            waiting = [cell for cell in cells if cell not in charged]
            while wave := _admitted(meter, waiting[:together], step=len(charged) + 1):
                folders = train([*charged, *wave])
                for cell in wave:
                    charged.append(cell)
                    counts = work.training_counts(cell, folders[cell.run_id])
                    meter.charge(len(charged), {"trained": counts})
                waiting = waiting[len(wave) :]
            return {cell.run_id: work.folder_of(cell) for cell in charged}

        yield some


def _admitted(meter: Meter, cells: Sequence[Cell], *, step: int) -> list[Cell]:
    """The first of some cells that the budget pays for together."""
    wave: list[Cell] = []
    for cell in cells:
        if not meter.admit(step, sum(each.rollouts for each in [*wave, cell])):
            break
        wave.append(cell)
    return wave


def _write(pilot: Pilot, out: Path) -> list[Path]:
    """One row for each (n, B_p) and rate, and what ``sweep`` writes, too; returns the files of the figure."""
    rows = [
        {
            "rollouts_per_problem": found.rollouts_per_problem,
            "problems_per_batch": found.problems_per_batch,
            "learning_rate": each.learning_rate,
            pilot.metric: each.score,
            "standard_error": each.standard_error,
            "seeds": each.seeds,
            "diverged": each.diverged,
            "collapsed": each.collapsed,
            "chosen": each is found.chosen,
        }
        for found in pilot.searches
        for each in found.grid
    ]
    with atomic_write(out / "rates.csv") as stream:
        pl.DataFrame(rows).write_csv(stream)
    return write_pilot(pilot, out)
