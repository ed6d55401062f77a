"""For notebooks: a sweep from files or from a data frame of any library, and its fit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import narwhals as nw
import polars as pl

from ..data.reading import read_evals
from ..errors import FrontierError
from ..posterior.evaluations import runs_of
from ..posterior.posterior import posterior
from ..posterior.preparation import prepare
from ..posterior.priors import Priors
from ..posterior.runs import Cell
from .fitted import Fitted


class Frontier:
    """The evaluations of a sweep, to be fitted.

    Args:
        evals: An ``evals`` table as a data frame of pandas, polars, pyarrow or whatever narwhals reads.
        metric: Metric column.
        unit: Unit of compute.
        split: Split evaluated.
        problem_set: Problem set, needed when there are several.
        group: A further column that tells runs apart, such as a recipe.

    Raises:
        FrontierError: It is no data frame.
    """

    def __init__(
        self, evals: Any, *, metric: str = "avg_at_4", unit: str = "rollouts", split: str = "validation",
        problem_set: str | None = None, group: str | None = None,
    ) -> None:  # fmt: skip
        try:
            frame = nw.from_native(evals, eager_only=True)
        except TypeError:
            raise FrontierError(
                f"a {type(evals).__name__} is no data frame: give one of pandas, polars or pyarrow, or use "
                "Frontier.read(PATH)"
            ) from None
        self.evals = frame.to_polars()
        self.metric, self.unit, self.split, self.problem_set, self.group = metric, unit, split, problem_set, group

    @classmethod
    def read(cls, *sources: str | Path, **settings: Any) -> Frontier:
        """Read files, folders, tracking URIs, ``mlflow:EXPERIMENT`` or ``runs:/RUN_ID``.

        Args:
            sources: What holds ``evals`` tables.
            settings: As of the class.
        """
        wanted = {name: settings[name] for name in ("metric", "unit", "group") if name in settings}
        return cls(read_evals(sources, **wanted), **settings)

    def fit(self, *, priors: Priors | None = None, seed: int = 0) -> Fitted:
        """Fit all runs together.

        Args:
            priors: What is expected before the data, such as how much seeds differ where there is one.
            seed: Fixes the draws.

        Raises:
            FrontierError: The table cannot be fitted; the message says why.
        """
        runs = runs_of(
            self.evals, metric=self.metric, unit=self.unit, split=self.split, problem_set=self.problem_set,
            group=self.group,
        )  # fmt: skip
        prepared = prepare(runs)
        return Fitted(
            metric=self.metric, unit=self.unit, prepared=prepared, seed=seed,
            posterior=posterior(prepared.runs, priors=priors, seed=seed),
            tokens_per_rollout=self._lengths(prepared.runs.cells),
        )  # fmt: skip

    def _lengths(self, cells: tuple[Cell, ...]) -> tuple[float, ...]:
        """Mean tokens of a response, over all runs of an n and B_p; nothing where one of them has no count."""
        if not {"tokens", "rollouts"} <= set(self.evals.columns):
            return ()
        keys = ["rollouts_per_problem", "problems_per_batch"]
        whole = self.evals.filter(pl.col("rollouts") > 0).group_by(keys).agg(
            (pl.col("tokens").sum() / pl.col("rollouts").sum()).alias("length")
        )  # fmt: skip
        known = {(n, batch): length for n, batch, length in whole.select(*keys, "length").iter_rows() if length}
        lengths = [known.get((c.rollouts_per_problem, c.problems_per_batch)) for c in cells]
        return tuple(x for x in lengths if x is not None) if None not in lengths else ()

    def __repr__(self) -> str:
        return f"Frontier({len(self.evals)} evaluations of {self.metric}, not fitted: .fit())"
