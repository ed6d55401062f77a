"""The commands that the README and the questions show, and what they print."""

import re
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest
from isocompute.budget.cli import main as budget
from isocompute.frontier.cli import main as frontier

pytestmark = pytest.mark.slow("fits of the README")

ROOT = Path(__file__).parents[2]
PROGRAMS: dict[str, Callable[[list[str]], int]] = {"isocompute-budget": budget, "isocompute-frontier": frontier}
ENDS = re.compile(r"^\$ ", re.MULTILINE)


def examples(document: Path) -> list[tuple[str, str]]:
    """Every command of a document's console blocks, and the text below it."""
    blocks = re.findall(r"^```console\n(.*?)^```", document.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    return [(one.partition("\n")[0], one.partition("\n")[2]) for block in blocks for one in ENDS.split(block) if one]


CHOSEN = re.compile(r"n = (\d+), B_p = (\d+)")
CUT = "…\n"
"""Ends what is shown of a longer answer."""


def alike(said: str, shown: str) -> bool:
    """Whether two answers agree but for what another processor's rounding does to draws of a posterior."""
    (n, _), (shown_n, _) = (CHOSEN.findall(text)[0] for text in (said, shown))
    parts = ("n*: ",) if shown.endswith(CUT) else ("n*: ", "Risk: ", "Not in this: ")
    whole = all(f"\n{part}" in text for part in parts for text in (said, shown))
    return whole and said.splitlines()[0] == shown.splitlines()[0] and 0.5 <= int(n) / int(shown_n) <= 2


@pytest.mark.parametrize(("name", "least"), [("README.md", 1), ("docs/logs.md", 6), ("docs/faq.md", 10)])
def test_every_example_prints_what_it_says(
    name: str, least: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = examples(ROOT / name)
    assert len(found) >= least
    (tmp_path / "packages").symlink_to(ROOT / "packages")
    monkeypatch.chdir(tmp_path)
    for command, expected in found:
        program, *arguments = shlex.split(command)
        capsys.readouterr()
        assert PROGRAMS[program](arguments) == 0, command
        said = capsys.readouterr().out
        drawn = program == "isocompute-frontier" and arguments[0] in ("fit", "prescribe")
        same = said.startswith(expected.removesuffix(CUT)) if expected.endswith(CUT) else said == expected
        assert same or (drawn and alike(said, expected)), command
