"""Recompute the numbers of findings.md from the committed tables of the panel: ``python docs/findings_check.py``."""

import json
import re
import sys
from pathlib import Path

import numpy as np
import polars as pl
from scipy import stats

DOCS = Path(__file__).parent
PANEL = DOCS.parent / "experiments" / "studies" / "panel"
CARDS = (DOCS / "findings.md").read_text().split("## Robustness cards")[1]
UNITS, PINNED = (json.loads((PANEL / f"{name}.json").read_text()) for name in ("findings", "pinned"))
UNITS, PINNED = UNITS["units"], PINNED["numbers"]
FIELDS = ("pinned", "today", "anchor", "edges", "estimator", "failures", "units", "processor")
LESS = {"Q4": ("easy", "hard"), "Q12": ("mixture", "easy", "hard")}
NUMBERS = re.compile(r"([+−]?\d+\.\d+)(?: octaves)? \(([+−]?\d+\.\d+) to ([+−]?\d+\.\d+)")


def mean(values, how=""):
    """Mean over units and its 95 % interval; of a whole table of settings and bases by Satterthwaite."""
    names = sorted({unit[:-2] for unit in values})
    if how == "settings alone":
        values = {f"{name}-0": np.mean([v for unit, v in values.items() if unit[:-2] == name]) for name in names}
    x = np.array(list(values.values()))
    variance, freedom = x.var(ddof=1), len(x) - 1
    if len(x) == 3 * len(names) > 3 and how != "independent":
        table = np.array([[values[f"{name}-{base}"] for base in range(3)] for name in names])
        rows, columns = table.mean(axis=1), table.mean(axis=0)
        free = np.array([len(rows) - 1, 2, 2 * (len(rows) - 1)])
        rest = ((table - rows[:, None] - columns + x.mean()) ** 2).sum() / free[2]
        squares = np.array([3 * rows.var(ddof=1), len(rows) * columns.var(ddof=1), rest])
        variance, freedom = rest, free[2]
        if (total := squares[0] + squares[1] - rest) > rest:
            variance, freedom = total, total**2 / (squares**2 / free).sum()
    half = stats.t.ppf(0.975, freedom) * np.sqrt(variance / len(x))
    return x.mean(), x.mean() - half, x.mean() + half


def of(question, reading):
    """The pinned number of each unit or that of a reading; of each base model where settings are compared."""
    if not reading:
        return {unit: own[0] for unit, own in PINNED[question].items()}
    where = "late" if question in LESS else question
    own = {unit: each["questions"].get(where, {}) for unit, each in UNITS.items()}
    own = {unit: each[reading][0] for unit, each in own.items() if reading in each}
    if question not in LESS:
        return own
    first, *others = LESS[question]
    return {f"{first}-{b}": own[f"{first}-{b}"] - np.mean([own[f"{o}-{b}"] for o in others]) for b in range(3)}


def vertex(n, reward):
    """The top of the parabola through rewards in log2 n, within n = 2 and 32."""
    bent, slope, _ = np.polyfit(np.log2(n), reward, 2)
    return np.clip(-slope / (2 * bent), 1, 5) if bent < 0 else 5 if 24 * bent + 4 * slope > 0 else 1


wrong, rows = [], [line.strip("| ").split(" | ") for line in CARDS.splitlines() if line.startswith("| Q")]
for question, *cells, _ in rows:
    for field, cell in zip(FIELDS, cells, strict=True):
        for said in filter(NUMBERS.search, cell.split("<br>")):
            what = said.partition(": ")[0]
            readings = {"pinned": "", "today": "as pinned", "units": "as pinned"}
            values = of(question, readings.get(field, f"{field}: {what}"))
            stands = NUMBERS.search(said).groups()
            last, numbers = 0.6 / 10 ** len(stands[0].split(".")[1]), [float(x.replace("−", "-")) for x in stands]
            if what != "and within them" and not np.allclose(mean(values, what), numbers, rtol=0, atol=last):
                wrong.append(f"{question}: {mean(values, what)}, and the page says {said}")

for unit, own in UNITS.items():  # Q1 and Q2 in the last evaluations, from the evaluations themselves
    cells = json.loads((PANEL / "results" / unit / "cells.json").read_text())["cells"]
    trunks = {c["run_id"]: c["learning_rate"] for c in cells if not c["branch_of"] and c["problems_per_batch"] == 8}
    evals = pl.read_parquet(PANEL / "results" / unit / "evals.parquet").filter(pl.col("run_id").is_in(list(trunks)))
    evals = evals.with_columns(rate=pl.col("run_id").replace_strict(trunks))
    n, ends = np.array([2, 4, 8, 16, 32]), {}
    for end in (8192, 65536):
        late = evals.filter(pl.col("rollouts").is_between(end / 1.5, end)).group_by("rollouts_per_problem", "rate")
        late = late.agg(pl.col("avg_at_4").mean()).sort("rollouts_per_problem", "rate")
        ends[end] = late["avg_at_4"].to_numpy().reshape(5, 3)
    for question, rate in (("Q1", np.ones(5, int)), ("Q2", ends[65536].argmax(axis=1))):
        early, late = (ends[end][np.arange(5), rate] for end in ends)
        moved = vertex(n, late) - vertex(n[:4], early[:4])
        if abs(moved - own["questions"][question]["estimator: last evaluations"][0]) > 1e-3:
            wrong.append(f"{unit} {question}: {moved:.4f} from its evaluations, and not what is committed")

print("\n".join([*wrong, f"{len(rows)} cards: {len(wrong)} numbers differ"]))
sys.exit(bool(wrong) or len(rows) != 14)
