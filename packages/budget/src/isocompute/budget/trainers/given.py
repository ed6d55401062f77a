"""What the user says of runs: ``--set`` for all or one of them, and a table with a row for each."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ..checks import reason
from ..errors import BudgetError

RUN = "run"
"""The column of a table that names the run."""
MOST_NAMED = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """Settings that the user says; of those of one name the later one here counts.

    Attributes:
        table: Of each run, as a table says it.
        every: Of all runs.
        runs: Run, name and value.
        file: Where the table stands.
    """

    table: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    every: Mapping[str, str] = field(default_factory=dict)
    runs: Sequence[tuple[str, str, str]] = ()
    file: str = ""

    def step_column(self, source: str) -> str | None:
        """The column of steps of a file, which must be known before its runs are."""
        own = [v for run, name, v in self.runs if name == "step_column" and _is(run, source)]
        rows = [row.get("step_column") for run, row in self.table.items() if _is(run, source)]
        return next((v for v in (*own, self.every.get("step_column"), *rows) if v), None)

    def of(self, runs: Sequence[Sequence[str]], others: Sequence[str] = ()) -> list[dict[str, str]]:
        """What is said of each run.

        Args:
            runs: The names of each, one for each logger that left it.
            others: What else may be named and is no run, since it was not read.

        Raises:
            BudgetError: A run is named that is not there, or that may be several.
        """
        out = [dict[str, str]() for _ in runs]
        for name, row in self.table.items():
            for k in self._found(name, runs, others, f"{self.file}: "):
                out[k] |= row
        for said in out:
            said |= self.every
        for name, key, value in self.runs:
            for k in self._found(name, runs, others, f"--set {name}:{key}: "):
                out[k][key] = value
        return out

    def _found(self, name: str, runs: Sequence[Sequence[str]], others: Sequence[str], where: str) -> list[int]:
        """The run of a name or of the end of one; none where it was not read."""
        exact = [k for k, own in enumerate(runs) if name in own]
        found = exact or [k for k, own in enumerate(runs) if any(_is(name, other) for other in own)]
        if len(found) == 1 or (not found and any(_is(name, other) for other in others)):
            return found
        known = [runs[k][0] for k in found] or [own[0] for own in runs]
        more = f", … ({len(known)})" if len(known) > MOST_NAMED else ""
        listed = ", ".join(known[:MOST_NAMED]) + more
        raise BudgetError(
            f"{where}{name} may be each of {listed}: say more of its path"
            if found
            else f"{where}there is no run {name}; there are {listed}"
        )


def _is(name: str, run: str) -> bool:
    """Return whether a name is that of a run or the end of its path."""
    name, run = name.replace("\\", "/"), run.replace("\\", "/")
    return run == name or run.endswith(f"/{name}")


def read_table(path: Path) -> dict[str, dict[str, str]]:
    """Settings by run, from a CSV file with a column ``run`` and one of each setting; blank cells say nothing.

    Raises:
        BudgetError: It cannot be read, or a row is not such a one.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
        head = text.partition("\n")[0]
        # As spreadsheets write it where the comma is in numbers.
        rows = list(csv.reader(io.StringIO(text), delimiter=max(",;\t", key=head.count), strict=True))
    except (OSError, ValueError, csv.Error) as error:
        raise BudgetError(f"{path}: cannot be read as a table of runs ({reason(error)})") from None
    columns = [column.strip() for column in rows[0]] if rows else []
    if RUN not in columns or len(set(columns)) < len(columns) or "" in columns:
        raise BudgetError(f"{path}: the first row must name the columns, each once: {RUN} and settings")
    out: dict[str, dict[str, str]] = {}
    for number, cells in enumerate(rows[1:], 2):
        if not any(cell.strip() for cell in cells):
            continue
        if len(cells) != len(columns):
            raise BudgetError(f"{path}: row {number} has {len(cells)} cells for {len(columns)} columns")
        row = {column: cell.strip() for column, cell in zip(columns, cells, strict=True)}
        run = row.pop(RUN)
        if not run or run in out:
            raise BudgetError(f"{path}: row {number} {f'names the run {run} again' if run else 'names no run'}")
        out[run] = {name: value for name, value in row.items() if value}
    return out


def table_of(settings: Mapping[str, Mapping[str, str]], columns: Sequence[str]) -> str:
    """The text of a table of runs, with blank cells for what is not known."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow([RUN, *columns])
    writer.writerows([run, *(known.get(name, "") for name in columns)] for run, known in settings.items())
    return stream.getvalue()
