"""How often nominal 95 % intervals cover the truth: counted over simulated sweeps such as users run.

    python benchmarks/frontier/coverage.py [--sweeps 60] [--bootstrap 200] [--form auto]

One row per setting: length of the runs in multiples of the compute of half the gain, n compared, seeds, evaluations,
noise within a run in binomial standard errors and its autocorrelation, and the share of the seeds' effects that all n
have in common; then the share of curves flagged, of all and of those fitted with their true form (``right``); and how
often the interval of the asymptote A covered it, of the curves without a flag and of all, its profile-likelihood
interval, the interval of the reward at the end of the run, and that of the difference there to the n before.
Truths have different gains and timing at each n.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from isocompute.frontier import FitConfig, Flag, fit
from isocompute.frontier.fitting.forms import FORMS, Parameters
from isocompute.frontier.fitting.simulation import Simulation

HALF = 8_000.0
"""Compute of half the gain of the slowest n."""
DOUBTFUL = {Flag.WITHIN_RUN_ONLY}
"""Flags that say nothing against the value."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One row."""

    length: float
    form: str = "exp"
    ns: int = 3
    seeds: int = 2
    evaluations: int = 16
    dispersion: float = 2.0
    autocorrelation: float = 0.3
    shared: float = 0.5

    def simulation(self) -> Simulation:
        """The sweep."""
        truths = {2 ** (2 + i): truth(self.form, i, self.ns) for i in range(self.ns)}
        return Simulation(
            truths=truths, end=self.length * HALF, evaluations=self.evaluations, seeds=self.seeds,
            autocorrelation=self.autocorrelation, dispersion=self.dispersion, shared=self.shared,
        )  # fmt: skip


def truth(form: str, i: int, ns: int) -> Parameters:
    """The i-th n: a little more to gain, a little later."""
    shape = {"exp": 1.0, "hill": 1.5, "power": 2.0}[form]
    unit = Parameters(form=form, start=0.33, gain=0.30 + 0.02 * i, scale=1.0, shape=shape)
    scale = HALF * 1.1 ** (i - ns + 1) / unit.half_compute
    return Parameters(form=form, start=0.33, gain=unit.gain, scale=scale, shape=shape)


SETTINGS = (
    *(Setting(length=length, ns=ns) for length in (1, 2, 3) for ns in (3, 8)),
    *(Setting(length=length, dispersion=5.0) for length in (2, 3)),
    *(Setting(length=12, ns=ns, evaluations=24, dispersion=d) for ns in (3, 8) for d in (1.0, 2.0, 3.0)),
    *(Setting(length=12, evaluations=24, shared=shared) for shared in (0.0, 1.0)),
    *(Setting(length=12, evaluations=24, form=form) for form in ("hill", "power")),
    Setting(length=12, evaluations=60, autocorrelation=0.6),
    *(Setting(length=12, evaluations=24, seeds=seeds) for seeds in (1, 3, 5)),
)


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What became of one simulated curve."""

    flagged: bool
    right_form: bool
    asymptote: bool
    profile: bool
    end: bool
    difference: bool


def outcomes(setting: Setting, *, sweeps: int, bootstrap: int, form: str, seed: int = 0) -> Iterator[Outcome]:
    """Every simulated curve of a setting; the difference is to the n before."""
    simulation = setting.simulation()
    rng = np.random.default_rng(seed)
    at = np.array([simulation.end])
    for sweep in range(sweeps):
        fits = fit(simulation.evals(rng), FitConfig(form=form, bootstrap=bootstrap, seed=sweep))
        drawn = [c.draws.at(at)[:, 0] for c in fits.fitted if c.draws is not None]
        ends = [float(p(simulation.end)) for p in simulation.truths.values()]
        for i, (c, p) in enumerate(zip(fits.curves, simulation.truths.values(), strict=True)):
            assert c.asymptote_interval is not None
            assert c.profile is not None
            assert c.parameters is not None
            yield Outcome(
                flagged=bool(set(c.flags) - DOUBTFUL), right_form=c.parameters.form == p.form,
                asymptote=c.asymptote_interval[0] <= p.asymptote <= c.asymptote_interval[1],
                profile=c.profile.interval[0] <= p.asymptote <= c.profile.interval[1],
                end=_covers(drawn[i], ends[i]), difference=_covers(drawn[i] - drawn[i - 1], ends[i] - ends[i - 1]),
            )  # fmt: skip


def _covers(draws: np.ndarray, truth: float) -> bool:
    low, high = np.quantile(draws, [0.025, 0.975])
    return bool(low <= truth <= high)


def row(s: Setting, found: list[Outcome]) -> str:
    """One line of the table."""
    clear = [o for o in found if not o.flagged]
    right = [o for o in found if o.right_form]

    def share(values: list[bool]) -> str:
        return f"{np.mean(values):6.1%}" if values else "     —"

    shares = (
        [o.flagged for o in found], [o.flagged for o in right], [o.asymptote for o in clear],
        [o.asymptote for o in found], [o.profile for o in found], [o.end for o in found],
        [o.difference for o in found],
    )  # fmt: skip
    return (
        f"{s.form:5} {s.length:6g} {s.ns:2d} {s.seeds:5d} {s.evaluations:11d} {s.dispersion:5.1f} "
        f"{s.autocorrelation:4.1f} {s.shared:6.1f} | {'  '.join(map(share, shares))}  {len(found):6d}"
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sweeps", type=int, default=60)
    parser.add_argument("--bootstrap", type=int, default=200)
    parser.add_argument("--form", default="auto", choices=["auto", "true", *FORMS], help="form fitted")
    arguments = parser.parse_args()
    print(
        "form  length  n seeds evaluations noise  phi shared |  flags   right  A clear   A all profile     end    diff"
        "  curves"
    )
    for s in SETTINGS:
        form = s.form if arguments.form == "true" else arguments.form
        found = list(outcomes(s, sweeps=arguments.sweeps, bootstrap=arguments.bootstrap, form=form))
        print(row(s, found), flush=True)


if __name__ == "__main__":
    main()
