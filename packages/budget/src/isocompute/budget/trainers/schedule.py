"""Batches that are generated every so many micro-steps, counted where logs say in which steps that was.

A process generates in its first micro-step and then after every ``every`` of them, so that a restart begins anew.
``count`` finds the histories with the fewest restarts that fit all that a log says, what follows for every step, and
what would follow if there had been more restarts of which nothing was logged.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ..errors import BudgetError

MOST_UNEXPLAINED = 3
"""More restarts, or entries at odds with the tokens generated, are a contradiction; one in 20 entries in long runs."""
SLACK = 2
"""Histories that need so many more restarts than the best one are possible, too."""
MOST_STATES = 300_000
"""States that are kept of all steps (some 500 bytes each): what is not logged for long leaves as many as its square."""

State = tuple[int, int, int, int]
"""Residue of the micro-steps that generate; batches since the last entry or start, and since the last count of tokens;
starts from a checkpoint that are known to have happened."""

Layer = dict[State, tuple[int, set[State]]]
"""The states that a step may have, each with the restarts that it takes to get there and the states before it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """When a trainer generates.

    Attributes:
        every: Micro-steps from one generation batch to the next.
        accumulation: Micro-steps of an optimizer step.
        batches: Generation batches in an epoch, whose last optimizer step may be short; None for one endless epoch.
    """

    every: int
    accumulation: int
    batches: int | None = None

    @property
    def epoch_steps(self) -> int | None:
        """Optimizer steps of an epoch."""
        return None if self.batches is None else -(-self.batches * self.every // self.accumulation)

    def micro(self, step: int) -> int:
        """Micro-steps taken up to and including an optimizer step."""
        if self.batches is None or not self.epoch_steps:
            return step * self.accumulation
        epochs, rest = divmod(step, self.epoch_steps)
        whole = self.batches * self.every
        return epochs * whole + min(rest * self.accumulation, whole)

    def between(self, residue: int, start: int, stop: int) -> int:
        """Batches generated in the optimizer steps after ``start``, up to and including ``stop``."""
        return -(-(self.micro(stop) - residue) // self.every) + (residue - self.micro(start)) // self.every

    def generations(self, start: int, stop: int) -> int:
        """Batches that a process generates which starts after one optimizer step and ends with another."""
        return self.between(self.micro(start), start, stop)


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Evidence of a log at an optimizer step.

    Attributes:
        entry: Whether the values logged can be of so many batches, those since the last entry or start; None where
            nothing was logged.
        tokens: Whether the tokens counted agree with so many batches since the last count: False where they are only
            unlikely to, None where they cannot; None itself where tokens were not counted.
    """

    entry: Callable[[int], bool] | None = None
    tokens: Callable[[int], bool | None] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Count:
    """Batches generated up to and including each optimizer step: the fewest and the most that the log allows.

    Attributes:
        least: By step, from 0 on, with the fewest restarts that explain the log.
        fewest: By step, from 0 on, with up to two more restarts.
        unexplained: Restarts, or entries at odds with the tokens generated, that had to be assumed.
    """

    least: Sequence[int]
    most: Sequence[int]
    fewest: Sequence[int]
    greatest: Sequence[int]
    unexplained: int


def count(
    schedule: Schedule, last: int, evidence: Mapping[int, Evidence], restarts: Sequence[tuple[int, int]], *, where: str
) -> Count:
    """Count the batches generated, as far as a log shows it.

    Args:
        restarts: Of each start from a checkpoint that is known, the first and the last step that it may have been from.
    """
    layers = _layers(schedule, last, evidence, restarts, where=where, unlogged=True)
    slack = 0
    if layers is None:
        # A restart that nothing was logged of generates anew at once, so that it adds a batch at the most.
        layers, slack = _layers(schedule, last, evidence, restarts, where=where, unlogged=False), SLACK
    if layers is None:
        raise BudgetError(f"{where}: too little of its {last:,} optimizer steps is logged to say where it began anew")
    allowed = _allowed(evidence)
    whole = {state for state in layers[-1] if state[3] == len(restarts)}
    least = min((layers[-1][state][0] for state in whole), default=allowed + 1)
    if least > allowed:
        raise BudgetError(f"{where}: its log shows more starts from a checkpoint than can be told apart")
    likely = _ranges(schedule, layers, _through(layers, {s for s in whole if layers[-1][s][0] == least}))
    possible = _ranges(schedule, layers, _through(layers, {s for s in whole if layers[-1][s][0] <= least + SLACK}))
    greatest = [most + slack if step else most for step, most in enumerate(possible[1])]
    return Count(least=likely[0], most=likely[1], fewest=possible[0], greatest=greatest, unexplained=least)


def _allowed(evidence: Mapping[int, Evidence]) -> int:
    return MOST_UNEXPLAINED + len(evidence) // 20


def _layers(
    schedule: Schedule,
    last: int,
    evidence: Mapping[int, Evidence],
    restarts: Sequence[tuple[int, int]],
    *,
    where: str,
    unlogged: bool,
) -> list[Layer] | None:
    """The states that each step may have, with restarts unlogged or not; None where they are too many to keep."""
    layers: list[Layer] = [{(0, 0, 0, 0): (0, set())}]
    kept = 0
    for step in range(1, last + 1):
        layer = _step(schedule, step, layers[-1], evidence.get(step), restarts, unlogged=unlogged)
        layer = {state: least for state, least in layer.items() if least[0] <= _allowed(evidence)}
        if not layer:
            sparse = "" if unlogged else "; or it began anew, and too little is logged to say where"
            raise BudgetError(
                f"{where}: its log contradicts its settings at step {step:,}: generating every {schedule.every:,} "
                f"micro-steps, {schedule.accumulation:,} to an optimizer step, does not give what is logged "
                f"there{sparse}"
            )
        layers.append(layer)
        kept += len(layer)
        if kept > MOST_STATES + last:
            return None
    return layers


def _through(layers: Sequence[Layer], ends: set[State]) -> list[set[State]]:
    """The states of every step on the way to some of the last step."""
    kept = [ends]
    for layer in reversed(layers[1:]):
        kept.append({before for state in kept[-1] for before in layer[state][1]})
    return kept[::-1]


def merged(counts: Sequence[Count]) -> Count:
    """Join the counts that explain the most: what each of them leaves open, together."""
    unexplained = min(c.unexplained for c in counts)
    best = [c for c in counts if c.unexplained == unexplained]

    def over(choose: Callable[[Sequence[int]], int], name: str) -> list[int]:
        return [choose(values) for values in zip(*(getattr(c, name) for c in best), strict=True)]

    return Count(
        least=over(min, "least"),
        most=over(max, "most"),
        fewest=over(min, "fewest"),
        greatest=over(max, "greatest"),
        unexplained=unexplained,
    )


def _step(
    schedule: Schedule,
    step: int,
    before: Layer,
    said: Evidence | None,
    restarts: Sequence[tuple[int, int]],
    *,
    unlogged: bool,
) -> Layer:
    """The states after a step; a restart may follow the step."""
    after: Layer = {}

    def reach(state: State, cost: int, origin: State) -> None:
        old, origins = after.get(state, (cost + 1, set()))
        if cost < old:
            after[state] = (cost, {origin})
        elif cost == old:
            origins.add(origin)

    for origin, (cost, _) in before.items():
        residue, seen, total, starts = origin
        made = schedule.between(residue, step - 1, step)
        seen, total = seen + made, total + made
        if said is not None and said.entry is not None:
            if not said.entry(seen):
                continue
            seen = 0
        if said is not None and said.tokens is not None:
            agrees = said.tokens(total)
            if agrees is None:
                continue
            cost, total = cost + (not agrees), 0
        if starts < len(restarts) and restarts[starts][1] < step:
            continue
        reach((residue, seen, total, starts), cost, origin)
        anew = schedule.micro(step) % schedule.every
        if starts < len(restarts) and restarts[starts][0] <= step <= restarts[starts][1]:
            reach((anew, 0, total, starts + 1), cost, origin)
        if unlogged and (anew != residue or seen):
            reach((anew, 0, total, starts), cost + 1, origin)
    best = min((cost for cost, _ in after.values()), default=0)
    return {state: least for state, least in after.items() if least[0] <= best + SLACK}


def _ranges(schedule: Schedule, layers: Sequence[Layer], kept: Sequence[set[State]]) -> tuple[list[int], list[int]]:
    """The fewest and the most batches by step, over the histories that are kept."""
    least, most = [0], [0]
    ranges: dict[State, tuple[int, int]] = dict.fromkeys(kept[0], (0, 0))
    for step, states in enumerate(kept[1:], 1):
        reached: dict[State, tuple[int, int]] = {}
        for state in states:
            bounds = [
                tuple(bound + schedule.between(before[0], step - 1, step) for bound in ranges[before])
                for before in layers[step][state][1]
                if before in ranges
            ]
            reached[state] = (min(b[0] for b in bounds), max(b[1] for b in bounds))
        ranges = reached
        least.append(min(low for low, _ in ranges.values()))
        most.append(max(high for _, high in ranges.values()))
    return least, most
