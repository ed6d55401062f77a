"""A sweep and its fit in Python: read from files or from any library's data frame, and saved to a folder.

A fit on disk is ``posterior.json``, ``draws.parquet`` and ``runs.parquet``.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, fields, replace
from html import escape
from pathlib import Path
from typing import Any

import narwhals as nw
import numpy as np
import polars as pl

from .answers import paper
from .answers.fitted import Fitted
from .answers.next import plan
from .contract.files import write_text
from .data.curves import UNITS
from .data.reading import read_evals, short, with_gpu_hours, write_parquet
from .errors import FrontierError
from .posterior.decision import Plan
from .posterior.density import Priors
from .posterior.health import Failures, Finding, Health, Kind, Prepared, luck_of, prepare
from .posterior.model import Model
from .posterior.posterior import Posterior, posterior
from .posterior.runs import POPULATION, Run, Runs, Setting, runs_of
from .show.drawing import draw_best, draw_frontier, draw_regret
from .show.report import write_report

DOCUMENT, DRAWS, RUNS = "posterior.json", "draws.parquet", "runs.parquet"
PLAIN = ("metric", "unit", "seed", "tokens_per_rollout", "hours_per_rollout", "caveats", "of_training", "about")
"""Attributes of a fit that its document stores unchanged."""


class Fit(Fitted):
    """The fit of a sweep, with methods for notebooks; its attributes are those of ``Fitted``."""

    def next(self, compute: float, *, tell: tuple[int, int] | None = None) -> Plan:
        """Plan what to run before deciding about a budget, ranked by the expected reduction of regret per rollout.

        Args:
            tell: Two n for seeds to tell apart; by default those of the first two settings.
        """
        return plan(self, compute, tell=tell)

    def plot_frontier(self, ax: Any = None) -> Any:
        """Draw the curves, and the setting chosen at each budget, on these axes, and return the axes."""
        return _on(ax, draw_frontier, self)

    def plot_regret(self, ax: Any = None, *, budget: float | None = None) -> Any:
        """Draw expected regret by n at a budget, by default the largest that was measured, and at smaller ones."""
        return _on(ax, draw_regret, self, budget=budget)

    def plot_n_star(self, ax: Any = None) -> Any:
        """Draw n* over compute, over P(best) of every n, like ``plot_frontier``."""
        return _on(ax, draw_best, self)

    def report(self, folder: str | Path, *, budget: float | None = None, facts: Sequence[tuple[str, str]] = ()) -> Path:
        """Write the figures and ``report.html``, with the answer at a budget and facts such as a date."""
        return write_report(self, folder, budget=budget, facts=facts)

    def save(self, folder: str | Path) -> None:
        """Write the fit for ``Frontier.load``; equal fits give equal bytes.

        Raises:
            FrontierError: The folder cannot be written to.
        """
        folder = Path(folder)
        model, luck = self.posterior.model, self.posterior.luck
        document = {name: getattr(self, name) for name in PLAIN} | {
            "split_r_hat": self.posterior.split_r_hat,
            "error_is_known": model.runs.error_is_known,
            "priors": asdict(model.priors),
            "cells": [asdict(c) for c in model.runs.cells],
            "bases": model.runs.bases,
            "notes": self.prepared.notes,
            "health": [{**asdict(h), "spikes": [int(k) for k in h.spikes]} for h in self.prepared.health],
            "failures": [
                {"cell": asdict(c), **asdict(f), "runs": int(f.runs)} for c, f in self.prepared.failures.items()
            ],
            "questions_sampled": luck is not None,
        }
        columns = {f"x{k}": values for k, values in enumerate(self.posterior.theta.T)}
        if luck is not None:
            columns |= {f"luck{k}": values for k, values in enumerate(luck.reshape(len(luck), -1).T)}
        write_parquet(pl.DataFrame(columns), folder / DRAWS)
        write_parquet(_runs_table(model.runs), folder / RUNS)
        # Written last, since it signals that the other files are complete.
        write_text(folder / DOCUMENT, json.dumps(document, indent=1, sort_keys=True) + "\n", error=FrontierError)


def load_fitted(folder: str | Path) -> Fit:
    """Load a saved fit.

    Raises:
        FrontierError: The folder holds no fit, or a damaged one.
    """
    folder = Path(folder)
    if not (folder / DOCUMENT).is_file() and (folder / paper.DOCUMENT).is_file():
        raise FrontierError(f"{folder}: the paper's method has no intervals to prescribe from: fit without it")
    if not (folder / DOCUMENT).is_file():
        what = f"holds no {DOCUMENT}" if folder.is_dir() else "is no folder" if folder.exists() else "is not there"
        raise FrontierError(
            f"{folder}: {what}; a fit is a folder that `isocompute-frontier fit RUNS --out FOLDER` wrote"
        )
    try:
        document = json.loads((folder / DOCUMENT).read_text())
        if absent := [each.name for each in fields(Priors) if each.name not in document["priors"]]:
            # Otherwise draws of another model would be read as draws of this one.
            raise ValueError(f"priors lack {', '.join(absent)}, which are those of other curves")
        priors = Priors(**{name: _frozen(value) for name, value in document["priors"].items()})
        each = pl.read_parquet(folder / RUNS).partition_by("run", maintain_order=True)
        runs = Runs.of([_run(own, document) for own in each])
        model = Model(runs=runs, priors=priors)
        draws = pl.read_parquet(folder / DRAWS)
        theta, luck = draws.select(pl.col("^x.*$")).to_numpy(), None
        if document["questions_sampled"]:
            luck = draws.select(pl.col("^luck.*$")).to_numpy().reshape(len(draws), 2, -1)
        if theta.shape[1] != model.size:
            raise ValueError(f"{theta.shape[1]} columns of draws for {model.size} numbers")
        prepared = Prepared(
            runs=runs,
            health=tuple(_health(h) for h in document["health"]),
            notes=_frozen(document["notes"]),
            failures={Setting(**f.pop("cell")): Failures(**f) for f in document["failures"]},
        )
        return Fit(
            prepared=prepared,
            posterior=Posterior(model=model, theta=theta, split_r_hat=document["split_r_hat"], luck=luck),
            **{name: _frozen(document[name]) for name in PLAIN},
        )
    except (OSError, LookupError, TypeError, ValueError, RecursionError, pl.exceptions.PolarsError) as error:
        what = f"no {error}" if isinstance(error, KeyError) else str(error).splitlines()[0]
        raise FrontierError(f"{folder}: the posterior is damaged or of another version ({what}): fit again") from None


class Frontier:
    """The evaluations of a sweep, ready to fit.

    Args:
        evals: An ``evals`` table as a data frame of pandas, polars, pyarrow or anything that narwhals reads.
        group: A further column that distinguishes runs, such as a recipe.
        population: Columns whose values are draws from a population; absent ones are ignored. The answer is then for
            another base model like those that were run. ``("base_model", "problem_set")`` also treats problem sets as
            draws.

    Raises:
        FrontierError: It is not a data frame.
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
        self.metric, self.unit, self.problem_set = metric, unit, problem_set
        chosen = {"metric": metric, "unit": unit, "split": split, "problem_set": problem_set, "group": group}
        self._chosen: dict[str, Any] = {**chosen, "population": population}

    @classmethod
    def read(cls, *sources: str | Path, **settings: Any) -> Frontier:
        """Read files, folders, tracking URIs, ``mlflow:EXPERIMENT`` or ``runs:/RUN_ID``, with the class's settings."""
        wanted = {name: settings[name] for name in ("metric", "unit", "group") if name in settings}
        return cls(read_evals(sources, **wanted), **settings)

    load = staticmethod(load_fitted)
    """Load a fit that was saved to a folder."""

    def fit(
        self,
        *,
        priors: Priors | None = None,
        seed: int = 0,
        pass_rates: pl.DataFrame | None = None,
        timings: pl.DataFrame | None = None,
    ) -> Fit:
        """Fit all runs together.

        Args:
            priors: Expectations before the data, such as how much seeds differ if there is only one.
            pass_rates: A ``pass_rates`` table of the same evaluations. With it, errors are computed for the metric,
                question by question, and intervals include the choice of questions.
            timings: A ``timings`` table of the same runs. With it, a fit in rollouts answers for budgets in GPU-hours.

        Raises:
            FrontierError: The table cannot be fitted; the message says why.
        """
        runs, prepared = self._prepared(pass_rates)
        fitted = posterior(prepared.runs, priors=priors, seed=seed)
        if pass_rates is not None:
            used = [run for run, health in zip(runs, prepared.health, strict=True) if health.fitted]
            luck = luck_of(used, fitted, rng=np.random.default_rng([seed, 4]))
            fitted = replace(fitted, luck=luck)
        hours: tuple[float, ...] = ()
        if timings is not None and self.unit == "rollouts":
            hours = self._per_rollout(with_gpu_hours(self.evals, timings), "gpu_hours", prepared.runs.cells)
        return Fit(
            metric=self.metric,
            unit=self.unit,
            prepared=prepared,
            seed=seed,
            posterior=fitted,
            tokens_per_rollout=self._per_rollout(self.evals, "tokens", prepared.runs.cells),
            hours_per_rollout=hours,
            caveats=("problems that are not trained on: these rewards are of training",) if self._of_training else (),
            of_training=self._of_training,
            about=self._about(),
        )

    def fit_separately(self, *, priors: Priors | None = None, seed: int = 0) -> dict[Setting, Posterior]:
        """Fit each setting alone, so that none learns from another; no decision uses this."""
        runs = self._prepared(None)[1].runs
        alone = [runs.only(np.flatnonzero(runs.cell == k)) for k in range(len(runs.cells))]
        return {own.cells[0]: posterior(own, priors=priors, seed=seed) for own in alone}

    def _prepared(self, pass_rates: pl.DataFrame | None) -> tuple[list[Run], Prepared]:
        runs = runs_of(self.evals, pass_rates=pass_rates, **self._chosen)
        return runs, prepare(runs, unit=self.unit)

    def _about(self) -> tuple[tuple[str, str], ...]:
        """What distinguishes these runs from others: problem sets, base models, and what training them cost."""
        evals, found = self.evals, []
        for column, words in (("problem_set", "problem set"), ("base_model", "base model")):
            names = evals[column].drop_nulls().unique().sort().to_list() if column in evals.columns else []
            names = [self.problem_set] if column == "problem_set" and self.problem_set else names
            if names:
                found.append((f"{words}{'s' if len(names) > 1 else ''}", ", ".join(map(str, names))))
        unit = UNITS[self.unit]
        if "run_id" in evals.columns:
            spent = float(evals.group_by("run_id").agg(pl.col(unit).max())[unit].sum())
            count = evals["run_id"].n_unique()
            found.append(("spent", f"{short(spent)} {self.unit.replace('_', ' ')} by {count} runs"))
        return tuple(found)

    @property
    def _of_training(self) -> bool:
        """Whether the rewards are training rewards, on different problems at each point."""
        return set(self.evals["split"]) == {"train"}

    def _per_rollout(self, evals: pl.DataFrame, column: str, cells: tuple[Setting, ...]) -> tuple[float, ...]:
        """Mean cost per rollout over all runs of each n and B_p; empty if one of them has no count."""
        if not {column, "rollouts"} <= set(evals.columns):
            return ()
        whole = (
            evals.filter(pl.col("rollouts") > 0)
            .group_by("rollouts_per_problem", "problems_per_batch")
            .agg(pl.col(column).sum() / pl.col("rollouts").sum())
        )
        known = {(n, batch): each for n, batch, each in whole.iter_rows() if each}
        costs = [known.get((c.rollouts_per_problem, c.problems_per_batch)) for c in cells]
        return tuple(x for x in costs if x is not None) if None not in costs else ()

    def __repr__(self) -> str:
        return f"Frontier({len(self.evals)} evaluations of {self.metric}, not fitted: .fit())"

    def _repr_html_(self) -> str:
        facts = "; ".join(f"{name}: {value}" for name, value in self._about())
        return f"<p>{escape(repr(self))}</p><p>{escape(facts)}</p>"


