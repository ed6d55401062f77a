"""Do the intervals hold, and are the fits without bias? Seeded simulations of the papers' curves.

``benchmarks/coverage.py`` counts more runs; the bounds here leave room for the number of runs, not for a lower level.
"""

import numpy as np
import polars as pl
import pytest
from isocompute.frontier import FitConfig, Flag, fit
from isocompute.frontier.fitting.forms import Parameters
from isocompute.frontier.fitting.point import fit_form
from isocompute.frontier.fitting.simulation import Simulation
from scipy import stats

# A, D, tau of Figure 5's lines for n = 8 and 128 on Easy (rollouts).
TRUTHS = {8: (0.582, 0.129, 230_520.0), 128: (0.618, 0.199, 426_030.0)}
END = 4_000_000.0


def simulated(
    rng: np.random.Generator, *, evaluations: int, phi: float, seeds: int = 1, spread: float = 0.0,
    shared: float = 0.0,
) -> pl.DataFrame:  # fmt: skip
    """Runs with noise binomial in size and AR(1) in time, and an effect of the seed that grows with the gain.

    ``shared`` of the effect's variance is common to all n of a seed.
    """
    compute = np.linspace(END / evaluations, END, evaluations).round()
    parts = []
    common = rng.standard_normal(seeds)
    for n, (asymptote, drop, tau) in TRUTHS.items():
        for seed in range(seeds):
            rise = 1 - np.exp(-compute / tau)
            effect = np.sqrt(shared) * common[seed] + np.sqrt(1 - shared) * rng.standard_normal()
            truth = asymptote - drop + (drop + spread * effect) * rise
            shocks, noise = rng.standard_normal(evaluations), np.empty(evaluations)
            noise[0] = shocks[0]
            for t in range(1, evaluations):
                noise[t] = phi * noise[t - 1] + np.sqrt(1 - phi**2) * shocks[t]
            reward = truth + noise * np.sqrt(truth * (1 - truth) / 1200)
            parts.append(
                pl.DataFrame({"rollouts": compute.astype(np.int64), "avg_at_4": np.clip(reward, 0, 1)}).with_columns(
                    rollouts_per_problem=pl.lit(n), problems_per_batch=pl.lit(32), seed=pl.lit(seed),
                    problem_set=pl.lit("easy"), split=pl.lit("validation"), questions=pl.lit(300), samples=pl.lit(4),
                )
            )  # fmt: skip
    return pl.concat(parts)


@pytest.mark.parametrize(
    ("evaluations", "phi", "seeds", "spread", "shared"),
    [
        (20, 0.0, 1, 0.0, 0.0), (180, 0.8, 1, 0.0, 0.0), (40, 0.2, 2, 0.015, 0.0), (40, 0.2, 3, 0.015, 0.8),
    ],
)  # fmt: skip
def test_intervals_hold_the_truth_as_often_as_they_say(
    evaluations: int, phi: float, seeds: int, spread: float, shared: float
) -> None:
    # Every setting has N(1−φ)/(1+φ) of 20 or more.
    rng = np.random.default_rng(0)
    asymptotes, profiles, ends, differences, short, curves = 0, 0, 0, 0, 0, 0
    at, truths = np.array([END]), [a - d * np.exp(-END / t) for a, d, t in TRUTHS.values()]
    for run in range(24):
        table = simulated(rng, evaluations=evaluations, phi=phi, seeds=seeds, spread=spread, shared=shared)
        fits = fit(table, FitConfig(form="exp", bootstrap=100, seed=run))
        drawn = [c.draws.at(at)[:, 0] for c in fits.curves if c.draws is not None]
        differences += _holds(drawn[1] - drawn[0], truths[1] - truths[0])
        for c, draws, end in zip(fits.curves, drawn, truths, strict=True):
            asymptote = TRUTHS[c.curve.rollouts_per_problem][0]
            assert c.asymptote_interval is not None
            assert c.profile is not None
            asymptotes += c.asymptote_interval[0] <= asymptote <= c.asymptote_interval[1]
            profiles += c.profile.interval[0] <= asymptote <= c.profile.interval[1]
            ends += _holds(draws, end)
            short += Flag.SUPPORT_TOO_SHORT in c.flags
            curves += 1
    # What a coverage of 90 % falls below once in a thousand.
    least = stats.binom.ppf(0.001, curves, 0.90)
    assert asymptotes >= least
    assert profiles >= least
    assert ends >= least
    assert differences >= stats.binom.ppf(0.001, 24, 0.90)
    assert short <= 0.05 * curves


def _holds(draws: np.ndarray, truth: float) -> bool:
    low, high = np.quantile(draws, [0.025, 0.975])
    return bool(low <= truth <= high)


def test_records_are_biased_upward_and_all_points_are_not() -> None:
    rng = np.random.default_rng(1)
    misses: dict[str, list[float]] = {"all": [], "records": []}
    gaps, smoothed = [], []
    for run in range(8):
        table = simulated(rng, evaluations=60, phi=0.0)
        for points, found in misses.items():
            fits = fit(table, FitConfig(form="exp", bootstrap=20, seed=run, points=points))
            for c in fits.curves:
                assert c.parameters is not None
                asymptote, drop, tau = TRUTHS[c.curve.rollouts_per_problem]
                found.append(float(c.parameters(END)) - (asymptote - drop * np.exp(-END / tau)))
                if points == "all":
                    assert c.records_gap is not None
                    assert c.smoothed_records_gap is not None
                    gaps.append(c.records_gap)
                    smoothed.append(c.smoothed_records_gap)
    all_points, records = np.array(misses["all"]), np.array(misses["records"])
    assert abs(all_points.mean()) < 4 * all_points.std() / np.sqrt(len(all_points))
    assert records.mean() > 0.01
    # What the result says of the difference is the difference.
    assert np.mean(gaps) == pytest.approx(records.mean() - all_points.mean(), abs=0.005)
    # Smoothing first takes most of the bias away, and not all of it.
    assert 0 < np.mean(smoothed) < 0.75 * np.mean(gaps)


