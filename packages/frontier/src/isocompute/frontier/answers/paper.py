"""The IsoCompute Playbook's own method (arXiv 2603.12151, section 4): ``fit --method paper``.

The method takes record-breaking points in bins of reward and fits one monotone curve per (n, B_p) by least squares. The
upper envelope is f(C) = max of R over all compute ≤ C, and n*(C) is the n that attains it; a log2-sigmoid is fitted
through n*(C). There are no intervals, as in the paper. A run can be stopped before its budget is spent, so a curve
still offers its last reward after its data end, and the envelope never falls. The paper's text fits the records and
says that all evaluations give the same curve. The lines in its figures are those of all evaluations (on its points,
records lie 0.02 to 0.05 higher). So all evaluations are fitted unless ``points`` is ``records``, and the results for
records are given beside them.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from ..contract.files import write_text
from ..data.curves import UNITS, Array, chosen_rows, not_beyond, records, refuse, smoothed
from ..data.reading import amount, short, write_parquet
from ..errors import Flag, FrontierError
from ..fitting.nstar import Sigmoid, fit_n_star
from ..fitting.point import FORMS, Parameters, fit_form
from ..posterior.runs import Setting

FORM = "exp"
"""The form in the paper's figures: R = A − D·exp(−C/τ)."""
FALL = 0.05
"""A run has collapsed if its last quarter of evaluations lies this much below its best quarter."""
STABLE = 0.01
"""Largest acceptable loss of reward."""
GRID_POINTS = 120
TOO_FEW = "fewer than three evaluations at different compute"
DOCUMENT = "fits.json"
SIZES = ("rollouts_per_problem", "problems_per_batch")


@dataclass(frozen=True, slots=True, kw_only=True)
class PaperConfig:
    """Settings of the paper's method.

    Attributes:
        form: One of ``FORMS``.
        unit: ``rollouts``, ``tokens``, ``update_steps`` or ``gpu_hours`` (join ``timings`` for these).
        problem_set: Needed if there are several.
        points: ``all`` or ``records``: the record-breaking points, which are biased upward.
        bin_width: Width of a record's bin of reward.
        window: Points in a centred running mean before records are sought; 1 uses the raw points.
        group: A further column of the table; runs that differ in it have separate curves.

    Raises:
        FrontierError: The form or the points are unknown, the bin width is negative, or the window is not a positive
            odd number.
    """

    form: str = FORM
    metric: str = "avg_at_4"
    unit: str = "rollouts"
    split: str = "validation"
    problem_set: str | None = None
    points: str = "all"
    bin_width: float = 0.005
    window: int = 1
    group: str | None = None

    def __post_init__(self) -> None:
        if self.form not in FORMS:
            raise FrontierError(f"the form {self.form!r} is unknown; it must be one of {', '.join(FORMS)}")
        if not (np.isfinite(self.bin_width) and self.bin_width >= 0):
            raise FrontierError(f"bin_width is {self.bin_width}; it must be 0 or more")
        if self.window < 1 or self.window % 2 == 0:
            raise FrontierError(f"window is {self.window}; it must be 1, 3, 5, …")
        if self.points not in ("all", "records"):
            raise FrontierError(f"points is {self.points!r}; it must be all or records")


@dataclass(frozen=True, slots=True, kw_only=True)
class PaperCurve:
    """The evaluations of all runs of one setting, sorted by seed and compute, as the paper fits them.

    Attributes:
        seed: Index of the run of each evaluation: 0, 1, …
        parameters: The fit; None if there are too few evaluations.
        records_gap: At the last record, the fit of records minus the fit of all points.
    """

    cell: Setting
    compute: Array
    reward: Array
    seed: NDArray[np.int64]
    parameters: Parameters | None = None
    records_gap: float | None = None

    @property
    def runs(self) -> list[NDArray[np.int64]]:
        """Indices of the evaluations of each run."""
        return [np.flatnonzero(self.seed == s) for s in range(int(self.seed.max()) + 1)]

    @property
    def support(self) -> tuple[float, float]:
        """Compute of the first evaluation after the start, and of the last that every seed reached."""
        positive = self.compute[self.compute > 0]
        if not len(positive):
            return (0.0, 0.0)
        return float(positive.min()), min(float(self.compute[run].max()) for run in self.runs)

    def records(self, *, bin_width: float, window: int = 1) -> tuple[Array, Array]:
        """Compute and reward of each run's record-breaking points, and of the points at zero compute.

        With a window, these are records and values of the running mean: a smoothed curve has less noise to break
        records with.
        """
        rewards = self.reward.copy()
        kept = [np.flatnonzero(self.compute == 0)]
        for run in self.runs:
            own = run[self.compute[run] > 0]
            rewards[own] = smoothed(self.reward[own], window)
            kept.append(own[records(self.compute[own], rewards[own], bin_width=bin_width)])
        chosen = np.unique(np.concatenate(kept))
        return self.compute[chosen], rewards[chosen]

    def reached(self, compute: Array | float) -> Array:
        """Best reward up to some compute: −∞ before the first evaluation, and the last value after the data end."""
        assert self.parameters is not None
        first, last = self.support
        reward = self.parameters(np.minimum(compute, last))
        return np.asarray(np.where(not_beyond(first, compute), reward, -np.inf))

    @property
    def setting(self) -> dict[str, Any]:
        """Its n and B_p under the tables' column names."""
        return {name: getattr(self.cell, name) for name in SIZES}

    def as_dict(self) -> dict[str, Any]:
        """The curve as in ``fits.json``."""
        return {
            **self.setting,
            "group": self.cell.group or None,
            "seeds": len(self.runs),
            "evaluations": len(self.compute),
            "support": self.support,
            "form": self.parameters and self.parameters.form,
            "params": self.parameters and self.parameters.named(),
            "records_gap": self.records_gap,
            "reason": "" if self.parameters else TOO_FEW,
        }


