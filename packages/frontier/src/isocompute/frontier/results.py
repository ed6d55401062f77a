"""The results of fitting a sweep: readable, and written as ``fits.json`` and Parquet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from .curves import Array, Curve
from .differences import Difference
from .envelope import Crossover
from .errors import Flag
from .forms import Parameters
from .nstar import Sigmoid
from .profile import Profile
from .saturation import Saturation, isotonic_n
from .uncertainty import Draws


@dataclass(frozen=True, slots=True, kw_only=True)
class CurveFit:
    """One fitted curve, or the reason why there is none.

    Attributes:
        curve: The measured points; empty after loading from disk.
        parameters: The fit, or None.
        intervals: 95 % intervals by parameter name.
        asymptote_interval: That of A.
        residual_sd: Standard deviation of the residuals.
        draws: The refits.
        flags: Why to read it with care.
        reason: Why there is no fit.
        records_gap: How far above a fit of all points one of the record-breaking points alone lies, at the last
            record.
        smoothed_records_gap: The same for records of a running mean over five evaluations.
        profile: Profile-likelihood interval of A.
        criteria: Of every form its ``aicc`` and its error on the held-out ``tail``, in variances.
        noise_factor: Standard deviation of the noise within runs, in standard errors of the evaluations.
        degrees: Effective degrees of freedom behind that.
    """

    curve: Curve
    parameters: Parameters | None
    intervals: Mapping[str, tuple[float, float]]
    asymptote_interval: tuple[float, float] | None
    residual_sd: float | None
    draws: Draws | None
    flags: tuple[Flag, ...]
    reason: str
    records_gap: float | None = None
    smoothed_records_gap: float | None = None
    profile: Profile | None = None
    criteria: Mapping[str, Mapping[str, float | None]] = field(default_factory=dict)
    noise_factor: float | None = None
    degrees: float = 0.0

    def as_dict(self) -> dict[str, Any]:
        """As in ``fits.json``."""
        curve = self.curve
        return {
            "rollouts_per_problem": curve.rollouts_per_problem,
            "problems_per_batch": curve.problems_per_batch,
            "form": self.parameters.form if self.parameters else None,
            "params": self.parameters.named() if self.parameters else None,
            "intervals": {k: list(v) for k, v in self.intervals.items()},
            "support": list(curve.support),
            "residual_sd": self.residual_sd,
            "noise_factor": self.noise_factor,
            "records_gap": self.records_gap,
            "smoothed_records_gap": self.smoothed_records_gap,
            "profile": None if self.profile is None else {
                "A": list(self.profile.interval), "effective_points": self.profile.effective_points,
                "open_above": self.profile.open_above,
            },
            "criteria": {form: dict(values) for form, values in self.criteria.items()},
            "group": curve.group or None,
            "seeds": curve.seeds,
            "evaluations": len(curve.compute),
            "flags": [str(f) for f in self.flags],
            "reason": self.reason,
        }  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Fits:
    """A fitted sweep.

    Attributes:
        unit: Unit of compute.
        metric: Metric fitted.
        curves: One per (n, B_p).
        compute: Grid of compute, log-uniform over the support.
        envelope: Reward of the envelope and its 95 % interval, shape ``(3, points)``; it never falls.
        carried: Where no curve with data reaches the envelope, which is a reward reached at less compute.
        probability: How often each fitted curve is best at each compute, shape ``(fitted, points)``; see ``pooling``.
        degrees: Degrees of freedom behind that.
        crossovers: Transitions of the envelope.
        n_star: The log2-sigmoid of n*(C).
        points: ``all`` or ``records``.
        apart: What can be said of every pair of fitted curves that have compute in common.
        saturation: Where n*(C) stops growing, or None when nothing was fitted.
        selection: How forms were chosen, or None when one was asked for.
        bin_width: Width of a record's bin of reward.
        questions_sampled: Whether intervals include the luck of which questions are asked, which needs pass rates;
            else they hold for the questions evaluated.
    """

    unit: str
    metric: str
    curves: tuple[CurveFit, ...]
    compute: Array
    envelope: Array
    probability: Array
    crossovers: tuple[Crossover, ...]
    n_star: Sigmoid
    degrees: float = 1.0
    points: str = "all"
    apart: tuple[Difference, ...] = ()
    saturation: Saturation | None = None
    carried: NDArray[np.bool_] | None = None
    selection: str | None = None
    bin_width: float = 0.005
    questions_sampled: bool = False

    @property
    def fitted(self) -> list[CurveFit]:
        """The curves that could be fitted."""
        return [c for c in self.curves if c.parameters is not None]

    @property
    def support(self) -> tuple[float, float]:
        """Smallest and largest compute that any curve's data reach."""
        return float(self.compute[0]), float(self.compute[-1])

    @property
    def within_run(self) -> bool:
        """Whether nothing is known of seeds, for some curve: what is said of its n leaves out how they differ."""
        return any(Flag.WITHIN_RUN_ONLY in c.flags for c in self.fitted)

    @property
    def alike(self) -> tuple[tuple[int, int], ...]:
        """Pairs of fitted curves that the data do not tell apart, by index."""
        return tuple((d.first, d.second) for d in self.apart if not d.told_apart)

    def best_at(self, compute: float) -> tuple[CurveFit, float, list[int]]:
        """Best cell at some supported compute, how often it is best, and the 95 % set: n of the cells best in 95 %."""
        i = int(np.abs(np.log(self.compute / compute)).argmin())
        share = self.probability[:, i]
        order = np.argsort(-share, kind="stable")
        inside = order[: int(np.searchsorted(np.cumsum(share[order]), 0.95 - 1e-9)) + 1]
        ns = sorted({self.fitted[k].curve.rollouts_per_problem for k in inside})
        return self.fitted[order[0]], float(share[order[0]]), ns

    def competing(self, compute: float) -> int:
        """How many n have data at some compute."""
        reach = [
            c.curve
            for c in self.fitted
            if c.curve.support[0] * (1 - 1e-9) <= compute <= c.curve.support[1] * (1 + 1e-9)
        ]
        return len({c.rollouts_per_problem for c in reach})

    def n_star_table(self) -> pl.DataFrame:
        """n*(C) at five budgets.

        ``compute``, ``n`` of the best cell, ``problems_per_batch`` of it, ``probability``: in how many refits it is
        best, ``competing``: how many n have data there, ``n_set``: the 95 % set of n, ``reward``.
        """
        rows = []
        for compute in np.geomspace(*self.support, 5):
            best, share, inside = self.best_at(float(compute))
            assert best.parameters is not None
            rows.append(
                {
                    "compute": float(compute), "n": best.curve.rollouts_per_problem,
                    "problems_per_batch": best.curve.problems_per_batch, "probability": share,
                    "competing": self.competing(float(compute)), "n_set": inside,
                    "reward": float(best.parameters(float(compute))),
                }
            )  # fmt: skip
        return pl.DataFrame(rows)

    def frontier_table(self) -> pl.DataFrame:
        """The envelope: ``compute``, ``reward``, its interval, the best ``n``, how often it is best, the 95 % set.

        Also the best B_p, the update steps M = C/(B_p·n) where compute is in rollouts, the non-decreasing
        companion of n*, whether the reward is carried on from less compute because the best curve's data end,
        and the group where there is one.
        """
        best = self.probability.argmax(axis=0)
        fitted = self.fitted
        inside = [self.best_at(float(c))[2] for c in self.compute]
        n = np.array([fitted[k].curve.rollouts_per_problem for k in best])
        size = np.array([fitted[k].curve.problems_per_batch for k in best])
        table = pl.DataFrame(
            {
                "compute": self.compute,
                "reward": self.envelope[0],
                "reward_low": self.envelope[1],
                "reward_high": self.envelope[2],
                "n": n,
                "problems_per_batch": size,
                "probability": self.probability.max(axis=0),
                "competing": [self.competing(float(c)) for c in self.compute],
                "n_set": inside,
                "isotonic_n": isotonic_n(self.compute, n.astype(np.float64)),
                "carried": self.carried if self.carried is not None else np.zeros(len(n), dtype=np.bool_),
            }
        )
        if self.unit == "rollouts":
            table = table.with_columns(update_steps=pl.Series(self.compute / (n * size)))
        if any(c.curve.group for c in fitted):
            table = table.with_columns(group=pl.Series([fitted[k].curve.group for k in best]))
        return table

    def summary(self) -> str:
        """A table of the curves and of n*(C), with intervals, for people."""
        from .summary import summary

        return summary(self)

    def named(self, index: int) -> str:
        """A fitted curve for people."""
        return who(self.fitted[index].curve, [c.curve for c in self.fitted])

    def save(self, folder: str | Path) -> None:
        """Write ``fits.json``, ``frontier.parquet`` and the refits; the same fits give the same bytes.

        Raises:
            FrontierError: The folder cannot be written to.
        """
        from .storage import save

        save(self, folder)


def who(curve: Curve, others: Sequence[Curve]) -> str:
    """A curve for people: by n, and by B_p and the group where they tell it from others."""
    several = len({c.problems_per_batch for c in others}) > 1
    named = f"n = {curve.rollouts_per_problem}" + (f", B_p = {curve.problems_per_batch}" if several else "")
    return f"{named}, {curve.group}" if curve.group else named
