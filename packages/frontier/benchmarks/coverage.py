"""How often nominal 95 % intervals hold the truth: simulated runs of the papers' curves, counted.

    python packages/frontier/benchmarks/coverage.py [--runs 200] [--bootstrap 200]

One row a setting: evaluations, autocorrelation, effective evaluations, seeds, spread between seeds and how much of it
all n of a seed share; how often the bootstrap's interval of the asymptote A, its profile-likelihood interval, the
bootstrap's interval of the curve at the end of the run, and that of the difference between two n there held the
truth; and how many curves were flagged as too short.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import polars as pl
from isocompute.frontier import FitConfig, Flag, fit

# A, D, tau of Figure 5's lines for n = 8, 32 and 128 on Easy (rollouts).
TRUTHS = ((0.582, 0.129, 230_520.0), (0.595, 0.191, 223_100.0), (0.618, 0.199, 426_030.0))
END = 4_000_000.0
QUESTIONS, SAMPLES = 300, 4


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One kind of simulated run."""

    evaluations: int
    autocorrelation: float
    seeds: int = 1
    spread: float = 0.0
    shared: float = 0.0

    @property
    def effective(self) -> float:
        """N(1−φ)/(1+φ)."""
        return self.evaluations * (1 - self.autocorrelation) / (1 + self.autocorrelation)


SETTINGS = (
    *(Setting(evaluations=n, autocorrelation=phi)
      for n, phi in ((20, 0.0), (25, 0.0), (100, 0.0), (30, 0.2), (47, 0.4), (60, 0.4), (80, 0.6), (180, 0.8),
                     (400, 0.8))),
    *(Setting(evaluations=40, autocorrelation=0.2, seeds=seeds, spread=0.015, shared=shared)
      for shared in (0.0, 0.8) for seeds in (2, 3, 5, 10)),
    *(Setting(evaluations=80, autocorrelation=0.6, seeds=seeds, spread=0.015) for seeds in (2, 3, 5, 10)),
)  # fmt: skip


def simulated(setting: Setting, rng: np.random.Generator) -> pl.DataFrame:
    """An ``evals`` table of one curve per truth; noise is binomial in size and AR(1) in time."""
    compute = np.linspace(END / setting.evaluations, END, setting.evaluations).round()
    parts = []
    common = rng.standard_normal(setting.seeds)
    for i, (asymptote, drop, tau) in enumerate(TRUTHS):
        for seed in range(setting.seeds):
            rise = 1 - np.exp(-compute / tau)
            own = np.sqrt(setting.shared) * common[seed] + np.sqrt(1 - setting.shared) * rng.standard_normal()
            truth = asymptote - drop + (drop + setting.spread * own) * rise
            shocks = rng.standard_normal(setting.evaluations)
            noise = np.empty_like(shocks)
            noise[0] = shocks[0]
            phi = setting.autocorrelation
            for t in range(1, len(noise)):
                noise[t] = phi * noise[t - 1] + np.sqrt(1 - phi**2) * shocks[t]
            reward = np.clip(truth + noise * np.sqrt(truth * (1 - truth) / (QUESTIONS * SAMPLES)), 0, 1)
            parts.append(
                pl.DataFrame({"rollouts": compute.astype(np.int64), "avg_at_4": reward}).with_columns(
                    rollouts_per_problem=pl.lit(2 ** (3 + 2 * i)), problems_per_batch=pl.lit(32), seed=pl.lit(seed),
                    problem_set=pl.lit("easy"), split=pl.lit("validation"), questions=pl.lit(QUESTIONS),
                    samples=pl.lit(SAMPLES),
                )
            )  # fmt: skip
    return pl.concat(parts)


def outcomes(setting: Setting, *, runs: int, bootstrap: int, seed: int = 0) -> Iterator[list[bool]]:
    """For every simulated curve: whether A, A by its profile, the end and a difference of ends were covered.

    Last, whether it was called too short. The difference is to the curve before.
    """
    rng = np.random.default_rng(seed)
    at = np.array([END])
    ends = [a - d * np.exp(-END / t) for a, d, t in TRUTHS]
    for run in range(runs):
        fits = fit(simulated(setting, rng), FitConfig(form="exp", bootstrap=bootstrap, seed=run))
        drawn = [c.draws.at(at)[:, 0] for c in fits.fitted if c.draws is not None]
        for i, (c, (asymptote, _, _)) in enumerate(zip(fits.curves, TRUTHS, strict=True)):
            if c.asymptote_interval is None or c.profile is None or len(drawn) < len(TRUTHS):
                yield [False, False, False, False, True]
                continue
            yield [
                c.asymptote_interval[0] <= asymptote <= c.asymptote_interval[1],
                c.profile.interval[0] <= asymptote <= c.profile.interval[1],
                _holds(drawn[i], ends[i]),
                _holds(drawn[i] - drawn[i - 1], ends[i] - ends[i - 1]),
                Flag.SUPPORT_TOO_SHORT in c.flags,
            ]


def _holds(draws: np.ndarray, truth: float) -> bool:
    low, high = np.quantile(draws, [0.025, 0.975])
    return bool(low <= truth <= high)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--bootstrap", type=int, default=200)
    arguments = parser.parse_args()
    print("evaluations  phi  effective  seeds  spread  shared |      A  profile    end  difference  too short  curves")
    for s in SETTINGS:
        found = np.array(list(outcomes(s, runs=arguments.runs, bootstrap=arguments.bootstrap)))
        a, profile, end, difference, short = found.mean(axis=0)
        print(
            f"{s.evaluations:11d}  {s.autocorrelation:.1f}  {s.effective:9.0f}  {s.seeds:5d}  {s.spread:6.3f}  "
            f"{s.shared:6.1f} | {a:6.1%}  {profile:7.1%} {end:6.1%}  {difference:10.1%}  {short:9.1%}  {len(found):6d}",
            flush=True,
        )


if __name__ == "__main__":
    main()
