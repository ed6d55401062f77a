"""What may be said twice, and what a folder says of itself."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SHARED_LINES = 20
TOPS = ("benchmarks", "contract", "experiments", "packages", "tools")


def code() -> list[Path]:
    """Every Python file of the repository; the links to ``contract/`` are not followed."""
    found = [p for top in TOPS for p in (ROOT / top).rglob("*.py") if "contract" not in p.relative_to(ROOT).parts[1:]]
    return sorted([*found, ROOT / "noxfile.py", ROOT / "conftest.py"])


def shared(paths: list[Path], length: int) -> list[tuple[str, str, int]]:
    """Pairs of files with so many consecutive lines in common, and where they begin in the second."""
    seen: dict[tuple[str, ...], Path] = {}
    found = []
    for path in paths:
        lines = [line.strip() for line in path.read_text().splitlines()]
        for start in range(len(lines) - length + 1):
            block = tuple(lines[start : start + length])
            first = seen.setdefault(block, path)
            if first != path:
                found.append((str(first), str(path), start + 1))
    return found


def test_no_two_files_of_the_packages_share_twenty_lines() -> None:
    suffixes = {".py", ".md", ".toml", ".json"}
    others = (p for p in (ROOT / "packages").rglob("*") if p.suffix in suffixes and p.suffix != ".py" and p.is_file())
    texts = [p for p in others if not {"contract", "fixtures", "docs"} & set(p.relative_to(ROOT).parts)]
    assert not shared([p for p in code() if "packages" in p.parts] + sorted(texts), SHARED_LINES)


def test_shared_lines_are_found(tmp_path: Path) -> None:
    lines = [f"line {i}" for i in range(30)]
    (tmp_path / "a").write_text("\n".join(lines))
    (tmp_path / "b").write_text("\n".join(["else", *lines[5:25]]))
    assert shared([tmp_path / "a", tmp_path / "b"], 20) == [(str(tmp_path / "a"), str(tmp_path / "b"), 2)]
    assert not shared([tmp_path / "a", tmp_path / "b"], 21)


@pytest.mark.parametrize("top", TOPS)
def test_every_folder_with_code_says_what_it_is(top: str) -> None:
    for path in (ROOT / top).rglob("__init__.py"):
        if "tests" not in path.parts:
            assert ast.get_docstring(ast.parse(path.read_text())), path
