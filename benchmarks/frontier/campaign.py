"""A campaign: cases, what each of their made-up sweeps shows, and a table of what was counted against what is wanted.

A campaign whose ``--out`` file holds sweeps of an earlier run goes on after them.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

Records = Mapping[str, np.ndarray]
"""Measurements by name; one value per sweep, NaN where it does not apply."""
Statistic = Callable[[Records], Mapping[str, float]]
Bounds = tuple[float | None, float | None]


def means(records: Records) -> dict[str, float]:
    """The mean of everything over the sweeps to which it applies."""
    return {name: float(np.nanmean(v)) for name, v in records.items() if not np.isnan(v).all()}


@dataclass(frozen=True, kw_only=True)
class Case:
    """One setting of the simulation.

    Attributes:
        name: On the command line and in the table.
        one: What the sweep of a number shows.
        wanted: Least and most of what is counted; what is not named is only printed.
        statistic: What is counted, from all sweeps.
        sweeps: By default.
    """

    name: str
    one: Callable[[int], Mapping[str, float]]
    wanted: Mapping[str, Bounds]
    statistic: Statistic = means
    sweeps: int = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Count:
    """A count.

    Attributes:
        error: Its standard error over sweeps, by the jackknife.
        sweeps: How many there were.
    """

    value: float
    error: float
    sweeps: int

    def verdict(self, bounds: Bounds) -> str:
        """``ok``, ``missed`` by more than two standard errors, or ``unclear`` between."""
        low, high = bounds
        short = max(low - self.value if low is not None else 0.0, self.value - high if high is not None else 0.0)
        return "ok" if short <= 1e-12 else "missed" if short > 2 * self.error else "unclear"


def counts(records: Records, statistic: Statistic) -> dict[str, Count]:
    """A statistic with its errors."""
    total = max(map(len, records.values()))
    left = [statistic({k: np.delete(v, i) for k, v in records.items()}) for i in range(total)] if total > 2 else []
    found = {}
    for name, value in statistic(records).items():
        again = np.array([part.get(name, np.nan) for part in left])
        again = again[np.isfinite(again)]
        error = float(np.sqrt(max(len(again) - 1, 0) * np.var(again))) if len(again) else np.inf
        # A share of none or of all is known to about one in so many.
        found[name] = Count(value=value, error=error or 1 / total, sweeps=total)
    return found


def lines(case: str, found: Mapping[str, Count], wanted: Mapping[str, Bounds]) -> list[str]:
    """Rows of the table."""
    rows = []
    for name, count in found.items():
        bounds = wanted.get(name)
        low, high = bounds or (None, None)
        said = f"{'' if low is None else f'{low:g}'} to {'' if high is None else f'{high:g}'}" if bounds else ""
        rows.append(
            f"{case:18} {name:42} {count.value:9.4f} ± {count.error:6.4f}  {said:14} "
            f"{count.verdict(bounds) if bounds else '':8} {count.sweeps:5d}"
        )
    return rows


def main(
    about: str | None, cases: Sequence[Case], *, overall: Statistic | None = None, wanted: Mapping[str, Bounds] = {}
) -> None:
    """Run a campaign from the command line.

    Args:
        about: Its description.
        cases: Its cases.
        overall: What is counted over the sweeps of all cases together.
        wanted: Least and most of that.
    """
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sweeps", type=int, help="of each case; by default as its budget says")
    parser.add_argument("--first", type=int, default=0, help="number of the first, so that choices are made on others")
    parser.add_argument("--only", nargs="*", metavar="NAME", choices=[c.name for c in cases], help="cases")
    parser.add_argument("--out", type=Path, help="a file of JSON lines, one per sweep")
    given = parser.parse_args()
    print(f"{'case':18} {'what':42} {'value':>9} ± {'error':6}  {'wanted':14} {'':8} {'sweeps':>5}", flush=True)
    every: list[Records] = []
    for case in cases:
        if given.only and case.name not in given.only:
            continue
        records = collect(case, given.sweeps or case.sweeps, given.out, first=given.first)
        every.append(records)
        print("\n".join(lines(case.name, counts(records, case.statistic), case.wanted)), flush=True)
    if overall:
        joined = {k: np.concatenate([r[k] for r in every]) for k in every[0] if all(k in r for r in every)}
        print("\n".join(lines("all", counts(joined, overall), wanted)), flush=True)


def collect(case: Case, sweeps: int, out: Path | None, *, first: int = 0) -> Records:
    """The records of a case, those in the file and those that are missing there.

    Args:
        first: Number of the first sweep; all that happens in one follows from its number.
    """
    done: dict[int, Mapping[str, float]] = {}
    if out and out.exists():
        for line in out.read_text().splitlines():
            row = json.loads(line)
            if row.pop("case") == case.name:
                done[row.pop("sweep")] = row
    numbers = range(first, first + sweeps)
    for number in numbers:
        if number not in done:
            done[number] = {k: float(v) for k, v in case.one(number).items()}
            if out:
                with out.open("a") as stream:
                    stream.write(json.dumps({"case": case.name, "sweep": number, **done[number]}) + "\n")
    rows = [done[k] for k in numbers]
    return {
        name: np.array([row.get(name, np.nan) for row in rows]) for name in dict.fromkeys(k for r in rows for k in r)
    }
