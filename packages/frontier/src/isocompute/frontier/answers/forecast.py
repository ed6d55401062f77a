"""Forecasts of single runs: a judgement before any curve is fitted, the curve beyond a cut, and what came later."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from ..data.curves import Array
from ..data.reading import counted, short
from ..errors import MEANING, Flag, FrontierError
from ..fitting.intervals import LEVEL, ends
from ..posterior.health import Kind, judge, prepare
from ..posterior.runs import POINTS, Run, Setting, off_neighbours, position
from ..posterior.single import Drawn, expected, single
from .recipes import fit_scalerl

METHODS = ("posterior", "paper")
LEAST = 5
"""Evaluations at distinct compute that a forecast needs."""
BEYOND = 2.0
"""A reward is also given at this multiple of the last fitted compute."""
PAPER_MARGIN = 0.02
"""Error of A that ScaleRL derives from three runs of one recipe (Figure 8): its method holds if the end is within
it."""


class State(StrEnum):
    """A run's state at the cut, judged before anything is fitted."""

    RISING = "rising"
    LEVEL = "level"
    COLLAPSED = "collapsed"


class Verdict(StrEnum):
    """Comparison of what came later with the forecast.

    * ``held``: the number of points inside the 95 % interval is at least the 5 % quantile of Binomial(points, 0.95),
      the distribution for independent points.
    * ``held (uninformative)``: the same, but the interval is wider than the run's whole gain, so most runs would have
      held.
    * ``failed``: the number is below the 5 % quantile for runs simulated from the forecast, whose points are
      correlated.
    * ``unresolved``: otherwise.
    """

    HELD = "held"
    UNINFORMATIVE = "held (uninformative)"
    FAILED = "failed"
    UNRESOLVED = "unresolved"


@dataclass(frozen=True, slots=True, kw_only=True)
class ForecastConfig:
    """Settings of a forecast.

    Attributes:
        r0: Reward before training. If omitted, the reward at zero compute, or else an unknown one near the first
            evaluation.
        fit_max: Largest compute fitted; later evaluations are the extension.
        method: ``posterior``, or ``paper`` for ScaleRL's own sigmoid and grid.
        without: Published fits that the prior leaves out: those of the run itself, if it is one of them.

    Raises:
        FrontierError: The method is unknown, ``r0`` lies outside 0 to 1, the window is empty, or the seed is negative.
    """

    r0: float | None = None
    fit_min: float = 0.0
    fit_max: float = float("inf")
    method: str = "posterior"
    without: Sequence[str] = ()
    seed: int = 0

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise FrontierError(f"the method {self.method!r} is unknown; it must be one of {', '.join(METHODS)}")
        if self.r0 is not None and not 0 <= self.r0 < 1:
            raise FrontierError(f"r0 is {self.r0}; a reward before training lies within 0 to 1")
        if not self.fit_min < self.fit_max:
            raise FrontierError(f"fit_min ({self.fit_min:g}) must be below fit_max ({self.fit_max:g})")
        if self.seed < 0:
            raise FrontierError(f"the seed is {self.seed}; it must be 0 or more")


@dataclass(frozen=True, slots=True, kw_only=True)
class Extension:
    """A forecast compared with the data beyond its cut (ScaleRL, section 4).

    Attributes:
        points: Number of points beyond the cut.
        bias: Mean of prediction minus measurement; above 0 if the forecast was too optimistic.
        coverage: Share of the points inside the 95 % interval for evaluations; None for the paper's method.
    """

    points: int
    rmse: float
    bias: float
    coverage: float | None
    verdict: Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """A run up to a cut, and its extension.

    Attributes:
        evidence: The evidence for the state, as the end of a sentence that begins with the run; empty for a rising run.
        parameters: A, R0, C_mid and B, by ScaleRL's names: means, medians for C_mid and B; none after a collapse.
        intervals: 95 % interval of each; none for the paper's method.
        compute: Compute of every evaluation that was given, and 2 times the cut, in ascending order.
        reward: Expected reward there; ``low`` to ``high`` is the 95 % interval of the curve.
        support: Least and most compute fitted.
    """

    method: str
    state: State
    evidence: str
    parameters: dict[str, float]
    intervals: dict[str, tuple[float, float]]
    compute: Array
    reward: Array
    low: Array
    high: Array
    fitted: int
    support: tuple[float, float]
    extension: Extension | None
    flags: tuple[Flag, ...]

    def at(self, compute: float) -> tuple[float, float, float]:
        """Expected reward at some compute between the evaluations, with its 95 % interval."""
        reward, low, high = (float(np.interp(compute, self.compute, v)) for v in (self.reward, self.low, self.high))
        return reward, low, high

    def as_dict(self) -> dict[str, Any]:
        """The forecast as ``predict --json`` writes it."""
        plain = asdict(self)
        plain["params"] = plain.pop("parameters")
        plain["curve"] = {name: plain.pop(name).tolist() for name in ("compute", "reward", "low", "high")}
        return plain

    def summary(self) -> str:
        """The forecast as text: state, parameters with intervals, the extension, and the meaning of the flags."""
        first, last = self.support
        lines = [f"{self.method}, {self.fitted} points from {first:,.6g} to {last:,.6g}: {self.state}"]
        if self.evidence:
            lines[0] += f", it {self.evidence}"
        for name, value in self.parameters.items():
            span = self.intervals.get(name)
            lines.append(f"  {name:6} {value:.5g}" + (f"  (95 %: {span[0]:.5g} to {span[1]:.5g})" if span else ""))
        reward, low, high = self.at(BEYOND * last)
        beyond = f"  at {short(BEYOND * last)}  {reward:.4f}"
        lines.append(beyond + (f"  (95 %: {low:.4f} to {high:.4f})" if low < high else ""))
        if self.extension is not None:
            e = self.extension
            verdict = "FAILED" if e.verdict is Verdict.FAILED else e.verdict
            line = f"  extension {verdict}: {counted(e.points, 'later point')}, rmse {e.rmse:.4f}, bias {e.bias:+.4f}"
            lines.append(line + ("" if e.coverage is None else f", {e.coverage:.0%} inside the 95 % interval"))
        lines += [f"  note: {MEANING[flag]}" for flag in self.flags]
        return "\n".join(lines)


