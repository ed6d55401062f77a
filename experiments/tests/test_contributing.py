"""The paths that CONTRIBUTING.md traces through the code."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
ROW = re.compile(r"^\| `([^`]+)` \| `([^`]+)` \|$", re.MULTILINE)


def paths() -> dict[str, list[tuple[str, str]]]:
    """The tables of the section, by their titles."""
    text = (ROOT / "CONTRIBUTING.md").read_text()
    section = text.split("## Three paths through the code")[1].split("\n## ")[0]
    parts = re.split(r"^\*\*(.+?):\*\*$", section, flags=re.MULTILINE)[1:]
    return {title: ROW.findall(table) for title, table in zip(parts[::2], parts[1::2], strict=True)}


def test_three_paths_lead_through_modules_that_are_there() -> None:
    traced = paths()
    assert len(traced) == 3
    for title, rows in traced.items():
        assert 3 <= len(rows) <= 7, title
        assert len({module for module, _ in rows}) == len(rows), title
        for module, look_for in rows:
            assert look_for in (ROOT / module).read_text(), f"{title}: {module}: {look_for}"


def test_the_files_and_folders_named_are_there() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    named = re.findall(r"`((?:packages|experiments|contract|docs)/[\w./-]+)`", text)
    assert len(named) > 20
    for place in named:
        assert (ROOT / place).exists(), place


def test_the_sessions_named_are_there() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text() + (ROOT / "README.md").read_text()
    sessions = re.findall(r"^def (\w+)\(session", (ROOT / "noxfile.py").read_text(), flags=re.MULTILINE)
    known = {name.replace("_", "-") for name in sessions}
    for names in re.findall(r"nox -s ((?:[a-z-]+ ?)+)", text):
        assert set(names.partition(" --")[0].split()) <= known, names
