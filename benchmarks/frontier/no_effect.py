"""False-positive rates: simulated sweeps in which every n has the same true curve.

    python benchmarks/frontier/no_effect.py [--sweeps 200] [--bootstrap 200]

One row per setting: n compared, seeds, and the share of sweeps in which ``fit`` states a crossover with a closed
interval, in which it says that any two n can be told apart, in which one n is best in 95 % or more of the refits at the
largest compute, and in which the prescribed n, trained again with other seeds, is said to have won against any other.
"""

from __future__ import annotations

import argparse
from math import comb

import numpy as np
from isocompute.frontier import FitConfig, compare, fit
from isocompute.frontier.fitting.forms import Parameters
from isocompute.frontier.fitting.simulation import Simulation

TRUTH = Parameters(form="exp", start=0.33, gain=0.45, scale=8_000.0, shape=1.0)
SETTINGS = tuple(
    Simulation(truths=dict.fromkeys(ns, TRUTH), end=20_000.0, seeds=seeds, shared=shared)
    for ns, seeds in (((4, 8, 16), 2), ((4, 8, 16, 32, 64, 128), 3))
    for shared in (0.0, 0.5)
)


def claims(setting: Simulation, number: int, bootstrap: int) -> list[bool]:
    """What one simulated sweep is said to show: a crossover, a difference, a best n, a prescription that won."""
    rng = np.random.default_rng(number)
    fits = fit(setting.evals(rng), FitConfig(bootstrap=bootstrap, seed=number))
    last = fits.probability[:, -1]
    chosen = fits.fitted[int(last.argmax())].curve.rollouts_per_problem
    again = setting.evals(rng, first_seed=setting.seeds)
    others = [n for n in setting.truths if n != chosen]
    return [
        any(closed(x.interval) for x in fits.crossovers if x.kind == "crossing" and x.stated),
        len(fits.alike) < comb(len(fits.fitted), 2),
        bool(last.max() >= 0.95),
        any(c.verdict == "won" for c in compare(again, prescribed=chosen, baselines=others)),
    ]


def closed(interval: tuple[float | None, float | None] | None) -> bool:
    """Whether both ends of an interval are known."""
    return interval is not None and None not in interval


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sweeps", type=int, default=200)
    parser.add_argument("--bootstrap", type=int, default=200)
    arguments = parser.parse_args()
    print(" n  seeds  shared | closed crossover  told apart  best in 95 %  won  sweeps")
    for setting in SETTINGS:
        found = np.mean([claims(setting, k, arguments.bootstrap) for k in range(arguments.sweeps)], axis=0)
        print(
            f"{len(setting.truths):2d}  {setting.seeds:5d}  {setting.shared:6.1f} | {found[0]:16.1%}  "
            f"{found[1]:10.1%}  {found[2]:12.1%}  {found[3]:4.1%}  {arguments.sweeps:6d}",
            flush=True,
        )


if __name__ == "__main__":
    main()
