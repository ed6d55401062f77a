"""The results of fitting a sweep: readable, and written as ``fits.json`` and Parquet."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from .curves import Array, Curve
from .envelope import Crossover
from .errors import Flag, FrontierError
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
        probability: How often each fitted curve is best at each compute, shape ``(fitted, points)``.
        crossovers: Transitions of the envelope.
        n_star: The log2-sigmoid of n*(C).
        points: ``all`` or ``records``.
        alike: Pairs of fitted curves that the data do not tell apart, by index.
        saturation: Where n*(C) stops growing, or None when nothing was fitted.
        selection: How forms were chosen, or None when one was asked for.
        bin_width: Width of a record's bin of reward.
    """

    unit: str
    metric: str
    curves: tuple[CurveFit, ...]
    compute: Array
    envelope: Array
    probability: Array
    crossovers: tuple[Crossover, ...]
    n_star: Sigmoid
    points: str = "all"
    alike: tuple[tuple[int, int], ...] = ()
    saturation: Saturation | None = None
    carried: NDArray[np.bool_] | None = None
    selection: str | None = None
    bin_width: float = 0.005

    @property
    def fitted(self) -> list[CurveFit]:
        """The curves that could be fitted."""
        return [c for c in self.curves if c.parameters is not None]

    @property
    def support(self) -> tuple[float, float]:
        """Smallest and largest compute that any curve's data reach."""
        return float(self.compute[0]), float(self.compute[-1])

    def best_at(self, compute: float) -> tuple[CurveFit, float, list[int]]:
        """Best curve at some supported compute, how often it is best, and the n in the 95 % set."""
        i = int(np.abs(np.log(self.compute / compute)).argmin())
        share = self.probability[:, i]
        order = np.argsort(-share, kind="stable")
        inside = order[: int(np.searchsorted(np.cumsum(share[order]), 0.95 - 1e-9)) + 1]
        ns = sorted({self.fitted[k].curve.rollouts_per_problem for k in inside})
        return self.fitted[order[0]], float(share[order[0]]), ns

    def n_star_table(self) -> pl.DataFrame:
        """n*(C) at five budgets: ``compute``, ``n``, ``probability``, ``lowest_n``, ``highest_n``, ``reward``."""
        rows = []
        for compute in np.geomspace(*self.support, 5):
            best, share, inside = self.best_at(float(compute))
            assert best.parameters is not None
            rows.append(
                {
                    "compute": float(compute), "n": best.curve.rollouts_per_problem, "probability": share,
                    "lowest_n": inside[0], "highest_n": inside[-1], "reward": float(best.parameters(float(compute))),
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
                "lowest_n": [ns[0] for ns in inside],
                "highest_n": [ns[-1] for ns in inside],
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
        lines = [f"{self.metric} against {self.unit}", "   n  B_p  form   asymptote (95 %)        flags"]
        for c in self.curves:
            head = f"{c.curve.rollouts_per_problem:4d} {c.curve.problems_per_batch:4d}"
            head += f"  {c.curve.group}" if c.curve.group else ""
            if c.parameters is None or c.asymptote_interval is None:
                lines.append(f"{head}  no fit: {c.reason}")
                continue
            low, high = c.asymptote_interval
            flags = ", ".join(f.value.replace("_", " ") for f in c.flags) or "none"
            lines.append(
                f"{head}  {c.parameters.form:5} {c.parameters.asymptote:.3f} ({low:.3f} to {high:.3f})  {flags}"
            )
        if self.fitted:
            lines += ["", f"   {self.unit:>12}   n*   best in   95 % set       reward"]
            for row in self.n_star_table().iter_rows(named=True):
                inside = f"{row['lowest_n']} to {row['highest_n']}"
                lines.append(
                    f"   {amount(row['compute']):>12} {row['n']:4d}   {row['probability']:6.0%}   {inside:12} "
                    f"{row['reward']:8.3f}"
                )
        if self.n_star.constant is not None:
            lines.append(f"n = {self.n_star.constant} leads at every supported compute: there is no transition")
        for a, b in self.alike:
            lines.append(f"{self.named(a)} and {self.named(b)} cannot be told apart over the compute that both have")
        for x in self.crossovers:
            span = f" ({amount(x.interval[0])} to {amount(x.interval[1])})" if x.interval else " (not resolved)"
            if x.kind == "support_ends":
                lines.append(
                    f"{x.before_name} has no data beyond {amount(x.compute)} {self.unit}; {x.after_name} is next"
                )
            else:
                lines.append(f"{x.after_name} overtakes {x.before_name} at {amount(x.compute)} {self.unit}{span}")
        if self.saturation is not None:
            lines.append(self.saturation.summary(self.unit))
        return "\n".join(lines)

    def named(self, index: int) -> str:
        """A fitted curve for people."""
        return who(self.fitted[index].curve, [c.curve for c in self.fitted])

    def save(self, folder: str | Path) -> None:
        """Write ``fits.json``, ``frontier.parquet`` and the refits; the same fits give the same bytes.

        Raises:
            FrontierError: The folder cannot be written to.
        """
        folder = Path(folder)
        document = {
            "unit": self.unit,
            "metric": self.metric,
            "curves": [c.as_dict() for c in self.curves],
            "crossovers": [x.as_dict() for x in self.crossovers],
            "n_star": self.n_star.as_dict(),
            "points": self.points,
            "selection": self.selection,
            "saturation": self.saturation.as_dict() if self.saturation else None,
            "not_distinguishable": [
                [
                    {
                        "rollouts_per_problem": c.curve.rollouts_per_problem,
                        "problems_per_batch": c.curve.problems_per_batch,
                    }
                    for c in (self.fitted[a], self.fitted[b])
                ]
                for a, b in self.alike
            ],
        }
        try:
            folder.mkdir(parents=True, exist_ok=True)
            _replace(folder / "fits.json", (json.dumps(document, indent=1, sort_keys=True) + "\n").encode())
            if self.fitted:
                _write_parquet(self.frontier_table(), folder / "frontier.parquet")
                _write_parquet(_draws_table(self.fitted), folder / "refits.parquet")
        except OSError as error:
            raise FrontierError(f"{folder}: cannot be written to ({error.strerror})") from None


def who(curve: Curve, others: Sequence[Curve]) -> str:
    """A curve for people: by n, and by B_p and the group where they tell it from others."""
    several = len({c.problems_per_batch for c in others}) > 1
    named = f"n = {curve.rollouts_per_problem}" + (f", B_p = {curve.problems_per_batch}" if several else "")
    return f"{named}, {curve.group}" if curve.group else named


def amount(compute: float) -> str:
    """Compute for people: whole where it is large, three digits where it is small."""
    return f"{compute:,.0f}" if compute >= 1000 else f"{compute:.3g}"


def _replace(path: Path, content: bytes) -> None:
    aside = path.with_name(f".{path.name}.writing")
    with aside.open("wb") as stream:
        stream.write(content)
        stream.flush()
        os.fsync(stream.fileno())
    aside.replace(path)


def _write_parquet(frame: pl.DataFrame, path: Path) -> None:
    aside = path.with_name(f".{path.name}.writing")
    frame.write_parquet(aside, compression="zstd", statistics=False)
    aside.replace(path)


def _draws_table(fitted: list[CurveFit]) -> pl.DataFrame:
    parts = []
    for c in fitted:
        assert c.draws is not None
        d = c.draws
        parts.append(
            pl.DataFrame(
                {
                    "rollouts_per_problem": pl.repeat(c.curve.rollouts_per_problem, len(d.start), eager=True),
                    "problems_per_batch": pl.repeat(c.curve.problems_per_batch, len(d.start), eager=True),
                    "group": pl.repeat(c.curve.group, len(d.start), eager=True),
                    "form": d.form.tolist(), "start": d.start, "gain": d.gain, "scale": d.scale,
                    "shape": d.shape,
                }
            )
        )  # fmt: skip
    return pl.concat(parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One curve as ``prescribe`` needs it: who it is, its fit, its refits, its support."""

    rollouts_per_problem: int
    problems_per_batch: int
    parameters: Parameters
    draws: Draws
    support: tuple[float, float]
    flags: tuple[Flag, ...]


def candidates(source: Fits | str | Path) -> tuple[str, str, list[Candidate]]:
    """Unit, metric and curves of fits in memory or in the folder that ``Fits.save`` wrote.

    Raises:
        FrontierError: The folder holds no fits, or they are damaged, or no curve was fitted.
    """
    if isinstance(source, Fits):
        found = [
            Candidate(
                rollouts_per_problem=c.curve.rollouts_per_problem,
                problems_per_batch=c.curve.problems_per_batch,
                parameters=c.parameters, draws=c.draws, support=c.curve.support, flags=c.flags,
            )
            for c in source.fitted if c.parameters and c.draws
        ]  # fmt: skip
        unit, metric = source.unit, source.metric
    else:
        unit, metric, found = _load(Path(source))
    if not found:
        raise FrontierError("no curve could be fitted, so there is nothing to prescribe from")
    return unit, metric, found


def _load(folder: Path) -> tuple[str, str, list[Candidate]]:
    path = folder / "fits.json"
    if not path.is_file():
        raise FrontierError(f"{folder}: holds no fits.json; make one with `isocompute-frontier fit`")
    try:
        document = json.loads(path.read_text())
        refits = pl.read_parquet(folder / "refits.parquet")
        found = []
        for entry in document["curves"]:
            if entry["params"] is None:
                continue
            rows = refits.filter(
                (pl.col("rollouts_per_problem") == entry["rollouts_per_problem"])
                & (pl.col("problems_per_batch") == entry["problems_per_batch"])
                & (pl.col("group") == (entry["group"] or ""))
            )
            draws = Draws(
                form=rows["form"].to_numpy().astype("<U5"),
                **{k: rows[k].to_numpy() for k in ("start", "gain", "scale", "shape")},
            )
            found.append(
                Candidate(
                    rollouts_per_problem=entry["rollouts_per_problem"],
                    problems_per_batch=entry["problems_per_batch"],
                    parameters=_parameters(entry["form"], entry["params"]),
                    draws=draws, support=tuple(entry["support"]),
                    flags=tuple(Flag(f) for f in entry["flags"]),
                )
            )  # fmt: skip
        return document["unit"], document["metric"], found
    except (OSError, KeyError, ValueError, pl.exceptions.PolarsError) as error:
        raise FrontierError(f"{folder}: the fits are damaged ({str(error).splitlines()[0]})") from None


def _parameters(form: str, named: Mapping[str, float]) -> Parameters:
    if form == "hill":
        return Parameters(
            form=form,
            start=named["R0"],
            gain=named["A"] - named["R0"],
            scale=named["C_mid"],
            shape=named["B"],
        )
    return Parameters(
        form=form, start=named["A"] - named["D"], gain=named["D"], scale=named["tau"],
        shape=named.get("beta", 1.0),
    )  # fmt: skip