def forecast(compute: Array, reward: Array, config: ForecastConfig | None = None, *, unit: str = "compute") -> Forecast:
    """Judge one run up to a cut, extend its curve, and judge the extension.

    Args:
        unit: Unit of compute, for printing.

    Raises:
        FrontierError: Fewer than five points lie in the window, they do not differ in reward, or ``without`` names an
            unknown published fit.
    """
    config = config or ForecastConfig()
    order = np.argsort(compute, kind="stable")
    compute, reward = compute[order], reward[order]
    inside = (compute >= config.fit_min) & (compute <= config.fit_max)
    later = compute > config.fit_max
    x, y = compute[inside], reward[inside]
    distinct = len(np.unique(x[x > 0]))
    if distinct < LEAST:
        raise FrontierError(
            f"{distinct} points at different compute lie from {config.fit_min:g} to {config.fit_max:g}; "
            f"a fit needs {LEAST} or more"
        )
    if np.ptp(y) == 0:
        raise FrontierError(f"the reward is {y[0]:g} at every point: there is no curve to fit")
    at = np.unique(np.append(compute, BEYOND * x[-1]))
    points, measured = np.searchsorted(at, compute[later]), reward[later]
    named: dict[str, float] = {}
    intervals: dict[str, tuple[float, float]] = {}
    extension = None
    if config.method == "paper":
        before = y[x == 0]
        if config.r0 is None and not len(before):
            raise FrontierError("the paper's method needs the reward before training: give r0")
        curve = fit_scalerl(x[x > 0], y[x > 0], float(before.mean()) if config.r0 is None else config.r0)
        state, evidence, named = State.RISING, "", curve.named()
        mean = low = high = curve(at)
        if later.any():
            # There is no interval to compare with.
            held = abs(mean[points[-1]] - measured[-1]) <= PAPER_MARGIN
            extension = _judged(mean[points] - measured, Verdict.HELD if held else Verdict.FAILED, None)
    else:
        run = as_run(x, y, config.r0)
        state, evidence = _state(run, unit)
        drawn = _draws(run, state, at, config)
        low, high = ends(drawn.reward)
        # A few extreme draws can put the mean outside its own interval.
        mean = np.clip(drawn.reward.mean(axis=0), low, high)
        for name, values in drawn.named.items():
            centre = values.mean() if name in ("A", "R0") else np.median(values)
            low_end, high_end = (float(end) for end in ends(values))
            named[name], intervals[name] = float(np.clip(centre, low_end, high_end)), (low_end, high_end)
        gained = float(np.ptp(y if state is State.COLLAPSED else mean[at <= x[-1]]))
        if later.any():
            extension = _extension(drawn, points, mean[points], measured, gained, config.seed)
    return Forecast(
        method=config.method,
        state=state,
        evidence=evidence,
        parameters=named,
        intervals=intervals,
        compute=at,
        reward=mean,
        low=low,
        high=high,
        fitted=len(x),
        support=(float(x[0]), float(x[-1])),
        extension=extension,
        flags=_flags(state, intervals, extension, distinct),
    )


def _judged(miss: Array, verdict: Verdict, coverage: float | None) -> Extension:
    rmse = float(np.sqrt((miss**2).mean()))
    return Extension(points=len(miss), rmse=rmse, bias=float(miss.mean()), coverage=coverage, verdict=verdict)


def as_run(x: Array, y: Array, r0: float | None) -> Run:
    """The run, with errors estimated from each evaluation's deviation from its neighbours, and R0 if known."""
    off, unit = off_neighbours(position(x), y, np.ones(len(x)))
    # Four fifths of normal values lie within 1.2816 standard deviations; a few spikes or a collapse do not change that.
    error = np.full(len(x), max(float(np.quantile(np.abs(off / unit), 0.8)) / 1.2816, 1e-4))
    if r0 is not None and x[0] > 0:
        # R0 is far more certain than one evaluation.
        x, y, error = np.append(0.0, x), np.append(r0, y), np.append(error[0] / 5, error)
    return Run(
        name="run",
        run_id=None,
        cell=Setting(rollouts_per_problem=1, problems_per_batch=1),
        seed=0,
        compute=x,
        reward=y,
        error=error,
        error_is_known=False,
    )