@dataclass(frozen=True, kw_only=True)
class PaperFits:
    """A sweep as the paper fits it: a curve per (n, B_p) and group."""

    config: PaperConfig
    curves: tuple[PaperCurve, ...]

    @property
    def fitted(self) -> list[PaperCurve]:
        """The curves that could be fitted."""
        return [c for c in self.curves if c.parameters is not None]

    @cached_property
    def compute(self) -> Array:
        """Grid of compute, log-uniform over the joint support of all curves, shape ``(points,)``."""
        first, last = np.array([c.support for c in self.fitted]).T
        return np.geomspace(first.min(), last.max(), GRID_POINTS)

    @cached_property
    def reached(self) -> Array:
        """Best reward of every fitted curve up to each compute, shape ``(fitted, points)``."""
        return np.stack([c.reached(self.compute) for c in self.fitted])

    @cached_property
    def best(self) -> np.ndarray:
        """Index of the fitted curve that attains the envelope, shape ``(points,)``."""
        return np.asarray(self.reached.argmax(axis=0))

    @cached_property
    def n_star(self) -> Sigmoid:
        """The log2-sigmoid of n*(C)."""
        if not self.fitted:
            return Sigmoid(params=None, intervals={}, flags=(Flag.FIT_FAILED,))
        n = np.array([c.cell.rollouts_per_problem for c in self.fitted], dtype=np.float64)
        found = fit_n_star(self.compute, n[self.best])
        at_largest = n[self.best[-1]] == n.max() > n.min()
        return replace(found, flags=(*found.flags, Flag.AT_LARGEST_N)) if at_largest else found

    def segments(self) -> list[tuple[float, PaperCurve]]:
        """The curves that attain the envelope, in order, each with the compute at which it begins to."""
        if not self.fitted:
            return []
        begins = np.flatnonzero(np.diff(self.best, prepend=-1))
        return [(float(self.compute[k]), self.fitted[self.best[k]]) for k in begins]

    def smallest_stable(self) -> dict[int, int | None]:
        """The smallest stable B_p of every n with several B_p, or None if all of them collapse (Appendix C).

        A B_p is stable if it does not collapse and is within 0.01 of the best at the compute that all B_p of this n
        reach.
        """
        found: dict[int, int | None] = {}
        for n in sorted({c.cell.rollouts_per_problem for c in self.fitted}):
            own = [c for c in self.fitted if c.cell.rollouts_per_problem == n]
            shared = min(c.support[1] for c in own)
            steady = [
                (c.cell.problems_per_batch, float(c.parameters(shared)))
                for c in own
                if c.parameters and not _collapses(c)
            ]
            best = max((reward for _, reward in steady), default=0.0)
            if len({c.cell.problems_per_batch for c in own}) > 1:
                found[n] = min((size for size, reward in steady if best - reward <= STABLE), default=None)
        return found

    def frontier_table(self) -> pl.DataFrame:
        """The envelope, and the setting that attains it at each compute.

        ``carried`` says whether that setting's data have ended; ``update_steps`` is M = C/(B_p·n), only for rollouts.
        """
        own = [self.fitted[k] for k in self.best]
        last = np.array([c.support[1] for c in own])
        table = pl.DataFrame({"compute": self.compute, "reward": self.reached.max(axis=0)})
        table = table.hstack(pl.DataFrame([{**c.setting, "group": c.cell.group} for c in own]))
        table = table.with_columns(carried=~not_beyond(self.compute, last))
        batch = pl.col("rollouts_per_problem") * pl.col("problems_per_batch")
        return table.with_columns(update_steps=pl.col("compute") / batch) if self.config.unit == "rollouts" else table

    def summary(self) -> str:
        """The curves, the settings along the envelope, and the sigmoid of n*(C), as text."""
        config = self.config
        what = "all evaluations" if config.points == "all" else f"records in bins of {config.bin_width:g}"
        lines = [
            f"{config.metric} against {config.unit}: the paper's method, {what}, no intervals",
            "   n  B_p  form   asymptote   records would say",
        ]
        for c in self.curves:
            head = f"{c.cell.rollouts_per_problem:4d} {c.cell.problems_per_batch:4d}  {c.cell.group}".rstrip()
            gap = "no fit" if c.records_gap is None else f"{c.records_gap:+.3f}"
            fit = c.parameters and f"{c.parameters.form:6} {c.parameters.asymptote:9.3f}   {gap}"
            lines.append(f"{head}  {fit or f'no fit: {TOO_FEW}'}")
        if not self.fitted:
            return "\n".join(lines)
        lines += ["", f"   from {config.unit:>12}   n*   B_p   reward there"]
        for compute, c in self.segments():
            cell = f"{c.cell.rollouts_per_problem:4d} {c.cell.problems_per_batch:5d}"
            lines.append(f"   {amount(compute):>17} {cell} {float(c.reached(compute)):14.3f}")
        lines.append(self.n_star.summary(last=short(float(self.compute[-1])) if config.unit == "rollouts" else ""))
        for n, size in self.smallest_stable().items():
            lines.append(f"smallest stable B_p at n = {n}: {size or 'none, every one collapses'}")
        return "\n".join(lines)

    def save(self, folder: str | Path) -> None:
        """Write ``fits.json`` and ``frontier.parquet``; equal fits give equal bytes.

        Raises:
            FrontierError: The folder cannot be written to.
        """
        document = {
            "method": "paper",
            "unit": self.config.unit,
            "metric": self.config.metric,
            "points": self.config.points,
            "curves": [c.as_dict() for c in self.curves],
            "n_star": self.n_star.as_dict(),
            "segments": [{"compute": at, **c.setting, "reward": float(c.reached(at))} for at, c in self.segments()],
            "smallest_stable": {str(n): size for n, size in self.smallest_stable().items()},
        }
        text = json.dumps(document, indent=1, sort_keys=True) + "\n"
        write_text(Path(folder) / DOCUMENT, text, error=FrontierError)
        if self.fitted:
            write_parquet(self.frontier_table(), Path(folder) / "frontier.parquet")


