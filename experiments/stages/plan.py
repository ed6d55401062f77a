"""Print what a preset would run, without running it: values, cells, memory, GPU-hours and money."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import reduce
from operator import add
from pathlib import Path
from typing import Any

from isocompute.budget.planning.compute import Device, Interval, Lengths, Model, Utilisation, device, price
from isocompute.budget.planning.splits import Setting, estimate
from isocompute.learner.memory.update import parameters_of
from isocompute.rollout.contract import tables

from ..running.cells import Cell, CommandCell, Origin, surroundings_of
from ..running.command import flags_of
from ..running.design import Design, Rates
from ..settings import PreparedConfig, Preset
from ..settings.model import leaves, section_of
from ..settings.reading import find
from . import footprint

PAPER = "paper"


@dataclass(frozen=True, kw_only=True)
class Terms:
    """Assumptions of a cost, where nothing was measured.

    Attributes:
        price: Of a GPU for an hour (US dollars).
        response_tokens: Mean length of a response; None for the longest that there may be.
    """

    device: Device = field(default_factory=lambda: device("h100"))
    price: float = 3.0
    response_tokens: float | None = None


def run(preset: Preset, terms: Terms | None = None) -> None:
    """Print every value (of ``paper``, next to the section that it comes from), then cells and what they cost."""
    raw = find(preset=preset.name)[-1]
    for name, value in leaves(raw):
        section = f"  {section_of(name)}" if preset.name == PAPER else ""
        print(f"{name:45} {value!s:55}{section}")
    print()
    if preset.difficulty is not None:
        candidates = sum(source.train + source.validation for source in preset.problems)
        _print_row("all", "difficulty", "", candidates * preset.difficulty.samples, preset.sampling.max_new_tokens)
    for name in preset.sweep:
        _plan(preset, name, terms or Terms())
    resources = preset.resources
    kind = "GPUs" if resources.device == "cuda" else "CPU cores"
    print(f"{preset.processors()} {kind} asked for, for {resources.workers} cells at a time; sampler: {preset.sampler}")


def _plan(preset: Preset, name: str, terms: Terms) -> None:
    """Cells and rollouts of one problem set; rates that are searched are not known before the pilots have run."""
    settings, test, surroundings = preset.sweep[name], preset.prescribe.get(name), surroundings_of(preset)
    designs = [
        Design(
            preset=preset,
            sweep=settings,
            origin=Origin(
                problem_set=name,
                base_model=base,
                base="",
                problems="",
                generation=preset.generation,
                surroundings=surroundings,
            ),
        )
        for base in preset.base_models
    ]
    search, declared = settings.search, designs[0].declared_rates()
    pilot = designs[0].trials()
    any_rate = Rates(rule="constant", found={(1, 1): 1.0})
    cells = [cell for design in designs for cell in design.cells(declared or any_rate)]
    validation, measured = _questions(preset, name)
    evaluated = sum(_evaluation_rollouts(cell, validation) for cell in [*pilot, *cells])
    length = preset.sampling.max_new_tokens
    if pilot:
        _print_row(name, "pilot", len(pilot), sum(cell.rollouts for cell in pilot), length)
    _print_row(name, "sweep", len(cells), sum(cell.rollouts for cell in cells), length)
    if test is not None:
        # What is decided may be one of the baselines.
        tested = (len(test.baselines) + 1) * len(test.seeds) * len(designs)
        evaluated += tested * (test.rollouts // test.evaluate_every) * validation * preset.evaluation.samples
        _print_row(name, "prescribe", tested, tested * test.rollouts, length)
    _print_row(name, "evaluate", "", evaluated, length)
    if measured:
        _print_row(name, "measured", "", measured, length)
    if search and search.extensions:
        most = len(settings.searched()) * len(search.seeds) * search.extensions
        print(f"    pilot: at most {most} cells more, where the best rate lies at the edge of its grid")
    for cell in cells:
        steps = cell.rollouts // cell.batch_rollouts
        rate = f", learning rate {cell.learner.learning_rate:.3g}" if declared else ""
        name = f"n = {cell.rollouts_per_problem}, B_p = {cell.problems_per_batch}, {cell.origin.base_model}"
        print(f"    {name}, seed {cell.seed}: B = {cell.batch_rollouts:,}, {steps:,} update steps{rate}")
    largest = max(cells, key=lambda cell: cell.batch_rollouts)
    if isinstance(largest, CommandCell):
        print(f"    its command goes on with: {' '.join(flags_of(largest))}")
        return
    # Micro-batches have the same size in all cells; that of the largest batch is full.
    for line in footprint.lines(preset, largest, terms.device):
        print(line, flush=True)
    model = footprint.base_config(preset)
    if preset.resources.device == "cuda" and model is not None:
        for line in cost_lines(preset, [*pilot, *cells], evaluated + measured, model, terms):
            print(line)


def _questions(preset: Preset, name: str) -> tuple[int, int]:
    """Validation problems of a set, and the responses that measure the set again."""
    if isinstance(preset.base, PreparedConfig):
        table = tables.read(Path(preset.base.models[0].folder) / f"{name}.parquet", "problems")
        return int((table["split"] == "validation").sum()), 0
    if preset.difficulty is None:
        raise TypeError("problem sets are either prepared or cut by difficulty")
    chosen = preset.difficulty.sets[name]
    return chosen.validation, (chosen.train + chosen.validation) * preset.difficulty.fresh_samples


def _print_row(name: str, purpose: str, cells: int | str, rollouts: int, longest: int) -> None:
    runs = f"{cells:4} cells" if cells != "" else " " * 10
    print(f"{name:8} {purpose:10} {runs} {rollouts:15,} rollouts, at most {rollouts * longest:18,} tokens")


def _evaluation_rollouts(cell: Cell, questions: int) -> int:
    """Responses of a cell's evaluations, without a first one that cells share."""
    points = range(cell.evaluate_every, cell.rollouts + 1, cell.evaluate_every)
    own = sum(cell.run_config.evaluated_at(at) for at in points) + (not cell.baseline_id)
    return own * questions * cell.evaluation_samples


