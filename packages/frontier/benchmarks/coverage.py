"""How often nominal 95 % intervals hold the truth: simulated runs of the papers' curves, counted.

    python packages/frontier/benchmarks/coverage.py [--runs 200] [--bootstrap 200]

One row a setting: evaluations, autocorrelation, seeds, spread between seeds; coverage of the asymptote A and of the
curve at the end of the run, and how many curves were flagged as too short.
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

    @property
    def effective(self) -> float:
        """N(1−φ)/(1+φ)."""
        return self.evaluations * (1 - self.autocorrelation) / (1 + self.autocorrelation)


SETTINGS = (
    Setting(evaluations=25, autocorrelation=0.0), Setting(evaluations=60, autocorrelation=0.4),
    Setting(evaluations=200, autocorrelation=0.8), Setting(evaluations=40, autocorrelation=0.2, seeds=2, spread=0.015),
    Setting(evaluations=40, autocorrelation=0.2, seeds=3, spread=0.015),
    Setting(evaluations=40, autocorrelation=0.2, seeds=5, spread=0.015),
    Setting(evaluations=40, autocorrelation=0.2, seeds=10, spread=0.015),
)  # fmt: skip


def simulated(setting: Setting, rng: np.random.Generator) -> pl.DataFrame:
    """An ``evals`` table of one curve per truth; noise is binomial in size and AR(1) in time."""
    compute = np.linspace(END / setting.evaluations, END, setting.evaluations).round()
    parts = []
    for i, (asymptote, drop, tau) in enumerate(TRUTHS):
        for seed in range(setting.seeds):
            rise = 1 - np.exp(-compute / tau)
            truth = asymptote - drop + drop * rise + rng.normal(0, setting.spread) * rise
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


def outcomes(setting: Setting, *, runs: int, bootstrap: int, seed: int = 0) -> Iterator[tuple[bool, bool, bool]]:
    """For every simulated curve: whether A was covered, whether the end was, whether it was called too short."""
    rng = np.random.default_rng(seed)
    for run in range(runs):
        fits = fit(simulated(setting, rng), FitConfig(form="exp", bootstrap=bootstrap, seed=run))
        for c, (asymptote, drop, tau) in zip(fits.curves, TRUTHS, strict=True):
            if c.asymptote_interval is None or c.draws is None:
                yield False, False, True
                continue
            low, high = c.asymptote_interval
            end_low, end_high = np.quantile(c.draws.at(np.array([END]))[:, 0], [0.025, 0.975])
            end = asymptote - drop * np.exp(-END / tau)
            yield low <= asymptote <= high, bool(end_low <= end <= end_high), Flag.SUPPORT_TOO_SHORT in c.flags


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--bootstrap", type=int, default=200)
    arguments = parser.parse_args()
    print("evaluations  phi  effective  seeds  spread   covered: A   end   too short   curves")
    for s in SETTINGS:
        found = np.array(list(outcomes(s, runs=arguments.runs, bootstrap=arguments.bootstrap)))
        a, end, short = found.mean(axis=0)
        print(
            f"{s.evaluations:11d}  {s.autocorrelation:.1f}  {s.effective:9.0f}  {s.seeds:5d}  {s.spread:6.3f}  "
            f"{a:11.1%} {end:6.1%}  {short:9.1%}  {len(found):7d}",
            flush=True,
        )


if __name__ == "__main__":
    main()