STILL = 0.2
"""A run is level if the later half of its evaluations surely gained less than this share of its whole gain."""
SURE = 2.0
"""Standard errors that make a statement sure."""


def _state(run: Run, unit: str) -> tuple[State, str]:
    """The run's state at its end, with the evidence."""
    (health,) = judge([_thinned(run)], unit=unit)
    if Kind.COLLAPSED in health.kinds:
        return State.COLLAPSED, health.findings[0].evidence
    half = len(run.compute) // 2
    x, y = np.log(run.compute[-half:]), run.reward[-half:]
    if half < LEAST:
        return State.RISING, ""
    slope, error = _line(x, y, float(run.error[-1]))
    gain = float(y.mean() - run.reward[:3].mean())
    span = float(np.ptp(x))
    if slope < SURE * error and span * (slope + SURE * error) < STILL * gain:
        return State.LEVEL, f"stays at {y.mean():.3f} from {short(float(run.compute[-half]))} {unit} on"
    return State.RISING, ""


def _thinned(run: Run) -> Run:
    """The run reduced to few points: means of consecutive evaluations, with errors from their scatter about neighbours.

    The bins of a fit would treat a collapse as noise.
    """
    size = -(-len(run.compute) // POINTS)
    groups = np.array_split(np.arange(len(run.compute)), -(-len(run.compute) // size))
    compute, reward = (np.array([v[g].mean() for g in groups]) for v in (run.compute, run.reward))
    return replace(
        run, compute=compute, reward=reward, error=np.array([run.error[g[0]] / len(g) ** 0.5 for g in groups])
    )


def _line(x: Array, y: Array, least: float) -> tuple[float, float]:
    """Slope of a line and its standard error, with a lower bound on the noise."""
    slope, level = np.polyfit(x, y, 1)
    residual = float(np.sqrt(((y - slope * x - level) ** 2).sum() / (len(x) - 2)))
    return float(slope), max(residual, least) / float(np.sqrt(((x - x.mean()) ** 2).sum()))


def _draws(run: Run, state: State, at: Array, config: ForecastConfig) -> Drawn:
    """Draws at some compute values."""
    if state is not State.COLLAPSED:
        return single(prepare([run]).runs, at, before=expected(config.without), seed=config.seed)
    # No rising curve fits: only the level that it fell to is known, and it is assumed to stay there.
    top = int(run.reward.argmax())
    kept = run.reward[top:][run.reward[top:] < (run.reward[0] + run.reward[top]) / 2]
    spread = max(float(kept.std(ddof=1)) if len(kept) > 1 else 0.0, float(run.error[-1]))
    scaled = np.random.default_rng(config.seed).standard_t(max(len(kept) - 1, 1), 1000) / np.sqrt(len(kept))
    level = np.clip(kept.mean() + spread * scaled, 0.0, 1.0)
    reward = np.repeat(level[:, None], len(at), axis=1)
    return Drawn(reward=reward, noise=np.full(1000, spread), autocorrelation=np.zeros(1000), named={})


def _extension(
    drawn: Drawn, points: NDArray[np.int64], mean: Array, reward: Array, gained: float, seed: int
) -> Extension:
    """Compare the data after a cut, at some columns of the draws, with the forecast.

    Args:
        gained: The run's gain before the cut.
    """
    phi, later = drawn.autocorrelation, drawn.reward[:, points]
    shocks = np.random.default_rng(seed + 1).standard_normal(later.shape)
    for k in range(1, len(points)):
        shocks[:, k] = phi * shocks[:, k - 1] + np.sqrt(1 - phi**2) * shocks[:, k]
    runs = later + drawn.noise[:, None] * shocks
    low, high = ends(runs)
    inside = int(((reward >= low) & (reward <= high)).sum())
    simulated = ((runs >= low) & (runs <= high)).sum(axis=1)
    verdict = Verdict.UNRESOLVED
    if inside >= stats.binom.ppf(1 - LEVEL, len(reward), LEVEL):
        verdict = Verdict.UNINFORMATIVE if float((high - low).mean()) > gained else Verdict.HELD
    elif inside < np.quantile(simulated, 1 - LEVEL, method="inverted_cdf"):
        verdict = Verdict.FAILED
    return _judged(mean - reward, verdict, inside / len(reward))


def _flags(
    state: State, intervals: dict[str, tuple[float, float]], extension: Extension | None, points: int
) -> tuple[Flag, ...]:
    found = [Flag.TOO_FEW_POINTS] if points < 8 else []
    low, high = intervals.get("A", (0.0, 0.0))
    if state is State.RISING and high - low > 0.15:
        found.append(Flag.ASYMPTOTE_NOT_IDENTIFIED)
    if extension is not None and extension.verdict is Verdict.FAILED:
        found.append(Flag.EXTENSION_FAILED)
    return (*found, Flag.WITHIN_RUN_ONLY)
