"""The commands that the README and the questions show, and what they print."""

import re
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest
from isocompute.budget.cli import main as budget
from isocompute.frontier.cli import main as frontier

ROOT = Path(__file__).parents[2]
PROGRAMS: dict[str, Callable[[list[str]], int]] = {"isocompute-budget": budget, "isocompute-frontier": frontier}
ENDS = re.compile(r"^\$ ", re.MULTILINE)


def examples(document: Path) -> list[tuple[str, str]]:
    """Every command of a document's console blocks, and the text below it."""
    blocks = re.findall(r"^```console\n(.*?)^```", document.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    return [(one.partition("\n")[0], one.partition("\n")[2]) for block in blocks for one in ENDS.split(block) if one]


NUMBER = re.compile(r"\d+(?:\.\d+)?")


def alike(said: str, shown: str) -> bool:
    """Whether two texts say the same, but for what another processor's rounding does to draws of a posterior."""
    if NUMBER.sub("#", said) != NUMBER.sub("#", shown):
        return False
    pairs = zip(map(float, NUMBER.findall(said)), map(float, NUMBER.findall(shown)), strict=True)
    return all(abs(a - b) <= max(0.02, 0.1 * max(a, b)) for a, b in pairs)


@pytest.mark.parametrize(("name", "least"), [("README.md", 5), ("docs/faq.md", 10)])
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
        assert said == expected or (drawn and alike(said, expected)), command
