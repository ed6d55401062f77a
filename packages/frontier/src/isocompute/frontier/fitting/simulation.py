"""Sweeps of known truth, to count how often an interval covers it and how often a difference is claimed without one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import polars as pl

from ..data.curves import Array
from ..data.precision import binomial_error
from ..errors import FrontierError
from .forms import Parameters


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulation:
    """How runs are simulated.

    Attributes:
        truths: The true curve of each n.
        end: Compute of the last evaluation, in rollouts.
        evaluations: Evaluations of a run, evenly spaced up to the end.
        seeds: Runs of each n; seeds have the same names at every n.
        autocorrelation: Lag-1 autocorrelation of the noise within a run.
        dispersion: Standard deviation of that noise, in binomial standard errors.
        amplitude: Standard deviation, over seeds, of the gain made, as a share of the gain.
        timing: Standard deviation, over seeds, of the logarithm of the scale.
        shared: Share of the variance between seeds that all n of a seed have in common.
        questions: Questions of an evaluation.
        samples: Samples of each.

    Raises:
        FrontierError: There is no truth, or fewer than one seed or two evaluations.
    """

    truths: Mapping[int, Parameters]
    end: float
    evaluations: int = 16
    seeds: int = 2
    autocorrelation: float = 0.3
    dispersion: float = 1.0
    amplitude: float = 0.06
    timing: float = 0.06
    shared: float = 0.5
    questions: int = 300
    samples: int = 4

    def __post_init__(self) -> None:
        if not self.truths or self.seeds < 1 or self.evaluations < 2:
            raise FrontierError("a simulation needs a truth, a seed and two evaluations")

    def evals(self, rng: np.random.Generator, *, first_seed: int = 0) -> pl.DataFrame:
        """One simulated sweep, as an ``evals`` table with the metric ``avg_at_4``.

        Args:
            rng: Source of randomness.
            first_seed: Name of the first seed; tables whose seeds have other names are of other runs.
        """
        compute = np.linspace(self.end / self.evaluations, self.end, self.evaluations).round()
        common = rng.standard_normal((self.seeds, 2))
        parts = []
        for n, truth in self.truths.items():
            own = rng.standard_normal((self.seeds, 2))
            effects = np.sqrt(self.shared) * common + np.sqrt(1 - self.shared) * own
            for k, (amplitude, timing) in enumerate(effects):
                reward = self._run(truth, compute, amplitude, timing, rng)
                parts.append(
                    pl.DataFrame({"rollouts": compute.astype(np.int64), "avg_at_4": reward}).with_columns(
                        run_id=pl.lit(f"n{n}-seed{first_seed + k}"), step=(pl.col("rollouts") // (8 * n)),
                        rollouts_per_problem=pl.lit(n), problems_per_batch=pl.lit(8), seed=pl.lit(first_seed + k),
                        problem_set=pl.lit("simulated"), split=pl.lit("validation"),
                        questions=pl.lit(self.questions), samples=pl.lit(self.samples),
                    )
                )  # fmt: skip
        return pl.concat(parts)

    def _run(
        self, truth: Parameters, compute: Array, amplitude: float, timing: float, rng: np.random.Generator
    ) -> Array:
        """Rewards of one run."""
        own = Parameters(
            form=truth.form, start=truth.start, gain=truth.gain * (1 + self.amplitude * amplitude),
            scale=truth.scale * float(np.exp(self.timing * timing)), shape=truth.shape,
        )  # fmt: skip
        mean = np.clip(own(compute), 0.0, 1.0)
        shocks, phi = rng.standard_normal(len(compute)), self.autocorrelation
        noise = np.empty_like(shocks)
        noise[0] = shocks[0]
        for t in range(1, len(noise)):
            noise[t] = phi * noise[t - 1] + np.sqrt(1 - phi**2) * shocks[t]
        error = binomial_error(mean, self.questions * self.samples)
        return np.asarray(np.clip(mean + self.dispersion * noise * error, 0.0, 1.0))
