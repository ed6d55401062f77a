"""The sixty-second answer: what to use at a budget, what the others lose, how sure that is, and what is not in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..data.units import short
from ..posterior.decision import NEAR, Decision, Option
from ..posterior.path import Path
from ..posterior.runs import Cell

MOST_NAMED = 7
"""Settings whose loss is given one by one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unmeasured:
    """A number of rollouts per problem that was not run, against the chosen setting at the budget.

    Attributes:
        gain: Expected gain if the better of the two were known.
        probability: That it is better.
    """

    rollouts_per_problem: int
    gain: float
    probability: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a sweep says, ready to be printed.

    Attributes:
        data: The sentence about the runs.
        metric: Name of the reward.
        unit: Unit of the budget.
        compute: What the chosen setting gets for the budget, in the unit of the fit.
        decision: At the budget.
        earlier: At a quarter of it, where that was measured.
        path: n* over the compute that was measured.
        path_unit: Unit of the fit.
        cells: The settings of the path.
        beyond: The largest multiple of the budget at which the same setting is still chosen, and its P(best) there.
        unmeasured: Numbers of rollouts that were not run.
        risk: The sentence about failures.
        missing: What the answer leaves out.
    """

    data: str
    metric: str
    unit: str
    compute: float
    decision: Decision
    earlier: Decision | None
    path: Path
    path_unit: str
    cells: tuple[Cell, ...]
    beyond: tuple[float, float] | None
    unmeasured: tuple[Unmeasured, ...]
    risk: str
    missing: tuple[str, ...]

    def lines(self) -> list[str]:
        """The answer, a line each; of an n and B_p at several rates only the best one is named."""
        several = len({c.problems_per_batch for c in self.cells}) > 1
        lines = [self.data, self._use(), "  " + self._losses(several)]
        if len(self.decision.options) > 1:
            lines.append(self._path(several))
        if self._beyond():
            lines.append(self._beyond())
        return [*lines, f"Risk: {self.risk}", f"Not in this: {'; '.join(self.missing)}"]

    def _use(self) -> str:
        chosen = self.decision.chosen
        cell = chosen.cell
        rate = f", learning rate {cell.learning_rate:.2g}" if cell.learning_rate else ""
        steps = f", {self.compute / cell.batch_rollouts:,.0f} steps" if self.path_unit == "rollouts" else ""
        group = f", {cell.group}" if cell.group else ""
        low, high = chosen.interval
        words = "use" if chosen.probability_best >= 0.5 else "the least expected regret is with"
        return (
            f"At {short(self.decision.compute)} {self.unit} {words} n = {cell.rollouts_per_problem}, "
            f"B_p = {cell.problems_per_batch}{steps}{rate}{group}     {self.metric} {chosen.reward:.3f} "
            f"(95 %: {low:.3f}–{high:.3f})   "
            f"P(best) {percent(chosen.probability_best)}"
        )

    def _losses(self, several: bool) -> str:
        others = at_best_rates(self.decision.options)[1:]
        if not others and not self.decision.unknown:
            return "nothing else was run"
        near = at_best_rates(self.decision.near())
        said = _alike(near, several)
        far = [o for o in others if o not in near]
        if far:
            low, high = far[0].loss_interval
            first = f"{listed(far[:1], several)} gets {far[0].loss:.3f} less (95 %: {signed(low)} to {signed(high)})"
            rest = [f"{listed([o], several)} {o.loss:.3f}" for o in far[1:MOST_NAMED]]
            if more := far[MOST_NAMED:]:
                rest.append(f"{len(more)} more up to {more[-1].loss:.3f}")
            said.append(", ".join([first, *rest]))
        if self.decision.unknown:
            names = dict.fromkeys(name(c, several) for c in self.decision.unknown)
            said.append(f"not known here, for its runs end too early: {', '.join(names)}")
        text = "; ".join(said) + "."
        if self.earlier is not None:
            # What n* is there, so that both say the same of two that are as good.
            kept = self.cells[self.path.at(self.compute / 4)]
            near = sorted(at_best_rates(self.earlier.near()), key=lambda option: _key(option.cell) != _key(kept))
            best = f"n* = {name(near[0].cell, several)}, P(best) {percent(near[0].probability_best)}"
            text += f"  At {short(self.earlier.compute)}: {'; '.join([best, *_alike(near, several)])}."
        return text

    def _path(self, several: bool) -> str:
        names = [name(c, several) for c in self.cells]
        # Another rate of the same n and B_p is no other n.
        changes = [c for c in self.path.changes if names[c.before] != names[c.after]]
        if not changes:
            return f"n*: {names[int(self.path.chosen[-1])]} at every budget"
        parts = [names[changes[0].before]]
        first, last = short(float(self.path.compute[0])), short(float(self.path.compute[-1]))
        for change in changes:
            low, high = change.interval
            span = f"{short(low) if low else f'<{first}'} to {short(high) if high else f'>{last}'}"
            said = f"90 % interval: {span}" if len(parts) == 1 else span
            parts.append(f"{names[change.after]} at {short(change.compute)} ({said})")
        return "n*: " + " → ".join(parts)

    def _beyond(self) -> str:
        said, chosen = [], self.decision.chosen.cell.rollouts_per_problem
        if self.beyond is not None:
            until, share = self.beyond
            said.append(f"Beyond: {chosen} to at least {short(until)} (P {percent(share)}).")
        worth = [u for u in self.unmeasured if u.gain > 0.001]
        if worth:
            best = max(worth, key=lambda u: u.gain)
            at = short(self.decision.compute)
            said.append(
                f"n = {best.rollouts_per_problem} was not run: by extrapolation it is better than {chosen} at {at} "
                f"with probability {percent(best.probability)} (expected improvement from trying it: {best.gain:.3f})."
            )
        return " ".join(said)


def _alike(near: Sequence[Option], several: bool) -> list[str]:
    """What is said of the settings that are as good as the first, if there are any."""
    if len(near) == 1:
        return []
    shares = ", ".join(percent(o.probability_best) for o in sorted(near[1:], key=lambda option: _key(option.cell)))
    verb = "are" if len(near) > 2 else "is"
    return [f"{listed(near[1:], several)} {verb} within {NEAR} of that (P(best) {shares})"]


def at_best_rates(options: Sequence[Option]) -> list[Option]:
    """The first option of each n, B_p and group."""
    first: dict[tuple[int, int, str], Option] = {}
    for option in options:
        first.setdefault(_key(option.cell), option)
    return list(first.values())


def name(cell: Cell, several: bool, rated: bool = False) -> str:
    """A setting to be printed: n, with B_p and the rate where settings differ in them."""
    text = f"{cell.rollouts_per_problem}" + (f" × {cell.problems_per_batch}" if several else "")
    text += f" at {cell.learning_rate:.2g}" if rated and cell.learning_rate else ""
    return f"{text} {cell.group}".strip()


def listed(options: Sequence[Option], several: bool) -> str:
    """Settings in the order of n: "8, 16 and 32"."""
    names = list(dict.fromkeys(name(o.cell, several) for o in sorted(options, key=lambda option: _key(option.cell))))
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _key(cell: Cell) -> tuple[int, int, str]:
    """What is one setting whatever its learning rate; settings are listed in this order."""
    return cell.rollouts_per_problem, cell.problems_per_batch, cell.group


def signed(number: float) -> str:
    """A number with three digits and a minus that is no hyphen."""
    return f"{number:.3f}".replace("-", "−")


def percent(share: float) -> str:
    """A share as whole percent, never 0 or 100 from draws."""
    return "<1 %" if share < 0.005 else ">99 %" if share > 0.995 else f"{100 * share:.0f} %"
