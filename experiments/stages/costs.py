"""The cost of a preset on GPUs: wall time × GPUs held, for each placement of learner and engines."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, reduce
from math import inf, sqrt
from operator import add

from isocompute.budget.planning.compute import Device, Interval, Lengths, Model, Setting, device, price
from isocompute.budget.planning.latency import (
    Decoded,
    Latency,
    Placement,
    Spent,
    dispatched,
    latency,
    spread_lengths,
    switch,
    unbroken,
)
from isocompute.rollout import RolloutError

from ..errors import ExperimentError
from ..running.cells import Cell
from .footprint import KEPT_FREE, Footprint

LARGEST = 2**16
"""Responses of a measuring batch, beyond which its time is assumed to grow in proportion."""
REPLICAS = (1, 2, 4, 8)
"""Numbers of engines to compare."""
ALONE = 0.9
"""Share of a GPU that an engine takes if it is alone."""
SHORTER = 4
"""Assumed ratio of the longest to the mean response when engines are compared and no mean is given."""
Rule = Callable[..., tuple[Decoded, ...]]


@dataclass(frozen=True, kw_only=True)
class Terms:
    """Assumptions of a cost where nothing was measured.

    Attributes:
        price: Price of a GPU-hour (US dollars).
        response_tokens: Mean length of a response; None for the longest allowed.
    """

    device: Device = field(default_factory=lambda: device("h100"))
    price: float = 3.0
    response_tokens: float | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.price < inf:
            raise ExperimentError(f"--price is {self.price:g}; it must be at least 0 and finite")
        if self.response_tokens is not None and not 0 < self.response_tokens < inf:
            raise ExperimentError(f"--response-tokens is {self.response_tokens:g}; it must be positive and finite")


@dataclass(frozen=True, kw_only=True)
class Option:
    """A possible placement on a cell's GPUs.

    Attributes:
        alive: Most responses alive in an engine.
        memory_share: Share of the engine's GPU, if it differs from the preset's.
    """

    title: str
    placement: Placement
    alive: int
    memory_share: float | None = None


@dataclass(frozen=True, kw_only=True)
class Costs:
    """Costs of a problem set.

    Attributes:
        footprint: The memory of its largest cell, which determines how many responses an engine holds.
        tested: Rollouts of the cells that test the prescription, whose n is not known yet.
        evaluated: Responses in all evaluations.
        questions: Responses in one evaluation.
        measured: Responses that measure problems before any cell is trained.
    """

    footprint: Footprint
    terms: Terms
    cells: Sequence[Cell]
    tested: int
    evaluated: int
    questions: int
    measured: int

    @cached_property
    def model(self) -> Model:
        """The size of the policy."""
        size = self.footprint.size
        return Model(
            parameters=size.parameters,
            layers=size.layers,
            width=size.hidden,
            vocabulary=size.vocabulary,
            kv_values=size.kv_values,
        )

    @property
    def longest(self) -> int:
        """Tokens of the longest response."""
        return self.footprint.preset.sampling.max_new_tokens

    @property
    def mean(self) -> float:
        """Mean tokens of a response."""
        return min(self.terms.response_tokens or self.longest, self.longest)

    @cached_property
    def context(self) -> float:
        """Mean context of a response over its decoding steps, in tokens; longer responses contribute more steps."""
        lengths = spread_lengths(1024, mean=self.mean, longest=self.longest)
        grown = sum(length**2 for length in lengths) / (2 * sum(lengths))
        return self.footprint.preset.sampling.max_prompt_tokens + grown

    @property
    def float32_head(self) -> bool:
        """Whether only logits are in float32, for the learner and so for the engines."""
        compute = self.footprint.cell.learner.compute
        return compute.precision == "bfloat16" and compute.float32_head

    def engine(self, option: Option) -> Latency:
        """Latency of one of the engines."""
        devices, head = option.placement.devices, self.float32_head
        return latency(self.model, self.terms.device, context=self.context, devices=devices, float32_head=head)

    def alive(self, memory_share: float | None = None) -> int:
        """Most responses alive in an engine (``Footprint.engine``): limited by its settings and its cache."""
        engine, taken = self.footprint.engine(memory_share)
        return max(1, min(engine.max_concurrent, int(taken.kv // (taken.kv_token * self.context))))

    @cached_property
    def options(self) -> list[Option]:
        """The preset's placement, then others with as many GPUs."""
        resources, held = self.footprint.preset.resources, self.footprint.preset.devices_of_a_worker()
        sleeps, alive = switch(self.model), self.alive()
        own = Placement(
            ranks=resources.learner_ranks,
            engines=resources.replicas,
            devices=resources.engine.tensor_parallel or 1,
            held=held,
            switch=sleeps if resources.engine.sleep else None,
        )
        options = [Option(title=f"{resources.placement}, as set", placement=own, alive=alive)]
        if held > 1:
            apart = own
            if resources.placement == "colocated":
                apart, alive = Placement(ranks=held // 2, engines=held - held // 2, held=held), self.alive(ALONE)
                options.append(Option(title="separate", placement=apart, alive=alive))
            options.append(Option(title="pipelined, off-policy", placement=replace(apart, pipelined=True), alive=alive))
        if not resources.engine.sleep and (share := self._share_beside(held)):
            turns = Placement(ranks=held, engines=held, held=held, switch=sleeps)
            # An engine spread over several GPUs may not fit on one.
            with suppress(RolloutError):
                alive = self.alive(share)
                options.append(Option(title="colocated, asleep", placement=turns, alive=alive, memory_share=share))
        return options

    def _share_beside(self, ranks: int) -> float | None:
        """The share of a GPU that an engine may take while a rank's weights and moments stay there.

        Returns:
            None if an update does not fit even though the engine has left.
        """
        own, room = self.footprint.own, 1 - KEPT_FREE
        sharded = self.footprint.cell.learner.compute.sharding == "auto"
        of_all = (own.ranks / ranks if sharded else 1) / self.terms.device.memory
        stays = (own.weights + own.reference + own.moments) * of_all
        if stays + own.gradients * of_all + own.temporary / self.terms.device.memory > room:
            return None
        return int(100 * (room - stays)) / 100

    def update(self, rollouts: int) -> Interval:
        """Device-seconds to learn from this many rollouts."""
        cell, on = self.footprint.cell, self.terms.device
        lower = cell.learner.compute.precision == "bfloat16"
        setting = Setting(
            model=self.model,
            lengths=Lengths(
                prompt_tokens=float(self.footprint.preset.sampling.max_prompt_tokens),
                response_tokens=self.mean,
                spread=0.0,
            ),
            device=on if lower else replace(on, peak=on.float32),
            extra_forwards=int(cell.learner.measures_first) + int(bool(cell.learner.kl.coefficient)),
            float32_head=self.float32_head,
        )
        return setting.estimate(rollouts, rollouts_per_problem=cell.run.rollouts_per_problem).training

    def step(self, option: Option, count: int, n: int, *, learns: bool = True) -> Spent:
        """The time for a batch of groups of n responses."""
        place = option.placement
        rule = unbroken if learns and place.pipelined else dispatched
        work = _decoded(rule, count, self.mean, self.longest, place.engines, option.alive)
        prompts = self.footprint.preset.sampling.max_prompt_tokens * count / n / place.engines
        engine = self.engine(option)
        sampled = [engine.of(one, prompt_tokens=prompts) for one in work]
        return place.step(sampled, self.update(count) if learns else None)

    def cell(self, option: Option, cell: Cell) -> Spent:
        """The time for a cell, without its evaluations."""
        return self.step(option, cell.run.batch_rollouts, cell.run.rollouts_per_problem).times(cell.update_steps)

    def training(self, option: Option) -> Spent:
        """The time for all cells; those that test the prescription take as long per rollout as the others."""
        spent = reduce(add, (self.cell(option, cell) for cell in self.cells))
        return spent.times(1 + self.tested / sum(cell.rollouts for cell in self.cells))

    def measuring(self, option: Option, responses: int, batch: int) -> Spent:
        """The time for responses that nothing is learned from, in batches."""
        batch = max(1, min(batch, responses, LARGEST))
        samples = self.footprint.preset.evaluation.samples
        return self.step(option, batch, samples, learns=False).times(responses / batch)

    def evaluating(self, option: Option) -> Spent:
        """The time for all evaluations, and for measuring the problems again."""
        again = self.measuring(option, self.measured, self.measured)
        return self.measuring(option, self.evaluated, self.questions) + again

    def spent(self, option: Option) -> Spent:
        """The time for the problem set."""
        return self.training(option) + self.evaluating(option)

    def lines(self) -> Iterator[str]:
        """GPU-hours of the problem set with its current settings."""
        own = self.options[0]
        training, evaluating = self.training(own), self.evaluating(own)
        held, busy = training.held + evaluating.held, training.busy.likely + evaluating.busy.likely
        updates = self.update(sum(cell.rollouts for cell in self.cells) + self.tested).likely
        sampling = training.busy.likely - updates
        parts = {"sampling": sampling, "updates": updates, "evaluations": evaluating.busy.likely}
        said = ", ".join(f"{name} {seconds / 3600:,.0f}" for name, seconds in parts.items())
        yield f"    GPU-hours on {self.terms.device.name}: {_range(held.times(1 / 3600))} (unverified)"
        yield f"      {said}, waiting {(held.likely - busy) / 3600:,.0f}"
        workers = self.footprint.preset.resources.workers
        walls = [self.cell(own, cell).wall.likely for cell in self.cells]
        ends = [each.steps for each in dispatched(walls, replicas=workers, limit=1)]
        waits = (max(ends) * workers - sum(ends)) * own.placement.held / 3600
        yield (
            f"      with workers: {workers} the cells take {max(ends) / 86400:,.1f} days; workers that find no more of "
            f"them hold {waits:,.0f} GPU-hours besides"
        )

    def replica_lines(self) -> Iterator[str]:
        """Wall time and GPU-seconds for sampling the smallest and the largest batch with more engines."""
        if self.terms.response_tokens is None:
            # If all responses have the maximum length, none waits for another.
            shorter = replace(self.terms, response_tokens=self.longest / SHORTER)
            yield from replace(self, terms=shorter).replica_lines()
            return
        own, engine = self.options[0], self.engine(self.options[0])
        few = sorted({(cell.run.batch_rollouts, cell.run.rollouts_per_problem) for cell in self.cells})
        yield f"sampling a batch, responses of {self.mean:,.0f} tokens on average: seconds (GPU-seconds)"
        yield f"  {'engines':24}" + "".join(f"{engines:>19}" for engines in REPLICAS)
        for count, n in dict.fromkeys((few[0], few[-1])):
            walls = [
                max(
                    engine.of(one).likely
                    for one in _decoded(dispatched, count, self.mean, self.longest, engines, own.alive)
                )
                for engines in REPLICAS
            ]
            paid = [wall * engines * own.placement.devices for wall, engines in zip(walls, REPLICAS, strict=True)]
            shown = "".join(f"{f'{wall:,.0f} ({gpus:,.0f})':>19}" for wall, gpus in zip(walls, paid, strict=True))
            yield f"  {f'B_p {count // n:,}, n {n:,}':24}{shown}  {_verdict(walls)}"

    def assumptions(self) -> Iterator[str]:
        """The assumptions behind the costs."""
        if self.terms.response_tokens is None:
            yield "every response is as long as it may be, which is the most (--response-tokens)"
        else:
            yield f"lengths are lognormal: a mean of {self.mean:,.0f}, {self.longest:,} tokens at most"
        yield f"prompts are as long as they may be, {self.footprint.preset.sampling.max_prompt_tokens:,} tokens"
        engine = self.engine(self.options[0])
        step, each = (
            f"{1e3 * time.likely:.2g} ms ({1e3 * time.low:.2g} to {1e3 * time.high:.2g})"
            for time in (engine.step, engine.each)
        )
        alive = self.options[0].alive
        yield f"a decoding step takes {step}, and {each} for each response alive, at most {alive} in an engine"
        yield "without pipelining an update begins when its batch is complete; syncs take no time"
        if self.footprint.cell.learner.adapter is not None:
            yield "an update takes as long as one of all weights; an adapter's takes up to a third less"
        if self.tested:
            yield "cells that test the prescription, whose n is not known, take as long for a rollout as the others"
        said = dict.fromkeys((*engine.step.assumptions, *engine.each.assumptions))
        said |= dict.fromkeys((*self.update(1).assumptions, *switch(self.model).assumptions))
        yield from (sentence for sentence in said if not sentence.startswith("responses of"))
        yield f"{self.terms.price:,.2f} USD per GPU-hour"


def in_all(costs: Sequence[Costs], difficulty: int) -> Iterator[str]:
    """GPU-hours and money for a preset's problem sets in each placement, and the recommended placement.

    Args:
        difficulty: Responses that measure the difficulty of all problems.
    """
    # The problem set with the least room for an engine has settings that work for all.
    least = min(costs, key=lambda each: (len(each.options), each.options[-1].memory_share or 1.0))
    spent = [
        reduce(
            add,
            (each.spent(each.options[i]) for each in costs),
            least.measuring(option, difficulty, difficulty),
        )
        for i, option in enumerate(least.options)
    ]
    yield f"{'all problem sets, unverified':56}{'GPU-hours':>32}{'idle':>7}   USD"
    for option, took in zip(least.options, spent, strict=True):
        place = option.placement
        layout = f"{option.title}: {place.ranks} ranks, {place.engines} engines, {place.held} GPUs"
        money = price(took.held, least.terms.price)
        yield f"  {layout:54}{_range(took.held.times(1 / 3600)):>32}{took.idle:>7.0%}   {_range(money)}"
    yield "GPU-hours are wall time × GPUs held, those that wait included. Recommended where updates are on-policy:"
    choices = [0, *(i for i, option in enumerate(least.options) if option.memory_share)]
    cheapest = min(choices, key=lambda i: spent[i].held.likely)
    if cheapest == 0:
        yield "  what is set"
    else:
        held, share = least.options[cheapest].placement.held, least.options[cheapest].memory_share
        yield (
            f"  resources: {{placement: colocated, learner_ranks: {held}, replicas: {held}, engine: {{sleep: 1, "
            f"memory_share: {share}}}}} saves {1 - spent[cheapest].held.likely / spent[0].held.likely:.0%}"
        )


@cache
def _decoded(rule: Rule, count: int, mean: float, longest: int, engines: int, alive: int) -> tuple[Decoded, ...]:
    """The work of each engine in a batch, cached since many cells share it."""
    return rule(spread_lengths(count, mean=mean, longest=longest), replicas=engines, limit=alive)


def _verdict(walls: Sequence[float]) -> str:
    """The number of engines from which on GPU-seconds rise by more than the wall time falls."""
    for engines, before, after in zip(REPLICAS[1:], walls, walls[1:], strict=False):
        # Twice as many engines multiply GPU-seconds by 2 · after / before, and divide the time by before / after.
        if before / after < sqrt(2):
            return f"from {engines} on GPU-seconds rise by more than the time falls"
    return f"up to {REPLICAS[-1]} the time falls by more than GPU-seconds rise"


def _range(amount: Interval) -> str:
    return f"{amount.likely:,.0f} ({amount.low:,.0f} to {amount.high:,.0f})"
