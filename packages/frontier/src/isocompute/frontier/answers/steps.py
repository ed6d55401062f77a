"""The IsoCompute Playbook's three steps (arXiv 2603.12151, Appendix C): n*, the smallest stable B_p, the rest to M.

A B_p is stable if none of its runs failed, by the same definition of a failed run as in a fit (``posterior.health``).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from ..data.reading import counted, short
from ..errors import FrontierError
from ..posterior.decision import Option
from .answer import Standing, percent, rounded, signed
from .fitted import Fitted

SEEDS = 2
"""Fewest runs needed to call a setting stable or not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSize:
    """One B_p at n*, with its best learning rate.

    Attributes:
        failure: Probability that the next run fails.
        failure_interval: Its 95 % interval.
        loss: Mean reward lost relative to the setting that the fit chooses at the budget, failures included.
        loss_interval: Its 95 % interval.
    """

    problems_per_batch: int
    failed: int
    runs: int
    failure: float
    failure_interval: tuple[float, float]
    loss: float
    loss_interval: tuple[float, float]
    update_steps: int

    @property
    def stable(self) -> bool:
        """Return whether it was run and no run failed."""
        return self.runs > 0 and not self.failed

    @property
    def words(self) -> str:
        """The counted failures, and the probability that the next run fails."""
        low, high = self.failure_interval
        lost = f"{self.failed if self.failed else 'none'} of {counted(self.runs, 'run')} failed"
        return f"{lost}, the next one does with {percent(self.failure)} (95 %: {percent(low)} to {percent(high)})"


