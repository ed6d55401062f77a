"""``docs/fixed-rate.md``: what the study says so far, from its committed tables alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
from isocompute.rollout.contract.files import write_text

from ..panel.advice import table
from ..panel.claims import signed
from ..panel.statistics import Estimate, Rule, Verdict
from ..panel.study import ROOT
from .cells import GRID, RESULTS, SETTINGS, UNITS, missing, read
from .reading import (
    EARLY,
    RATES,
    SETS,
    Key,
    Reading,
    Rewards,
    at_best_rate,
    at_rate,
    estimate,
    highest,
    resolution,
    rewards_of,
)

PAGE = ROOT / "docs" / "fixed-rate.md"
TEMPLATE = Path(__file__).with_name("page.template")
RISES = Rule(claimed="above", least=0.5)
READINGS = {
    "as pinned": Reading(),
    "without n = 32": Reading(largest=16),
    "from C_max/4 on": Reading(early=2 * EARLY),
    "the n of highest reward, for the vertex": Reading(top=highest),
    "learned: 0.1 above the base": Reading(least=0.1),
}
HEADER = ["at the fixed rate", "at the best rate", "difference"]


def shifts(units: Mapping[Key, Rewards], reading: Reading) -> tuple[Mapping[Key, float], ...]:
    """The shifts at the fixed and at the best rate, and the first less the second."""
    fixed, best = at_rate(units, reading), at_best_rate(units, reading)
    return fixed, best, {key: fixed[key] - best[key] for key in units}


def decided(fixed: Estimate | None, best: Estimate | None, difference: Estimate | None) -> Verdict:
    """The verdict on "n* rises at one fixed rate and not at the best rate" (plan.md)."""
    if fixed is None or best is None or difference is None:
        return Verdict.UNDECIDED
    rises, still = RISES.of(fixed)[0], RISES.of(best)[0]
    if rises is Verdict.CONTRADICTED or still is Verdict.SUPPORTED:
        return Verdict.CONTRADICTED
    both = rises is Verdict.SUPPORTED and still is Verdict.CONTRADICTED and difference.interval[0] > 0
    return Verdict.SUPPORTED if both else Verdict.UNDECIDED


def whole(results: Path, reading: Reading) -> dict[Key, Rewards]:
    """The units of every base model whose cells are all there."""
    lacking = {unit.base_seed for unit in UNITS if missing(unit, results)}
    there = [unit for unit in UNITS if unit.base_seed not in lacking]
    return {(unit.problem_set, unit.base_seed): rewards_of(read(unit, results), reading) for unit in there}


def write(results: Path = RESULTS, page: Path = PAGE) -> Iterator[Path]:
    """Write the page; yields it."""
    write_text(page, text(results))
    yield page


def text(results: Path) -> str:
    """The page."""
    units, bases = whole(results, Reading()), len(SETTINGS["base_seeds"])
    total = sum(len(GRID[unit.problem_set]) for unit in UNITS)
    there = total - sum(len(missing(unit, results)) for unit in UNITS)
    found = [estimate(own) for own in shifts(units, Reading())]
    least, deviation = resolution(bases)
    return TEMPLATE.read_text().format(
        progress=f"{there} of {total} cells, {len(units) // len(SETS)} of {bases} base models whole",
        verdict=str(decided(*found)).capitalize(),
        sentence=", ".join(f"{name} {_said(own)}" for name, own in zip(HEADER, found, strict=True)),
        by_set=_by_set(units),
        by_rate=_by_rate(units),
        readings=_readings(results),
        of_units=_of_units(units),
        least=f"{least:.1f}",
        deviation=f"{deviation:.2f}",
    )


def _said(own: Estimate | None) -> str:
    if own is None:
        return "–"
    low, high = own.interval
    return f"{signed(own.value, 2)} ({signed(low, 2)} to {signed(high, 2)}; {own.units})"


def _by_set(units: Mapping[Key, Rewards]) -> str:
    numbers = shifts(units, Reading())
    rows = [[" and ".join(sets), *(_said(estimate(own, sets)) for own in numbers)] for sets in (SETS, *zip(SETS))]
    return table(["problems", *HEADER], rows)


def _by_rate(units: Mapping[Key, Rewards]) -> str:
    rows = []
    for place, rate in enumerate(RATES):
        own = at_rate(units, Reading(), place)
        share = [f"{np.mean([unit.learned[:, place].sum() for unit in units.values()]):.1f}" if units else "–"]
        rows.append([f"{rate:.3g}", *(_said(estimate(own, (name,))) for name in SETS), *share])
    return table(["learning rate", *SETS, "n that learned, of five (mean)"], rows)


def _readings(results: Path) -> str:
    rows = []
    for name, reading in READINGS.items():
        found = [estimate(own) for own in shifts(whole(results, reading), reading)]
        rows.append([name, *map(_said, found), str(decided(*found))])
    return table(["reading", *HEADER, "verdict"], rows)


def _of_units(units: Mapping[Key, Rewards]) -> str:
    rows, numbers = [], shifts(units, Reading())
    for key, unit in units.items():
        moves = ["–" if np.isnan(own[key]) else signed(own[key], 2) for own in numbers]
        rows.append([f"{key[0]}-{key[1]}", "–" if unit.fixed is None else f"{RATES[unit.fixed]:.3g}", *moves])
    return table(["unit", "its fixed rate", *HEADER], rows)
