"""The rows of ``sweeps.csv`` that this repository's data make, and the tables of docs/sweeps.md.

    python -m benchmarks.frontier.sweeps rows      # n* of the Playbook's sets, of the panel and of the four-knob study
    python -m benchmarks.frontier.sweeps tables    # deviations, coverage and regret, each source left out in turn

Easy is the posterior of packages/frontier/docs/playbook-easy.csv; the panel's numbers are those of its findings.json.
Hard has two printed curves of n*(C) and no points here: its n* is their mean, its deviation half of what they differ,
and at least Easy's. Of the four-knob study n* is the n of highest final accuracy, under the deviation of its seeds.
"""

from __future__ import annotations

import argparse
import json
import warnings
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
from isocompute.frontier import Frontier
from isocompute.frontier.answers.advice import LEVEL
from isocompute.frontier.data.sweeps import Sweep, read_sweeps
from isocompute.frontier.fitting.nstar import sigmoid
from isocompute.frontier.posterior.between import Between, without

ROOT = Path(__file__).parents[2]
BUDGETS = (250_000, 1_000_000, 4_000_000)
LEAST = 0.5
"""Octaves: grids of n are an octave apart, and no n* is known better than half of one."""
PRINTED = {
    "easy": (
        {"L": 6.09, "k": 4.75, "x0": 5.84, "b": 2.73},
        {"L": 5.67, "k": 8.84, "x0": 6.08, "b": 3.08},
    ),
    "hard": (
        {"L": 4.47, "k": 7.23, "x0": 5.84, "b": 2.79},
        {"L": 3.97, "k": 50.0, "x0": 6.13, "b": 3.04},
    ),
}
"""IsoCompute Playbook (arXiv 2603.12151), Figures 7 and 21: n*(C) at B_p = 32, and with B_p free."""
FOUR_KNOBS = {
    "Countdown": ({4: 0.242, 8: 0.229, 16: 0.250, 32: 0.119}, 0.0195),
    "GSM8K": ({4: 0.859, 8: 0.861, 16: 0.879, 32: 0.857}, 0.0163),
}
"""Accuracy after 16,384 responses by n, and the deviation of seeds: github.com/simondong1/simondong1.github.io,
experiments/grpo-batch-knobs/endpoints.csv of 15 September 2026, arms group-4, split-4, group-16, group-32; seeds pooled
over the arms of its confirmation that did not collapse."""


def rows() -> Iterator[str]:
    """Every row that can be made again: set, budget, log2 n* and its deviation, reward lost by n."""
    deviations = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fitted = Frontier.read(ROOT / "packages/frontier/docs/playbook-easy.csv").fit()
    n = np.array([cell.rollouts_per_problem for cell in fitted.settings])
    for budget in BUDGETS:
        rewards = fitted.whole(np.array([float(budget)]))[:, :, 0]
        best = np.log2(n)[rewards.argmax(axis=1)]
        deviations[budget] = max(float(best.std()), LEAST)
        mean = rewards.mean(axis=0)
        yield _row("Easy", budget, float(best.mean()), deviations[budget], dict(zip(n, mean.max() - mean, strict=True)))
    for budget in BUDGETS:
        fixed, free = (float(sigmoid(np.log10(budget), each)) for each in PRINTED["hard"])
        deviation = max(abs(fixed - free) / 2, deviations[budget])
        yield _row("Hard", budget, (fixed + free) / 2, deviation, {})
    findings = json.loads((ROOT / "experiments/studies/panel/findings.json").read_text())["units"]
    for unit, own in findings.items():
        for budget, (value, low, high) in zip((8_192, 65_536), own["vertices"]["tuned"][:2], strict=True):
            lost = own["regret by n"] if budget == 65_536 else {}
            yield _row(unit, budget, value, max((high - low) / 3.92, LEAST), lost)
    rng = np.random.default_rng(0)
    for name, (accuracy, deviation) in FOUR_KNOBS.items():
        values = np.array([*accuracy.values()])
        drawn = rng.normal(values, deviation, (100_000, len(values))).argmax(axis=1)
        octaves = np.log2([*accuracy])[drawn]
        lost = dict(zip(accuracy, values.max() - values, strict=True))
        yield _row(name, 16_384, float(octaves.mean()), float(octaves.std()), lost)