@dataclass(frozen=True, slots=True, kw_only=True)
class ThreeSteps:
    """A budget split by the paper's three steps.

    Attributes:
        doubt: Why n* is not certain; empty if it is.
        probability_best: Probability that a setting with n* is best at the budget.
        sizes: Every B_p that was run at n*, the smallest first.
        chosen: B_p of the setting that the fit chooses.
        reached: Rollouts up to which runs were measured.
    """

    budget: float
    unit: str
    n_star: int
    doubt: str
    probability_best: float
    sizes: tuple[BatchSize, ...]
    chosen: int
    reached: float

    @property
    def smallest(self) -> BatchSize | None:
        """The smallest stable B_p; None if only one B_p was run, or none is stable."""
        stable = [size for size in self.sizes if size.stable]
        return stable[0] if stable and len(self.sizes) > 1 else None

    @property
    def used(self) -> BatchSize:
        """The B_p that the steps are computed with: the smallest stable one, else that of the chosen setting."""
        return self.smallest or next(size for size in self.sizes if size.problems_per_batch == self.chosen)

    @property
    def to_run(self) -> tuple[int, ...]:
        """The B_p to run at n* to answer the second step, or to refine its answer."""
        least, most = self.sizes[0], self.sizes[-1]
        if not any(size.stable for size in self.sizes):
            return (2 * most.problems_per_batch,)
        if not least.stable:
            return ()
        halves = (least.problems_per_batch // 2, least.problems_per_batch // 4)
        return tuple(size for size in halves[: 2 if least is most else 1] if size)

    def lines(self) -> list[str]:
        """The three steps, one line each, and their result."""
        own, n = self.used, self.n_star
        sure = f"P(best) {rounded(self.probability_best)}{f': {self.doubt}' if self.doubt else ''}"
        steps = f"M = {own.update_steps:,} update steps of n B_p = {n * own.problems_per_batch:,} rollouts"
        said = f"n = {n}, B_p = {own.problems_per_batch}, M = {own.update_steps:,}"
        sentence = f"At {short(self.budget)} {self.unit} use {said}"
        if self.smallest is None:
            sentence += "; whether a smaller B_p is stable is not known" if len(self.sizes) == 1 else "; none is stable"
        return [
            f"1. n* at {short(self.budget)} {self.unit}: {n}   {sure}",
            f"2. Smallest stable B_p of n = {n}: {self._second()}",
            f"3. The rest to M: {steps}",
            sentence,
        ]

    def _second(self) -> str:
        least, found, runs = self.sizes[0], self.smallest, max(SEEDS, *(size.runs for size in self.sizes))
        cells = " and ".join(f"B_p = {size}" for size in self.to_run)
        wanted = f"n = {self.n_star} with {cells}, {runs} seeds each to {short(self.reached)} rollouts"
        if len(self.sizes) == 1:
            more = f"; {wanted}, would say" if cells else ""
            return f"cannot be answered, since B_p = {least.problems_per_batch} alone was run ({least.words}){more}"
        others = [f"{size.problems_per_batch} ({size.words})" for size in self.sizes if not size.stable]
        failing = f"; not stable: {', '.join(others)}" if others else ""
        if found is None:
            return f"none{failing}; {wanted}, would say more"
        low, high = (signed(end) for end in found.loss_interval)
        said = f"{found.problems_per_batch} ({found.words})"
        if found.problems_per_batch != self.chosen:
            said += f", which gets {signed(found.loss)} less (95 %: {low} to {high}) than B_p = {self.chosen}"
        return f"{said}{failing}{f'; smaller was not run: {wanted}, would say more' if cells else ''}"

    def as_dict(self) -> dict[str, Any]:
        """The steps as ``--json`` writes them."""
        return {
            "n_star": self.n_star,
            "probability_best": self.probability_best,
            "doubt": self.doubt,
            "problems_per_batch": [{**asdict(size), "stable": size.stable} for size in self.sizes],
            "smallest_stable": self.smallest and self.smallest.problems_per_batch,
            "update_steps": self.used.update_steps,
            "to_run": [{"rollouts_per_problem": self.n_star, "problems_per_batch": size} for size in self.to_run],
            "lines": self.lines(),
        }


def three_steps(fitted: Fitted, budget: float, *, unit: str = "rollouts") -> ThreeSteps:
    """Split a budget by the paper's three steps; units as in ``Fitted.decide``.

    Raises:
        FrontierError: The fit is not in rollouts, or nothing can be said at the budget.
    """
    if fitted.unit != "rollouts":
        raise FrontierError(f"the fit is in {fitted.unit}, of which no number of update steps follows: fit in rollouts")
    answer = fitted.answer(budget, unit=unit)
    decision, chosen = answer.decision, answer.decision.chosen.cell
    # Options are sorted by regret, so the first one of each B_p has its best rate.
    same_n = [o for o in decision.options if o.cell.rollouts_per_problem == chosen.rollouts_per_problem]
    first = {o.cell.problems_per_batch: o for o in reversed(same_n) if o.cell.group == chosen.group}
    return ThreeSteps(
        budget=budget,
        unit=unit,
        n_star=chosen.rollouts_per_problem,
        doubt="" if answer.standing is Standing.DECIDED else answer.headline(),
        probability_best=sum(o.probability_best for o in same_n),
        sizes=tuple(_size(fitted, first[size], budget, unit) for size in sorted(first)),
        chosen=chosen.problems_per_batch,
        reached=fitted.largest,
    )


def _size(fitted: Fitted, option: Option, budget: float, unit: str) -> BatchSize:
    """What is known about the setting with one B_p."""
    where, counted = fitted.settings.index(option.cell), fitted.prepared.failures[option.cell]
    drawn = fitted.failure_draws[:, where]
    low, high = np.quantile(drawn, [0.025, 0.975]).tolist()
    return BatchSize(
        problems_per_batch=option.cell.problems_per_batch,
        failed=counted.failed,
        runs=counted.runs,
        failure=float(drawn.mean()),
        failure_interval=(low, high),
        loss=option.loss,
        loss_interval=option.loss_interval,
        update_steps=int(fitted.compute_of(option.cell, budget, unit) / option.cell.batch_rollouts),
    )
