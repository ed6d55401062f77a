"""Print what a preset would run, without running it: values, cells, memory, GPU-hours and money."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from isocompute.learner import LearnerError
from isocompute.rollout import RolloutError
from isocompute.rollout.contract.documents import parsed

from ..errors import ExperimentError
from ..running.cells import CommandCell, Design, Rates, surroundings_of
from ..running.command import flags_of
from ..settings import Preset, find, leaves
from ..settings.own import remarks
from .costs import Costs, Terms, in_all
from .footprint import Footprint, base_config

PAPER = "paper"
SECTIONS: Mapping[str, str] = parsed(Path(__file__).with_name("paper.yaml").read_text("utf-8"))


def section_of(name: str) -> str | None:
    """Return the paper's section for a setting, or None for a setting that is not listed."""
    parts = name.split(".")
    generic = ".".join([parts[0], "*", *parts[2:]]) if len(parts) > 2 else name
    return SECTIONS.get(name) or SECTIONS.get(generic) or SECTIONS.get(parts[0])


def run(preset: Preset, terms: Terms | None = None, path: Path = Path("params.yaml")) -> None:
    """Print every value (for ``paper``, with the section it comes from), then cells and their costs.

    Args:
        path: The file that the preset was read from.
    """
    raw = find(path, preset=preset.name)[-1]
    for name, value in leaves(raw):
        section = f"  {section_of(name)}" if preset.name == PAPER else ""
        print(f"{name:45} {value!s:55}{section}".rstrip())
    print()
    candidates = 0
    if preset.difficulty is not None:
        candidates = sum(source.train + source.validation for source in preset.problems)
        _print_row("all", "difficulty", "", candidates * preset.difficulty.samples, preset.sampling.max_new_tokens)
    priced = [costs for name in preset.sweep if (costs := _plan(preset, name, terms or Terms()))]
    if priced:
        print()
        selecting = candidates * preset.difficulty.samples if preset.difficulty else 0
        for line in in_all(priced, selecting):
            print(line)
        for line in max(priced, key=lambda costs: costs.footprint.cell.run.batch_rollouts).replica_lines():
            print(line)
        for sentence in priced[0].assumptions():
            print(f"assumed: {sentence}")
    resources = preset.resources
    kind = "GPUs" if resources.device == "cuda" else "CPU cores"
    print(f"{preset.processors()} {kind} asked for, for {resources.workers} cells at a time; sampler: {preset.sampler}")
    for remark in remarks(preset):
        print(f"warning: {remark}")


def _plan(preset: Preset, name: str, terms: Terms) -> Costs | None:
    """Cells, rollouts and costs of one problem set; searched rates are unknown until the pilots have run.

    Returns:
        Its costs; None without GPUs.
    """
    settings, test = preset.sweep[name], preset.prescribe.get(name)
    installed = preset
    if preset.trainer is not None:
        # Its libraries need not be installed, since no cell is run.
        installed = preset.model_copy(update={"trainer": preset.trainer.model_copy(update={"libraries": ()})})
    surroundings = surroundings_of(installed)
    designs = [Design.of(preset, name, base, surroundings) for base in preset.base_models]
    search, declared = settings.search, designs[0].declared_rates()
    pilot = designs[0].trials()
    any_rate = Rates(rule="constant", found={(1, 1): 1.0})
    cells = [cell for design in designs for cell in design.cells(declared or any_rate)]
    validation, measured, evaluated = preset.questions(name), 0, 0
    if validation is None:
        raise ExperimentError(f"{preset.prepared[0].folder}/{name}.parquet: is not there, or no table of problems")
    if preset.difficulty is not None:
        chosen = preset.difficulty.sets[name]
        measured = (chosen.train + chosen.validation) * preset.difficulty.fresh_samples
    for cell in [*pilot, *cells]:
        ends = range(cell.run.batch_rollouts, cell.rollouts + 1, cell.run.batch_rollouts)
        # Excludes a first evaluation that cells share.
        own = sum(cell.run.evaluated_at(at) for at in ends) + (not cell.baseline_id)
        evaluated += own * validation * cell.evaluation_samples
    length = preset.sampling.max_new_tokens
    if pilot:
        _print_row(name, "pilot", len(pilot), sum(cell.rollouts for cell in pilot), length)
    _print_row(name, "sweep", len(cells), sum(cell.rollouts for cell in cells), length)
    tested = 0
    if test is not None:
        # The decided setting may be one of the baselines.
        tested = (len(test.baselines) + 1) * len(test.seeds) * len(designs)
        evaluated += tested * (test.rollouts // test.evaluate_every) * validation * preset.evaluation.samples
        _print_row(name, "prescribe", tested, tested * test.rollouts, length)
    _print_row(name, "evaluate", "", evaluated, length)
    if measured:
        _print_row(name, "measured", "", measured, length)
    if search and search.extensions:
        most = len(settings.searched()) * len(search.seeds) * search.extensions
        print(f"    pilot: at most {most} more, where the best rate lies at the edge of its grid")
    kinds = Counter(
        (cell.run.rollouts_per_problem, cell.run.problems_per_batch, cell.update_steps, cell.learner) for cell in cells
    )
    print(f"    {'n':>6} {'B_p':>6} {'B':>8} {'update steps':>13} {'learning rate':>14} {'cells':>6}")
    for (n, size, steps, learner), count in kinds.items():
        rate = f"{learner.learning_rate:.3g}" if declared else "searched"
        print(f"    {n:6,} {size:6,} {n * size:8,} {steps:13,} {rate:>14} {count:6}")
    largest = max(cells, key=lambda cell: cell.run.batch_rollouts)
    if isinstance(largest, CommandCell):
        print(f"    its command goes on with: {' '.join(flags_of(largest))}")
        return None
    model = base_config(preset)
    if model is None:
        print("    memory: not traced, since the configuration of the base model is not on this machine")
        return None
    # Micro-batches have the same size in all cells; the largest batch fills its micro-batch.
    footprint = Footprint(preset=preset, cell=largest, model=model, device=terms.device)
    costs = Costs(
        footprint=footprint,
        terms=terms,
        cells=[*pilot, *cells],
        tested=tested * test.rollouts if test else 0,
        evaluated=evaluated,
        questions=validation * preset.evaluation.samples,
        measured=measured,
    )
    try:
        for line in footprint.lines():
            print(line, flush=True)
        if preset.resources.device != "cuda":
            return None
        for line in costs.lines():
            print(line, flush=True)
    except LearnerError as error:
        print(f"    memory: {error}")
        return None
    except RolloutError:
        print("    GPU-hours: not counted, since an engine does not fit")
        return None
    return costs


def _print_row(name: str, purpose: str, cells: int | str, rollouts: int, longest: int) -> None:
    runs = f"{cells:4} cells" if cells != "" else " " * 10
    print(f"{name:8} {purpose:10} {runs} {rollouts:15,} rollouts, at most {rollouts * longest:18,} tokens")
