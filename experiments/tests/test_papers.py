"""The paper index: a row for every figure, with a command that runs or with what is absent."""

import re
import shlex
from pathlib import Path

import pytest
from isocompute.frontier.cli import main

pytestmark = pytest.mark.slow("fits by commands")

ROOT = Path(__file__).parents[2]
TABLES = dict(
    re.findall(r"^## (.*?)\n(.*?)(?=^## |\Z)", (ROOT / "docs" / "papers.md").read_text(), re.DOTALL | re.MULTILINE)
)
FIGURES = {name: table for name, table in TABLES.items() if "figures" in name}
COMMANDS = sorted({
    command for table in FIGURES.values() for command in re.findall(r"`(isocompute-frontier .*?)`", table)
})  # fmt: skip
ABSENT = ("absent", "Absent", "not run", "not known")


def rows(table: str) -> list[list[str]]:
    lines = [line for line in table.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in lines[1:]]


def figures(said: str) -> set[int]:
    """The numbers of ``Figure 4, what it shows`` and ``Figures 9, 18 and 19, …``."""
    listed = re.match(r"Figures? ((?:\d+(?:, | and )?)+)", said)
    return {int(number) for number in re.findall(r"\d+", listed[1])} if listed else set()


@pytest.mark.parametrize(("paper", "last"), [("IsoCompute Playbook", 27), ("ScaleRL", 11)])
def test_every_figure_has_one_row(paper: str, last: int) -> None:
    (table,) = (table for name, table in FIGURES.items() if name.startswith(paper))
    found = [number for first, *_ in rows(table) for number in figures(first)]
    assert sorted(found) == list(range(1, last + 1))


def test_every_row_of_a_figure_has_a_command_or_says_what_is_absent() -> None:
    for table in FIGURES.values():
        for row in rows(table):
            assert len(row) == 3, row
            assert (
                "`" in row[2] or "the same" in row[2] or "the command of" in row[2] or any(a in row[2] for a in ABSENT)
            ), row


@pytest.mark.parametrize("command", COMMANDS)
def test_the_commands_are_there(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Files and flags are there; what the commands compute is tested with the frontier."""
    _, name, *words = shlex.split(command)
    with pytest.raises(SystemExit):
        main([name, "--help"])
    known = capsys.readouterr().out
    assert [word for word in words if word.startswith("--") and word not in known] == []
    assert [word for word in words if word.startswith("packages/") and not (ROOT / word).exists()] == []