def fit_as_paper(evals: pl.DataFrame, config: PaperConfig | None = None) -> PaperFits:
    """Fit a sweep with the paper's method.

    Raises:
        FrontierError: The table holds no such curve, or mixes problem sets.
    """
    config = config or PaperConfig()
    asked = {name: getattr(config, name) for name in ("metric", "unit", "split", "problem_set", "group")}
    rows = chosen_rows(evals, **asked)
    metric, unit = config.metric, UNITS[config.unit]
    refuse(rows, {f"{metric} lies outside 0 to 1": ~pl.col(metric).is_between(0, 1)}, metric, unit)
    found = []
    for key, part in rows.group_by(*SIZES, *([config.group] if config.group else []), maintain_order=True):
        # Sort by the metric last, so that even points of equal compute have one order.
        own = part.sort("seed", unit, metric)
        group = f"{config.group} = {key[2]}" if config.group else ""
        whole = PaperCurve(
            cell=Setting(**dict(zip(SIZES, key[:2], strict=True)), group=group),
            compute=own[unit].to_numpy().astype(np.float64),
            reward=own[metric].to_numpy().astype(np.float64),
            seed=(own["seed"].rank("dense").to_numpy() - 1).astype(np.int64),
        )
        found.append(_fitted(whole, config))
    found.sort(key=lambda c: (c.cell.problems_per_batch, c.cell.rollouts_per_problem, c.cell.group))
    return PaperFits(config=config, curves=tuple(found))


def _fitted(whole: PaperCurve, config: PaperConfig) -> PaperCurve:
    """One curve by least squares."""
    compute, reward = whole.records(bin_width=config.bin_width, window=config.window)
    everything = _least_squares(config.form, whole.compute, whole.reward)
    of_best = _least_squares(config.form, compute, reward)
    gap = None
    if everything and of_best:
        # Not at the end of the run: if the last record is early, a fit of records says nothing about the end.
        last = float(compute.max())
        gap = float(of_best(last) - everything(last))
    return replace(whole, parameters=of_best if config.points == "records" else everything, records_gap=gap)


def _least_squares(form: str, compute: Array, reward: Array) -> Parameters | None:
    if len(np.unique(compute[compute > 0])) < 3:
        return None
    # Rewards lie within 1 of each other, so with this error the robust loss of `fit_form` is a plain square.
    return fit_form(form, compute, reward, np.full(len(compute), 1 / 3), None)


def _collapses(curve: PaperCurve) -> bool:
    """Return whether a run of the curve ends far below its best quarter of evaluations."""
    each = [np.array_split(curve.reward[run], 4) for run in curve.runs]
    quarters = [[float(q.mean()) for q in own if len(q)] for own in each]
    return any(max(own) - own[-1] > FALL for own in quarters)
