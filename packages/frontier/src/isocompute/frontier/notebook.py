"""A sweep and its fit in Python: from files or from a data frame of any library."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import narwhals as nw
import numpy as np
import polars as pl

from .answers import fitted
from .answers.checks import BestRates, LeftOut, best_rates, left_out
from .answers.fitted import Fitted
from .answers.next import plan
from .data.reading import read_evals
from .errors import FrontierError
from .posterior.decision import Plan
from .posterior.families import Priors
from .posterior.health import Prepared, luck_of, prepare
from .posterior.posterior import Posterior, posterior
from .posterior.runs import POPULATION, Run, Setting, runs_of
from .show.curves import draw_best, draw_frontier, draw_regret
from .show.report import write_report


class Fit(Fitted):
    """The fit of a sweep, with what a notebook does with it; the attributes are those of ``Fitted``."""

    def next(self, compute: float, *, tell: tuple[int, int] | None = None) -> Plan:
        """Plan what to run before deciding about a budget, ranked by the expected fall of regret per rollout.

        Args:
            tell: Two n that seeds are to tell apart; by default those of the first two settings.
        """
        return plan(self, compute, tell=tell)

    def left_out(self) -> tuple[LeftOut, ...]:
        """Each n predicted from the runs of the others; takes as many short fits."""
        return left_out(self)

    def best_rates(self, compute: float) -> BestRates | None:
        """The best learning rate of each n, and how it grows with B; None where each n was run at one."""
        return best_rates(self, compute)

    def plot_frontier(self, ax: Any = None) -> Any:
        """Curves, and the setting chosen at each budget; draws on these axes and returns them."""
        return _on(ax, draw_frontier, self)

    def plot_regret(self, ax: Any = None) -> Any:
        """Expected regret by n at some budgets; as of ``plot_frontier``."""
        return _on(ax, draw_regret, self)

    def plot_n_star(self, ax: Any = None) -> Any:
        """n* over compute, over P(best) of every n; as of ``plot_frontier``."""
        return _on(ax, draw_best, self)

    def report(self, folder: str | Path) -> Path:
        """Write the figures and ``report.html``."""
        return write_report(self, folder)

    def save(self, folder: str | Path) -> None:
        """Write it, to be read by ``Frontier.load``; the same fit gives the same bytes."""
        fitted.save(self, folder)


class Frontier:
    """The evaluations of a sweep, to be fitted.

    Args:
        evals: An ``evals`` table as a data frame of pandas, polars, pyarrow or whatever narwhals reads.
        metric: Metric column.
        group: A further column that tells runs apart, such as a recipe.
        population: Columns whose values are draws, as far as there are such columns: the answer is for another base
            model like those that were run. ``("base_model", "problem_set")`` takes problem sets as draws too.

    Raises:
        FrontierError: It is no data frame.
    """

    def __init__(
        self,
        evals: Any,
        *,
        metric: str = "avg_at_4",
        unit: str = "rollouts",
        split: str = "validation",
        problem_set: str | None = None,
        group: str | None = None,
        population: tuple[str, ...] = POPULATION,
    ) -> None:
        try:
            frame = nw.from_native(evals, eager_only=True)
        except TypeError:
            raise FrontierError(
                f"a {type(evals).__name__} is no data frame: give one of pandas, polars or pyarrow, or use "
                "Frontier.read(PATH)"
            ) from None
        self.evals = frame.to_polars()
        self.metric, self.unit, self.split, self.problem_set, self.group = metric, unit, split, problem_set, group
        self.population = population

    @classmethod
    def read(cls, *sources: str | Path, **settings: Any) -> Frontier:
        """Read files, folders, tracking URIs, ``mlflow:EXPERIMENT`` or ``runs:/RUN_ID``.

        Args:
            settings: As of the class.
        """
        wanted = {name: settings[name] for name in ("metric", "unit", "group") if name in settings}
        return cls(read_evals(sources, **wanted), **settings)

    @staticmethod
    def load(folder: str | Path) -> Fit:
        """A fit that was saved.

        Raises:
            FrontierError: The folder holds no fit, or a damaged one.
        """
        found = fitted.load_fitted(folder)
        return Fit(**{field.name: getattr(found, field.name) for field in fields(found)})

    def fit(self, *, priors: Priors | None = None, seed: int = 0, pass_rates: pl.DataFrame | None = None) -> Fit:
        """Fit all runs together.

        Args:
            priors: What is expected before the data, such as how much seeds differ where there is one.
            pass_rates: A ``pass_rates`` table of the same evaluations: with it errors are those of the metric, question
                by question, and intervals include the luck of which questions are asked.

        Raises:
            FrontierError: The table cannot be fitted; the message says why.
        """
        runs, prepared = self._prepared(pass_rates)
        fitted = posterior(prepared.runs, priors=priors, seed=seed)
        if pass_rates is not None:
            used = [run for run, health in zip(runs, prepared.health, strict=True) if health.fitted]
            luck = luck_of(used, fitted, rng=np.random.default_rng([seed, 4]))
            fitted = replace(fitted, luck=luck)
        return Fit(
            metric=self.metric,
            unit=self.unit,
            prepared=prepared,
            seed=seed,
            posterior=fitted,
            tokens_per_rollout=self._lengths(prepared.runs.cells),
            caveats=("problems that are not trained on: these rewards are of training",) if self._of_training else (),
            of_training=self._of_training,
        )

    def fit_separately(self, *, priors: Priors | None = None, seed: int = 0) -> dict[Setting, Posterior]:
        """Fit each setting alone, so that none learns from another: nothing is decided from this.

        Args:
            priors: As of ``fit``.
        """
        runs = self._prepared(None)[1].runs
        alone = [runs.only(np.flatnonzero(runs.cell == k)) for k in range(len(runs.cells))]
        return {own.cells[0]: posterior(own, priors=priors, seed=seed) for own in alone}

    def _prepared(self, pass_rates: pl.DataFrame | None) -> tuple[list[Run], Prepared]:
        runs = runs_of(
            self.evals,
            metric=self.metric,
            unit=self.unit,
            split=self.split,
            problem_set=self.problem_set,
            group=self.group,
            population=self.population,
            pass_rates=pass_rates,
        )
        return runs, prepare(runs, unit=self.unit)

    @property
    def _of_training(self) -> bool:
        """Whether the rewards are those of training, of other problems at each point."""
        return set(self.evals["split"]) == {"train"}

    def _lengths(self, cells: tuple[Setting, ...]) -> tuple[float, ...]:
        """Mean tokens of a response, over all runs of an n and B_p; nothing where one of them has no count."""
        if not {"tokens", "rollouts"} <= set(self.evals.columns):
            return ()
        keys = ["rollouts_per_problem", "problems_per_batch"]
        whole = (
            self.evals.filter(pl.col("rollouts") > 0)
            .group_by(keys)
            .agg((pl.col("tokens").sum() / pl.col("rollouts").sum()).alias("length"))
        )
        known = {(n, batch): length for n, batch, length in whole.select(*keys, "length").iter_rows() if length}
        lengths = [known.get((c.rollouts_per_problem, c.problems_per_batch)) for c in cells]
        return tuple(x for x in lengths if x is not None) if None not in lengths else ()

    def __repr__(self) -> str:
        return f"Frontier({len(self.evals)} evaluations of {self.metric}, not fitted: .fit())"


def _on(ax: Any, draw: Any, fitted: Fitted) -> Any:
    """Draw on some axes, or on those of a new figure, which a notebook shows."""
    if ax is not None:
        return draw(fitted, ax)
    from matplotlib import pyplot

    return draw(fitted, pyplot.subplots(figsize=(6.2, 3.9), layout="constrained")[1])