def _on(ax: Any, draw: Any, fitted: Fitted, **given: Any) -> Any:
    """Draw on the given axes, or on those of a new figure, which a notebook shows."""
    if ax is not None:
        return draw(fitted, ax, **given)
    from matplotlib import pyplot

    return draw(fitted, pyplot.subplots(figsize=(6.2, 3.9), layout="constrained")[1], **given)


def _runs_table(runs: Runs) -> pl.DataFrame:
    row, point = np.nonzero(runs.seen)
    columns: dict[str, Any] = {
        "run": row,
        "cell": runs.cell[row],
        "base": runs.base[row],
        "compute": runs.compute[row, point],
        "reward": runs.reward[row, point],
        "error": runs.error[row, point],
    }
    if runs.trials is not None:
        columns["trials"] = runs.trials[row, point]
    return pl.DataFrame(columns)


def _run(own: pl.DataFrame, document: dict[str, Any]) -> Run:
    """The part of a saved run that its curve belongs to."""
    arrays = {name: own[name].to_numpy() for name in ("compute", "reward", "error", "trials") if name in own.columns}
    return Run(
        name="",
        run_id=None,
        cell=Setting(**document["cells"][own["cell"][0]]),
        seed=0,
        error_is_known=document["error_is_known"],
        base=document["bases"][own["base"][0]],
        **arrays,
    )


def _frozen(value: Any) -> Any:
    """A document's value with its lists turned back into tuples."""
    return tuple(map(_frozen, value)) if isinstance(value, list) else value


def _health(values: dict[str, Any]) -> Health:
    findings = tuple(Finding(kind=Kind(f["kind"]), evidence=f["evidence"]) for f in values["findings"])
    return Health(**{**values, "findings": findings, "spikes": tuple(values["spikes"])})