def _row(name: str, budget: int, octaves: float, deviation: float, lost: dict[int, float]) -> str:
    pairs = " ".join(f"{n}:{each:.4f}" for n, each in lost.items())
    return f"{name},{budget},{octaves:.2f},{deviation:.2f},{pairs}"


def tables(sweeps: Sequence[Sweep]) -> Iterator[str]:
    """The tables of the page."""
    whole = Between(sweeps)
    sigma, tau = whole.deviations
    yield f"sources differ by {sigma:.2f} octaves, sets of a source by {tau:.2f}; n* per octave of C {_pm(whole.slope)}"
    yield f"per unit of logit p {_pm(whole.difficulty)}"
    yield "| left out | rows | inside 80 % | inside 50 % | mean error, octaves |"
    sources = [*dict.fromkeys(row.source for row in sweeps)]
    covered = []
    for source in sources:
        rest = Between(without(sweeps, source))
        own = [row for row in sweeps if row.source == source]
        found = [rest.at(row.budget, row.pass_rate).widened(row.deviation) for row in own]
        inside = [
            [
                low <= row.log2_n <= high
                for row, (low, _, high) in zip(own, (f.interval(level) for f in found), strict=True)
            ]
            for level in (LEVEL, 0.5)
        ]
        error = [row.log2_n - f.quantile(0.5) for row, f in zip(own, found, strict=True)]
        covered.append([float(np.mean(each)) for each in inside])
        yield f"| {source} | {len(own)} | {sum(inside[0])} | {sum(inside[1])} | {np.mean(error):+.2f} |"
    shares = np.mean(covered, axis=0)
    yield f"| each source alike | {len(sweeps)} | {shares[0]:.0%} | {shares[1]:.0%} | |"
    yield from regrets(sweeps)


def regrets(sweeps: Sequence[Sweep]) -> Iterator[str]:
    """Reward lost by our choice, with the source left out, beside rules of thumb and the source's own rule."""
    yield "| sweep | budget | our n | ours | its own | n = 2 | n = 8 | n = 16 | the largest |"
    groups: dict[tuple[str, str, float], list[Sweep]] = {}
    for sweep in sweeps:
        if sweep.lost:
            panel = sweep.source == "panel"
            groups.setdefault((sweep.source, "12 units" if panel else sweep.problem_set, sweep.budget), []).append(
                sweep
            )
    for (source, name, budget), own in groups.items():
        rest, cells, chosen = Between(without(sweeps, source)), [], set()
        for sweep in own:
            n = 2 ** round(rest.at(sweep.budget, sweep.pass_rate).quantile(0.5))
            chosen.add(n)
            printed = 2.0 ** float(sigmoid(np.log10(budget), PRINTED["easy"][0])) if source == "Playbook" else None
            picks = (max(n, min(sweep.lost)), printed, 2, 8, 16, max(sweep.lost))
            cells.append([_lost(sweep, pick) for pick in picks])
        said = " | ".join(_mean(column) for column in zip(*cells, strict=True))
        yield f"| {source}, {name} | {budget:,.0f} | {', '.join(map(str, sorted(chosen)))} | {said} |"


def _lost(sweep: Sweep, n: float | None) -> float | None:
    """Reward lost at the n of the grid that is nearest; None below the grid."""
    if n is None or n < min(sweep.lost):
        return None
    return sweep.lost[min(sweep.lost, key=lambda own: abs(np.log2(own / n)))]


def _mean(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    return f"{np.mean(known):.3f}" if known else "–"


def _pm(value: tuple[float, float]) -> str:
    return f"{value[0]:+.2f} ± {value[1]:.2f}"


def main(argv: Sequence[str] | None = None) -> None:
    """Print what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["rows", "tables"])
    what = parser.parse_args(argv).what
    lines: Iterable[str] = rows() if what == "rows" else tables(read_sweeps())
    for line in lines:
        print(line)


if __name__ == "__main__":
    main()