def test_many_points_do_not_stop_the_optimiser_early() -> None:
    # Residuals are summed: over 10,000 points their mean would fall below an optimiser's tolerance too early.
    truth = Parameters(form="hill", start=0.3, gain=0.4, scale=5e5, shape=1.7)
    compute = np.linspace(1e4, 4e6, 10_000)
    found = fit_form("hill", compute, truth(compute), np.full(10_000, 0.014), None).parameters
    assert found.asymptote == pytest.approx(truth.asymptote, abs=1e-4)
    assert found.scale == pytest.approx(truth.scale, rel=1e-3)
    assert found.shape == pytest.approx(truth.shape, rel=1e-3)


def crossing(lines: dict[int, tuple[float, float, float]]) -> tuple[float, float]:
    """Where the second curve overtakes the first, and by how much per unit of ln C."""
    grid = np.geomspace(5e4, 4e6, 20_000)
    lead = np.subtract(*[a - d * np.exp(-grid / t) for a, d, t in reversed(lines.values())])
    where = int(np.flatnonzero((lead[:-1] <= 0) & (lead[1:] > 0))[-1])
    return float(grid[where]), float(np.gradient(lead, np.log(grid))[where])


@pytest.mark.parametrize(
    ("lines", "steep"),
    [
        ({32: (0.55, 0.15, 2e5), 256: (0.66, 0.30, 8e5)}, True),
        ({8: (0.582, 0.129, 2.3e5), 128: (0.618, 0.199, 4.26e5)}, True),
        ({64: (0.600, 0.190, 3.0e5), 128: (0.612, 0.199, 4.26e5)}, False),
    ],
)
def test_a_crossover_is_found_where_the_curves_really_cross(
    lines: dict[int, tuple[float, float, float]], steep: bool
) -> None:
    rng = np.random.default_rng(2)
    compute = np.linspace(5e4, 4e6, 80)
    truth, slope = crossing(lines)
    assert (slope >= 0.03) == steep
    errors, covered, closed = [], 0, 0
    for run in range(16):
        parts = [
            pl.DataFrame(
                {"rollouts": compute.astype(np.int64),
                 "avg_at_4": a - d * np.exp(-compute / t) + rng.normal(0, 0.014, len(compute))}
            ).with_columns(rollouts_per_problem=pl.lit(n), problems_per_batch=pl.lit(32), seed=pl.lit(0),
                           problem_set=pl.lit("easy"), split=pl.lit("validation"), questions=pl.lit(300),
                           samples=pl.lit(4))
            for n, (a, d, t) in lines.items()
        ]  # fmt: skip
        first, last = lines
        found = [x for x in fit(pl.concat(parts), FitConfig(form="exp", bootstrap=100, seed=run)).crossovers
                 if (x.before, x.after) == (first, last)]  # fmt: skip
        if not found:
            continue
        errors.append(abs(found[-1].compute / truth - 1))
        low, high = found[-1].interval or (None, None)
        closed += low is not None and high is not None
        covered += (low or 0.0) <= truth <= (high or np.inf)
    if steep:
        assert len(errors) == closed == 16
        assert np.median(errors) < 0.10
    # Where the curves cross at a small angle the place is not known so well, and the interval is wide or open.
    else:
        assert closed < len(errors)
    assert covered >= stats.binom.ppf(0.001, len(errors), 0.90)


SHORT, LONG = 2, 12
"""Length of a run, in multiples of the compute of half the gain."""


@pytest.mark.parametrize(("length", "ns"), [(SHORT, 3), (LONG, 3), (LONG, 8)])
def test_what_users_run_is_covered_or_flagged(length: int, ns: int) -> None:
    # Forms chosen by AICc, noise of twice the binomial, two seeds that differ in gain and timing.
    truths = {
        2 ** (2 + i): Parameters(form="exp", start=0.33, gain=0.30 + 0.02 * i, scale=8000 * 1.1**i / np.log(2), shape=1)
        for i in range(ns)
    }
    setting = Simulation(truths=truths, end=8000.0 * length, evaluations=24, dispersion=2.0)
    rng, at = np.random.default_rng(0), np.array([setting.end])
    clear = covered = flagged = ends = differences = curves = 0
    for run in range(12 if ns == 3 else 5):
        fits = fit(setting.evals(rng), FitConfig(bootstrap=100, seed=run))
        drawn = [c.draws.at(at)[:, 0] for c in fits.fitted if c.draws is not None]
        means = [float(p(setting.end)) for p in truths.values()]
        for i, (c, p) in enumerate(zip(fits.fitted, truths.values(), strict=True)):
            assert c.asymptote_interval is not None
            curves += 1
            flagged += bool(c.flags)
            clear += not c.flags
            covered += not c.flags and c.asymptote_interval[0] <= p.asymptote <= c.asymptote_interval[1]
            ends += _holds(drawn[i], means[i])
            differences += _holds(drawn[i] - drawn[i - 1], means[i] - means[i - 1])
    least = stats.binom.ppf(0.001, curves, 0.90)
    assert ends >= least
    assert differences >= least
    assert covered >= stats.binom.ppf(0.001, clear, 0.90)
    if length == LONG:
        assert flagged <= stats.binom.ppf(0.999, curves, 0.10)
    else:
        # Two half-gains say nothing of where a curve levels off.
        assert flagged >= 0.9 * curves
