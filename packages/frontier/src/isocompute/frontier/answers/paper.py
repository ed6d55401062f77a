"""The IsoCompute Playbook's own method (arXiv 2603.12151, section 4): ``fit --method paper``.

Record-breaking points in bins of reward, one monotone curve per (n, B_p) by least squares, the upper envelope
f(C) = max of R over all compute ≤ C, n*(C) as the n that attains it, and a log2-sigmoid through n*(C). There are no
intervals: the paper has none. Its text fits the records and says that all evaluations give the same curve; the lines of
its figures are those of all evaluations (on its points, records lie 0.02 to 0.05 higher). So all are fitted unless
``points`` is ``records``, and what records would say stands beside.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import polars as pl

from ..contract.files import write_text
from ..data.curves import Curve
from ..data.grouping import curves
from ..data.records import of_records
from ..data.units import amount
from ..errors import Flag, FrontierError
from ..fitting.curve_fit import CurveFit, without_fit
from ..fitting.envelope import on_grid
from ..fitting.forms import Parameters
from ..fitting.nstar import Sigmoid, fit_n_star
from ..fitting.point import fit_form
from ..fitting.record_bias import records_gap
from .fits import FitConfig, of_setting
from .frontier import BestCell, FrontierPoint
from .results import Fits
from .storage import write_parquet

FORM = "exp"
"""What the paper's figures draw: R = A − D·exp(−C/τ)."""
FALL = 0.05
"""A run whose last quarter of evaluations lies this much below its best quarter has collapsed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PaperFits(Fits):
    """A sweep as the paper fits it; the attributes are those of ``FittedSweep``, without refits and intervals."""

    def segments(self) -> list[BestCell]:
        """The cells that attain the envelope, in order, each at the compute from which on it does."""
        cells = [self.best_at(p.compute) for p in self.frontier]
        names = [(c.rollouts_per_problem, c.problems_per_batch, c.group) for c in cells]
        return [cell for i, cell in enumerate(cells) if i == 0 or names[i] != names[i - 1]]

    def smallest_stable(self, tolerance: float = 0.01) -> dict[int, int | None]:
        """For every n of several B_p the smallest B_p that is stable, or None where every one collapses (Appendix C).

        Stable is one that does not collapse, and at the compute that all B_p of this n reach is within the tolerance
        of the best.

        Args:
            tolerance: Largest loss of reward that is accepted.
        """
        found: dict[int, int | None] = {}
        for n in sorted({c.curve.rollouts_per_problem for c in self.fitted}):
            own = [c for c in self.fitted if c.curve.rollouts_per_problem == n]
            shared = min(c.curve.support[1] for c in own)
            steady = [(c.curve.problems_per_batch, float(c.parameters(shared)))
                      for c in own if c.parameters and not _collapses(c.curve)]  # fmt: skip
            best = max((reward for _, reward in steady), default=0.0)
            if len({c.curve.problems_per_batch for c in own}) > 1:
                found[n] = min((size for size, reward in steady if best - reward <= tolerance), default=None)
        return found

    def frontier_table(self) -> pl.DataFrame:
        """The envelope: ``compute``, ``reward``, the ``n`` and B_p that attain it, whether their data have ended, M."""
        whole = Fits.frontier_table(self)
        return whole.drop("reward_low", "reward_high", "probability", "competing", "n_set", "isotonic_n")

    def summary(self) -> str:
        """The curves, the cells along the envelope, and the sigmoid of n*(C), to be printed."""
        what = "all evaluations" if self.points == "all" else f"records in bins of {self.bin_width:g}"
        lines = [f"{self.metric} against {self.unit}: the paper's method, {what}, no intervals",
                 "   n  B_p  form   asymptote   records would say"]  # fmt: skip
        for c in self.curves:
            head = f"{c.curve.rollouts_per_problem:4d} {c.curve.problems_per_batch:4d}  {c.curve.group}".rstrip()
            gap = "no fit" if c.records_gap is None else f"{c.records_gap:+.3f}"
            fit = c.parameters and f"{c.parameters.form:6} {c.parameters.asymptote:9.3f}   {gap}"
            lines.append(f"{head}  {fit or 'no fit: ' + c.reason}")
        if not self.fitted:
            return "\n".join(lines)
        lines += ["", f"   from {self.unit:>12}   n*   B_p   reward there"]
        for s in self.segments():
            cell = f"{s.rollouts_per_problem:4d} {s.problems_per_batch:5d}"
            lines.append(f"   {amount(s.compute):>17} {cell} {s.reward:14.3f}")
        lines.append(self.n_star.summary())
        for n, size in self.smallest_stable().items():
            lines.append(f"smallest stable B_p at n = {n}: {size or 'none, every one collapses'}")
        return "\n".join(lines)

    def save(self, folder: str | Path) -> None:
        """Write ``fits.json`` and ``frontier.parquet``; the same fits give the same bytes.

        Raises:
            FrontierError: The folder cannot be written to.
        """
        shown = ("compute", "n", "problems_per_batch", "reward")
        rows = [s.as_row() for s in self.segments()]
        document = {
            "method": "paper", "unit": self.unit, "metric": self.metric, "points": self.points,
            "curves": [c.as_dict() for c in self.curves], "n_star": self.n_star.as_dict(),
            "segments": [{key: row[key] for key in shown} for row in rows],
            "smallest_stable": {str(n): size for n, size in self.smallest_stable().items()},
        }  # fmt: skip
        text = json.dumps(document, indent=1, sort_keys=True) + "\n"
        write_text(Path(folder) / "fits.json", text, error=FrontierError)
        if self.fitted:
            write_parquet(self.frontier_table(), Path(folder) / "frontier.parquet")


def fit_as_paper(evals: pl.DataFrame, config: FitConfig) -> PaperFits:
    """Fit a sweep as the paper does.

    Args:
        evals: An ``evals`` table.
        config: What is fitted, and ``points`` and ``bin_width``. The form ``auto`` is ``exp``; what belongs to refits
            is not used.

    Raises:
        FrontierError: The table holds no such curve at all, or mixes problem sets.
    """
    whole = of_setting(
        curves(evals, metric=config.metric, unit=config.unit, split=config.split, problem_set=config.problem_set,
               group=config.group),
        config,
    )  # fmt: skip
    form = FORM if config.form == "auto" else config.form
    results = [_fitted(curve, form, config) for curve in whole]
    fits = PaperFits(
        unit=config.unit, metric=config.metric, curves=tuple(results), frontier=(), crossovers=(),
        n_star=Sigmoid(params=None, intervals={}, flags=(Flag.FIT_FAILED,)), points=config.points,
        bin_width=config.bin_width,
    )  # fmt: skip
    if not fits.fitted:
        return fits
    grid = on_grid(fits.fitted)
    best = grid.best
    n = np.array([c.curve.rollouts_per_problem for c in fits.fitted], dtype=np.float64)
    frontier = tuple(
        FrontierPoint(
            compute=float(grid.compute[p]), reward=reward, reward_low=reward, reward_high=reward,
            carried=not grid.within[k, p], shares=tuple(np.eye(len(n))[k].tolist()),
        )
        for p, (k, reward) in enumerate(zip(best.tolist(), grid.point.max(axis=0).tolist(), strict=True))
    )  # fmt: skip
    n_star = fit_n_star(grid.compute, best, grid.refits, n)
    if (n_star.plateau or 0.0) > n.max() * (1 + 1e-9):
        n_star = replace(n_star, flags=(*n_star.flags, Flag.AT_LARGEST_N))
    return replace(fits, frontier=frontier, n_star=n_star)


def _fitted(whole: Curve, form: str, config: FitConfig) -> CurveFit:
    """One curve by least squares, or the reason why there is none."""
    records = of_records(whole, bin_width=config.bin_width, window=config.window)
    curve = records if config.points == "records" else whole
    if len(np.unique(curve.compute[curve.compute > 0])) < 3:
        return without_fit(whole)
    parameters, everything = _least_squares(form, curve), _least_squares(form, whole)
    return replace(
        without_fit(whole), parameters=parameters, flags=(), reason="",
        records_gap=records_gap(whole, everything, config.bin_width, config.window),
    )  # fmt: skip


def _least_squares(form: str, curve: Curve) -> Parameters:
    # Rewards lie within 1 of each other, so that with this error the robust loss of `fit_form` is a plain square.
    return fit_form(form, curve.compute, curve.reward, np.full(len(curve.compute), 1 / 3), None).parameters


def _collapses(curve: Curve) -> bool:
    """Whether a run of the curve ends far below its best quarter of evaluations."""
    for seed in range(curve.seeds):
        quarters = [float(q.mean()) for q in np.array_split(curve.reward[curve.seed == seed], 4) if len(q)]
        if max(quarters) - quarters[-1] > FALL:
            return True
    return False
