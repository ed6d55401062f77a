"""The numbers of one unit: what plan.md asks, read off its posterior, and the other ways in which they can be read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import polars as pl
from isocompute.frontier import Frontier, FrontierError
from isocompute.frontier.notebook import Fit
from isocompute.frontier.posterior.runs import Setting

from .statistics import TAIL, Array, vertex
from .study import RATE_FACTORS
from .whole import Whole

LEAST_UPDATES = 64
"""No number rests on a point with fewer update steps."""
LATE = 1.5
"""Evaluations since a budget over this are those that measure it: the last two of the grid."""
Number = tuple[float, float, float]
"""Of a unit: its value, and the ends of its own 95 % interval."""
AS_PINNED, OTHER_DRAWS = "as pinned", "processor: other draws"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """A way to read n* off a unit.

    Attributes:
        factors: Rates that are looked at, as factors on the √B rule: of each n the one of highest reward at C_max.
        without: An n that is left out; 0 for none.
        rewards: ``expected``, failures included; ``healthy``, of runs that do not fail; or ``measured``, the mean of
            the last evaluations, those of failed runs included.
        highest: Whether n* is the n of highest reward, and not the vertex of a parabola.
    """

    factors: tuple[float, ...] = RATE_FACTORS
    without: int = 0
    rewards: str = "expected"
    highest: bool = False


SQRT, TUNED = Reading(factors=(1.0,)), Reading()
ANCHORS: Mapping[Reading, Mapping[str, tuple[float, ...]]] = {
    SQRT: {"anchor: × ½": (0.5,), "anchor: × 2": (2.0,)},
    TUNED: {"anchor: × ½, 1": (0.5, 1.0), "anchor: × 1, 2": (1.0, 2.0)},
}
"""The same with the anchor of the rates moved: a rate, or the pair of rates that was best of three."""


def readings(base: Reading) -> dict[str, Reading]:
    """What is pinned, then everything else that could have been: ``FIELD: what``."""
    return {
        AS_PINNED: base,
        **{name: replace(base, factors=factors) for name, factors in ANCHORS[base].items()},
        "edges: no n = 2": replace(base, without=2),
        "edges: no n = 32": replace(base, without=32),
        "estimator: highest n": replace(base, highest=True),
        "estimator: last evaluations": replace(base, rewards="measured"),
        "failures: left out": replace(base, rewards="healthy"),
    }


def summary(draws: Array) -> Number:
    """Median and interval of draws."""
    low, middle, high = np.quantile(draws, [TAIL, 0.5, 1 - TAIL])
    return float(middle), float(low), float(high)


@dataclass(frozen=True, kw_only=True)
class Posteriors:
    """The posterior of a unit's constant rates, and the vertices that are read off it.

    Attributes:
        seed: Of all draws.
    """

    whole: Whole
    seed: int = 0
    _drawn: dict[tuple[float, str, bool], Array] = field(default_factory=dict)

    @cached_property
    def fit(self) -> Fit:
        """Of the trunks and their further seeds."""
        return Frontier(self._of("trunk", "seed")).fit(seed=self.seed)

    @cached_property
    def quarter(self) -> Fit:
        """The same up to C_max/4."""
        early = self._of("trunk", "seed").filter(pl.col("rollouts") <= self.whole.budget / 4)
        return Frontier(early).fit(seed=self.seed)

    @cached_property
    def training(self) -> Fit:
        """Of the training problems."""
        return Frontier(self._training, metric="avg_at_16", split="train").fit(seed=self.seed)

    @cached_property
    def _training(self) -> pl.DataFrame:
        keys = ["run_id", "step", "rollouts", "rollouts_per_problem", "problems_per_batch", "seed", "learning_rate"]
        own = self.whole.training.filter(pl.col("kind").is_in(["trunk", "seed"]))
        return (
            own.group_by(keys, maintain_order=True)
            .agg(
                avg_at_16=pl.col("successes").sum() / pl.col("samples").sum(),
                questions=pl.len(),
                samples=pl.col("samples").first(),
            )
            .with_columns(problem_set=pl.lit(self.whole.unit.problem_set), split=pl.lit("train"))
        )

    def _of(self, *kinds: str) -> pl.DataFrame:
        return self.whole.evals.filter(pl.col("kind").is_in(kinds)).drop("kind", "factor")

    def cells(self, factor: float) -> list[Setting]:
        """The setting of each n at a factor on the √B rule."""
        own = self.whole.trunks.filter(pl.col("factor") == factor)
        rates = dict(own.select("rollouts_per_problem", "learning_rate").unique().iter_rows())
        return [self._cell(n, rates[n]) for n in self.whole.group_sizes]

    def _cell(self, n: int, rate: float, size: int | None = None) -> Setting:
        size = size or self.whole.problems_per_batch
        return Setting(rollouts_per_problem=n, problems_per_batch=size, learning_rate=rate)

    def rewards(self, cells: Sequence[Setting], budget: float, how: str, *, training: bool = False) -> Array:
        """Draws of the reward of settings at a budget, shape ``(draws, cells)``; one draw of what was measured.

        Args:
            how: As of ``Reading``.
        """
        if how == "measured" and training:
            return measured(self._training, "avg_at_16", cells, budget)
        if how == "measured":
            return measured(self._of("trunk", "seed", "equal batch"), "avg_at_4", cells, budget)
        fit, key = self.training if training else self.fit, (budget, how, training)
        if key not in self._drawn:
            self._drawn[key] = rewards(fit, fit.settings, budget, healthy=how == "healthy")
        return self._drawn[key][:, [fit.settings.index(cell) for cell in cells]]

    def factors(self, reading: Reading) -> list[float]:
        """Of each n the factor on the √B rule whose reward at C_max is highest."""
        budget = self.whole.budget
        ends = [self.rewards(self.cells(f), budget, reading.rewards).mean(axis=0) for f in reading.factors]
        return [reading.factors[k] for k in np.argmax(ends, axis=0)]

    def chosen(self, reading: Reading) -> list[Setting]:
        """The settings of these factors, without the n that is left out."""
        every = [self.cells(factor)[k] for k, factor in enumerate(self.factors(reading))]
        return [cell for cell in every if cell.rollouts_per_problem != reading.without]

    @property
    def tuned(self) -> list[Setting]:
        """Of each n the setting whose fitted reward at C_max is highest, failures included."""
        return self.chosen(TUNED)

    def vertex(self, reading: Reading, budget: float, *, since: float = 0.0, training: bool = False) -> Array:
        """Draws of v(C), from every n with 64 updates by then, or by an earlier budget.

        Args:
            training: On the training problems, at the rates that are best on validation.
        """
        cells = self.chosen(reading)
        return vertex_of(
            cells, self.rewards(cells, budget, reading.rewards, training=training), since or budget, reading
        )

    def branches(self, reading: Reading, budget: int, *, since: float = 0.0) -> Array:
        """The same of the ends of the decay branches: draws about each evaluation, of its sampling and its seed."""
        ends = self.whole.evals.filter((pl.col("kind") == "branch") & (pl.col("rollouts") == budget))
        ends = ends.filter(pl.col("rollouts_per_problem") != reading.without).sort("rollouts_per_problem")
        cells = [self._cell(n, rate) for n, rate in ends.select("rollouts_per_problem", "learning_rate").iter_rows()]
        reward, trials = ends["avg_at_4"].to_numpy(), (ends["questions"] * ends["samples"]).to_numpy()
        model, theta = self.fit.posterior.model, self.fit.posterior.theta
        seeds = model.deviation(theta, "seeds")[:, :1] * (reward - model.start(theta).mean(axis=1, keepdims=True))
        error = np.hypot(np.sqrt(reward * (1 - reward) / trials), seeds)
        drawn = reward + error * np.random.default_rng(budget + self.seed).standard_normal(error.shape)
        return vertex_of(cells, drawn, since or budget, reading)

    def exponent(self, reading: Reading) -> Number:
        """Exponent of B in the rate that is best of those that were run."""
        cells = self.chosen(reading)
        batch, rate = (np.log2([getattr(c, name) for c in cells]) for name in ("batch_rollouts", "learning_rate"))
        value = float(np.polyfit(batch, rate, 1)[0])
        return value, value, value

    @cached_property
    def _of_equal_batches(self) -> Fit:
        return Frontier(self._of("trunk", "seed", "equal batch")).fit(seed=self.seed)

    def equal_batches(self, how: str = "expected", *, only: int = 0) -> Array | None:
        """Draws of the reward at C_max of cells with larger B_p less that of the n of equal B; None without such.

        Args:
            how: As of ``Reading``.
            only: The one larger n that is looked at; 0 for all.
        """
        more = self.whole.evals.filter((pl.col("kind") == "equal batch") & (pl.col("rollouts") == self.whole.budget))
        columns = ("rollouts_per_problem", "problems_per_batch", "learning_rate")
        wide = [self._cell(n, rate, size) for n, size, rate in more.select(columns).iter_rows()]
        equal = [self._cell(c.batch_rollouts // self.whole.problems_per_batch, c.learning_rate or 0.0) for c in wide]
        if not wide:
            return None
        drawn = []
        for cells in (wide, equal):
            if how == "measured":
                drawn.append(self.rewards(cells, self.whole.budget, how))
            else:
                drawn.append(rewards(self._of_equal_batches, cells, self.whole.budget, healthy=how == "healthy"))
        kept = [only in (0, cell.rollouts_per_problem) for cell in equal]
        return np.asarray((drawn[0] - drawn[1])[:, kept].mean(axis=1))

    def prescribed(self, always: Sequence[int], how: str = "expected") -> tuple[dict[str, float], dict[str, Array]]:
        """As of ``prescribed``, among all constant rates, with n = 8 at each rate as further rivals."""
        every = [cell for factor in RATE_FACTORS for cell in self.cells(factor)]
        usual = {cell.rollouts_per_problem: cell for cell in self.cells(1.0)}
        fixed = {f"n = 8 × {factor:g}": self.cells(factor)[self.whole.group_sizes.index(8)] for factor in RATE_FACTORS}
        drawn = self.rewards(every, self.whole.budget, how)
        return prescribed(self.fit.largest, self.quarter, every, drawn, always=always, usual=usual, rivals=fixed)


def prescribed(
    budget: float,
    quarter: Fit,
    every: Sequence[Setting],
    drawn: Array,
    *,
    always: Sequence[int],
    usual: Mapping[int, Setting],
    rivals: Mapping[str, Setting] | None = None,
) -> tuple[dict[str, float], dict[str, Array]]:
    """Regret at C_max of what the cheapest quarter prescribes and of rivals, and draws of its regret less theirs.

    Args:
        drawn: Draws of the reward of every setting at the budget.
        always: Every n that a rival always takes, at the rate that was best in the quarter.
        usual: The setting of each n where the quarter has no curve of it.
        rivals: Further settings that are always taken.
    """
    so_far = quarter.decide(quarter.largest)
    try:
        chosen = quarter.decide(budget).chosen.cell
    except FrontierError:
        # Nothing is known so far beyond the data.
        chosen = so_far.chosen.cell
    first = {option.cell.rollouts_per_problem: option.cell for option in reversed(so_far.options)}
    taken = {"prescribed": chosen, "best so far": so_far.chosen.cell}
    taken |= {f"n = {n}": first.get(n, usual[n]) for n in always} | dict(rivals or {})
    own = {name: drawn[:, every.index(cell)] for name, cell in taken.items()}
    best = drawn.mean(axis=0).max()
    regret = {name: max(0.0, float(best - reward.mean())) for name, reward in own.items()}
    return regret, {name: reward - own["prescribed"] for name, reward in own.items()}


def vertex_of(cells: Sequence[Setting], drawn: Array, budget: float, reading: Reading = TUNED) -> Array:
    """Draws of n* in log2 n, from every n with 64 updates by some budget, bounded by all n.

    Args:
        drawn: Draws of their rewards at C, shape ``(draws, cells)``.
        budget: By which the updates are made.
    """
    at = np.log2([cell.rollouts_per_problem for cell in cells])
    used = [k for k, cell in enumerate(cells) if budget / cell.batch_rollouts >= LEAST_UPDATES]
    if reading.highest:
        return np.asarray(at[used][drawn[:, used].argmax(axis=1)])
    return vertex(at[used], drawn[:, used], (float(at.min()), float(at.max())))


def measured(evals: pl.DataFrame, metric: str, cells: Sequence[Setting], budget: float) -> Array:
    """Mean of the last evaluations of each setting's runs by a budget, shape ``(1, cells)``."""
    keys = ["rollouts_per_problem", "problems_per_batch", "learning_rate"]
    late = evals.filter(pl.col("rollouts").is_between(budget / LATE, budget))
    means = {tuple(key): value for *key, value in late.group_by(keys).agg(pl.col(metric).mean()).iter_rows()}
    return np.array([[means[c.rollouts_per_problem, c.problems_per_batch, c.learning_rate] for c in cells]])


def rewards(fit: Fit, cells: Sequence[Setting], budget: float, *, healthy: bool = False) -> Array:
    """Draws of the reward of settings at a budget, shape ``(draws, cells)``.

    A setting whose runs all failed has the curve that is predicted from the others, less what a failure costs in as
    many draws as its probability says: one collapse is not certain.

    Args:
        healthy: Of runs that do not fail; else failures included.
    """
    drawn = (fit.healthy if healthy else fit.whole)(np.array([budget]))[:, :, 0]
    return np.asarray(drawn[:, [fit.settings.index(cell) for cell in cells]])
