"""Whether the posterior's intervals, decisions and claims are right: counted over made-up sweeps of known truth.

    python -m benchmarks.frontier.calibration [--sweeps 400] [--only NAME …] [--out FILE]

Each row is a kind of world (see ``worlds``), with its seeds and their standard deviation as a share of the gain. It
counts how often 95 % intervals cover the reward at the end of the data, at four times that compute, the asymptote A,
and the difference of every n from the middle one; how wide they are; how often one n is called the best with 95 % or
more; the regret of what is chosen, in reward, at the end of the data, at 4 × and at 16 ×; and CPU-seconds per fit.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from isocompute.frontier import Frontier

from benchmarks.frontier.worlds import LAST, sweep, world

BUDGETS = np.array([1.0, 4.0, 16.0]) * LAST
FOREVER = 1e15


@dataclass(frozen=True, kw_only=True)
class Row:
    """One setting of the simulation."""

    kind: str
    seeds: int
    deviation: float

    @property
    def name(self) -> str:
        """Its name on the command line and in the table."""
        return f"{self.kind}-{self.seeds}-{self.deviation:g}"


ROWS = (
    *(Row(kind=kind, seeds=seeds, deviation=0.05) for kind in ("smooth", "odd", "rough", "paper") for seeds in (2, 3)),
    Row(kind="smooth", seeds=5, deviation=0.05), Row(kind="smooth", seeds=3, deviation=0.15),
    Row(kind="smooth", seeds=1, deviation=0.05), Row(kind="odd", seeds=3, deviation=0.15),
    Row(kind="flat", seeds=2, deviation=0.05), Row(kind="flat", seeds=1, deviation=0.06),
)  # fmt: skip


def one(row: Row, number: int) -> dict[str, list[float]]:
    """What one sweep shows."""
    rng = np.random.default_rng([number, 7])
    truth = world(row.kind, rng)
    evals = sweep(truth, rng, seeds=row.seeds, deviation=row.deviation)
    begin = time.process_time()
    fitted = Frontier(evals).fit(seed=number)
    spent = time.process_time() - begin
    ns = [c.rollouts_per_problem for c in fitted.cells]
    budgets = np.array([*BUDGETS, FOREVER])
    right = np.array([truth.reward(n, budgets) for n in ns])
    drawn = fitted.posterior.reward(budgets)
    low, high = np.quantile(drawn, [0.025, 0.975], axis=0)
    covered = (low <= right) & (right <= high)
    middle = len(ns) // 2
    others = [k for k in range(len(ns)) if k != middle]
    apart = (drawn - drawn[:, [middle]])[:, others, 0]
    ends = np.quantile(apart, [0.025, 0.975], axis=0)
    difference = (right - right[middle])[others, 0]
    decisions = [fitted.decide(b) for b in BUDGETS]
    chosen = [ns.index(d.chosen.cell.rollouts_per_problem) for d in decisions]
    return {
        "end": covered[:, 0].tolist(), "four": covered[:, 1].tolist(), "asymptote": covered[:, 3].tolist(),
        "difference": ((ends[0] <= difference) & (difference <= ends[1])).tolist(),
        "width": (high - low)[:, 0].tolist(), "claim": [float(decisions[0].chosen.probability_best >= 0.95)],
        "wrong": [float(decisions[0].known and right[chosen[0], 0] < right[:, 0].max())],
        **{f"regret {int(b / LAST)}": [float(right[:, k].max() - right[c, k])]
           for k, (b, c) in enumerate(zip(BUDGETS, chosen, strict=True))},
        "seconds": [spent], "spread": [fitted.posterior.spread],
    }  # fmt: skip


def table(rows: list[Row], sweeps: int) -> Iterator[dict[str, float | str]]:
    """Means over the sweeps of each row."""
    for row in rows:
        every = [one(row, k) for k in range(sweeps)]
        yield {"name": row.name, **{key: float(np.mean([e[key] for e in every])) for key in every[0]}}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sweeps", type=int, default=400)
    parser.add_argument("--only", nargs="*", choices=[r.name for r in ROWS])
    parser.add_argument("--out", type=Path, help="a file of JSON lines")
    arguments = parser.parse_args()
    print("name            at C_max  at 4 C_max      A  difference  width  claims  wrong  "
          "regret 1, 4, 16 C_max (x 1000)   CPU s")  # fmt: skip
    for found in table([r for r in ROWS if not arguments.only or r.name in arguments.only], arguments.sweeps):
        regrets = "  ".join(f"{1000 * float(found[f'regret {k}']):5.1f}" for k in (1, 4, 16))
        print(
            f"{found['name']:15} {found['end']:8.1%}  {found['four']:10.1%}  {found['asymptote']:5.1%}  "
            f"{found['difference']:10.1%}  {found['width']:5.3f}  {found['claim']:6.1%}  {found['wrong']:5.1%}  "
            f"{regrets:31}  {found['seconds']:6.2f}",
            flush=True,
        )
        if arguments.out:
            with arguments.out.open("a") as stream:
                stream.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