def cost_lines(
    preset: Preset, cells: Sequence[Cell], evaluated: int, model: dict[str, Any], terms: Terms
) -> Iterator[str]:
    """Device-hours and money of training cells and of evaluating them."""
    length = terms.response_tokens or float(preset.sampling.max_new_tokens)
    learner = cells[0].learner
    setting = Setting(
        model=Model(
            parameters=parameters_of(model),
            layers=int(model["num_hidden_layers"]),
            width=int(model["hidden_size"]),
            vocabulary=int(model["vocab_size"]),
        ),
        lengths=Lengths(prompt_tokens=float(preset.sampling.max_prompt_tokens), response_tokens=length, spread=0.0),
        device=terms.device,
        utilisation=Utilisation(),
        tokens_per_second=None,
        extra_forwards=int(learner.measures_first) + int(bool(learner.kl.coefficient)),
        shared_prompt=True,
    )
    sizes = Counter[int]()
    for cell in cells:
        sizes[cell.rollouts_per_problem] += cell.rollouts
    spent = [estimate(total, setting, rollouts_per_problem=n) for n, total in sizes.items()]
    asked = estimate(evaluated, setting, rollouts_per_problem=preset.evaluation.samples)
    sampling, training = reduce(add, (e.sampling for e in spent)), reduce(add, (e.training for e in spent))
    whole = sampling + training + asked.sampling
    yield f"    {_hours(whole)} on {terms.device.name}, {_money(whole, terms)} (unverified)"
    yield f"      sampling {_hours(sampling)}, updates {_hours(training)}, evaluations {_hours(asked.sampling)}"
    if learner.adapter is not None:
        yield "      assumed: an update takes as long as one of all weights; an adapter's takes up to a third less"
    if terms.response_tokens is None:
        yield "      assumed: every response is as long as it may be, which is the most (--response-tokens)"
    for sentence in price(whole, terms.price).assumptions:
        yield f"      assumed: {sentence}"


def _hours(device_seconds: Interval) -> str:
    hours = device_seconds.times(1 / 3600)
    return f"{hours.likely:,.0f} GPU-hours ({hours.low:,.0f} to {hours.high:,.0f})"


def _money(device_seconds: Interval, terms: Terms) -> str:
    money = price(device_seconds, terms.price)
    return f"{money.likely:,.0f} USD ({money.low:,.0f} to {money.high:,.0f})"
