"""The table of known sweeps for ``advise``, ``sweeps.csv``, and rows that users add: docs/sweeps.md."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import polars as pl

from ..errors import FrontierError

FILE = Path(__file__).with_name("sweeps.csv")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """A sweep's result for n at one budget: a row of ``sweeps.csv``.

    Attributes:
        source: The paper, page or panel.
        problem_set: Problem set, with the model if a source has several.
        parameters: Of the model.
        pass_rate: Of the base model on the set.
        problems: Training problems, D.
        metric: The metric that n is best for.
        held: What all n have in common besides the budget, such as B_p = 32.
        budget: Rollouts.
        n_least, n_most: Of the grid.
        log2_n: n*, octaves.
        deviation: Its standard deviation within the source, octaves, above 0.
        lost: Reward lost by n, relative to the best n; empty if the source gives no numbers.
        citation: Where the numbers are published.
        command: The command that reproduces the row, or how n* was read.
    """

    source: str
    problem_set: str
    model: str
    parameters: float
    pass_rate: float
    problems: float
    metric: str
    held: str
    budget: float
    n_least: float
    n_most: float
    log2_n: float
    deviation: float
    lost: dict[int, float] = field(hash=False)
    citation: str
    command: str


def read_sweeps(path: Path = FILE) -> tuple[Sweep, ...]:
    """The rows of a CSV file with the columns of ``sweeps.csv``.

    Raises:
        FrontierError: It cannot be read, lacks a column, or holds a number that is missing or out of range.
    """
    try:
        frame = pl.read_csv(path, infer_schema=False)
    except (OSError, pl.exceptions.PolarsError) as error:
        raise FrontierError(f"{path}: is no CSV file that can be read ({str(error).splitlines()[0]})") from error
    missing = [each.name for each in fields(Sweep) if each.name not in frame.columns]
    if missing or frame.is_empty():
        what = f"has no column{'s' if len(missing) > 1 else ''} {', '.join(missing)}" if missing else "has no rows"
        raise FrontierError(f"{path}: {what}; the columns are those of docs/sweeps.md")
    return tuple(_sweep(row, f"{path} row {number}") for number, row in enumerate(frame.iter_rows(named=True), 1))


def _sweep(row: dict[str, str | None], where: str) -> Sweep:
    values: dict[str, Any] = {
        each.name: _number(row[each.name], each.name, where) if each.type == "float" else row[each.name] or ""
        for each in fields(Sweep)
    }
    if not values["source"] or not values["problem_set"]:
        raise FrontierError(f"{where}: source and problem_set must be named")
    if not values["pass_rate"] < 1:
        raise FrontierError(f"{where}: pass_rate is {values['pass_rate']:g}; it must be between 0 and 1")
    lost = {}
    for pair in values["lost"].split():
        n, colon, reward = pair.partition(":")
        if not (colon and n.isdecimal()):
            raise FrontierError(f"{where}: lost holds {pair!r}, which is not like 8:0.012 (n and reward lost)")
        lost[int(n)] = _number(reward, "lost", where, least=-1.0)
    return Sweep(**{**values, "lost": lost})


def _number(text: str | None, name: str, where: str, *, least: float = 0.0) -> float:
    try:
        value = float(text or "")
    except ValueError:
        value = float("nan")
    if not least < value < float("inf"):
        raise FrontierError(f"{where}: {name} is {text!r}; it must be a number above {least:g}")
    return value
