"""Print what a preset would run, without running it."""

from __future__ import annotations

from ..rates.rule import Declared, Rates
from ..running.cells import Cell, Origin
from ..running.design import Design
from ..running.identity import Surroundings
from ..settings import Preset
from ..settings.paper import leaves, section_of
from ..settings.reading import find
from . import footprint

PAPER = "paper"


def run(preset: Preset) -> None:
    """Print every value (of ``paper``, next to the section that it comes from), then cells and what they cost."""
    raw = find(preset=preset.name)[-1]
    for name, value in leaves(raw):
        section = f"  {section_of(name)}" if preset.name == PAPER else ""
        print(f"{name:45} {value!s:55}{section}")
    print()
    candidates = sum(source.train + source.validation for source in preset.problems)
    _print_row("all", "difficulty", "", candidates * preset.difficulty.samples, preset.sampling.max_new_tokens)
    for name in preset.sweep:
        _plan(preset, name)
    resources = preset.resources
    device = "GPUs" if resources.device == "cuda" else "CPU cores"
    print(
        f"{resources.processors()} {device} asked for, for {resources.workers} cells at a time; "
        f"sampler: {resources.resolved_sampler()}"
    )


def _plan(preset: Preset, name: str) -> None:
    """Cells and rollouts of one problem set; rates that are searched are not known before the pilots have run."""
    settings, test = preset.sweep[name], preset.prescribe[name]
    origin = Origin(
        problem_set=name, base="", problems="", generation=preset.generation,
        surroundings=Surroundings.of(preset.resources),
    )  # fmt: skip
    design = Design(preset=preset, sweep=settings, origin=origin)
    search, pilot, declared = settings.search, design.trials(), design.declared_rates()
    any_rate = Rates(rule="constant", declared=Declared(learning_rate=1.0, batch_rollouts=1))
    cells = design.cells(declared or any_rate)
    tested = (len(test.baselines) + 1) * len(test.seeds)
    chosen = preset.difficulty.sets[name]
    measured = (chosen.train + chosen.validation) * preset.difficulty.fresh_samples
    evaluated = sum(_evaluation_rollouts(cell, chosen.validation) for cell in [*pilot, *cells])
    evaluated += tested * (test.rollouts // test.evaluate_every) * chosen.validation * preset.evaluation.samples
    length = preset.sampling.max_new_tokens
    for purpose, count, total in (
        *([("pilot", len(pilot), sum(cell.rollouts for cell in pilot))] if pilot else []),
        ("sweep", len(cells), sum(cell.rollouts for cell in cells)),
        ("prescribe", tested, tested * test.rollouts),
        ("evaluate", "", evaluated),
        ("measured", "", measured),
    ):
        _print_row(name, purpose, count, total, length)
    if search and search.extensions:
        most = len(settings.searched()) * len(search.seeds) * search.extensions
        print(f"    pilot: at most {most} cells more, where the best rate lies at the edge of its grid")
    for cell in cells:
        steps = cell.rollouts // cell.batch_rollouts
        rate = f", learning rate {cell.learner.learning_rate:.3g}" if declared else ""
        print(f"    {cell.name}: B = {cell.batch_rollouts:,}, {steps:,} update steps{rate}")
    # Micro-batches have the same size in all cells; that of the largest batch is full.
    for line in footprint.lines(preset, max(cells, key=lambda cell: cell.batch_rollouts)):
        print(line)


def _print_row(name: str, purpose: str, cells: int | str, rollouts: int, longest: int) -> None:
    runs = f"{cells:4} cells" if cells != "" else " " * 10
    print(f"{name:8} {purpose:10} {runs} {rollouts:15,} rollouts, at most {rollouts * longest:18,} tokens")


def _evaluation_rollouts(cell: Cell, questions: int) -> int:
    """Responses of a cell's evaluations after the first, which cells share."""
    return cell.rollouts // cell.evaluate_every * questions * cell.evaluation_samples
