"""What keeps the packages apart and alike."""

import ast
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("budget", "rollout", "learner", "frontier")


def portion(package: str) -> Path:
    return ROOT / "packages" / package / "src" / "isocompute" / package


def test_the_namespace_has_no_init() -> None:
    assert not list(ROOT.glob("packages/*/src/isocompute/__init__.py"))


@pytest.mark.parametrize("package", PACKAGES)
def test_every_package_links_to_the_one_contract(package: str) -> None:
    link = portion(package) / "contract"
    assert link.is_symlink()
    assert link.resolve() == ROOT / "contract"


def test_no_fixture_holds_a_path_of_the_machine_that_made_it() -> None:
    files = [p for p in ROOT.glob("packages/*/tests/fixtures/**/*") if p.is_file()]
    assert any("tfevents" in p.name for p in files)
    for path in files:
        for place in ("root", "home", "tmp", "Users", "var"):
            assert f"/{place}/".encode() not in path.read_bytes(), path


def test_no_large_file_is_tracked() -> None:
    """The largest are the base models of the panel."""
    said = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    tracked = [ROOT / name for name in said.split("\0") if name and (ROOT / name).is_file()]
    assert tracked
    assert [path for path in tracked if path.stat().st_size > 500_000] == []


def listed(name: str) -> Any:
    """A table of ``slow_tests.toml``."""
    return tomllib.loads((ROOT / "slow_tests.toml").read_text())[name]


def number_of_tests(path: Path) -> int:
    """Test functions of a file."""
    return sum(isinstance(n, ast.FunctionDef) and n.name.startswith("test_") for n in ast.parse(path.read_text()).body)


def test_every_test_that_is_said_to_be_slow_is_there() -> None:
    for file, reason in listed("files").items():
        assert reason
        assert (ROOT / file).is_file(), file
    for file, tests in listed("tests").items():
        assert file not in listed("files")
        assert all(f"def {test}(" in (ROOT / file).read_text() for test in tests), file


def test_files_that_one_process_runs_are_there_and_named_once() -> None:
    files = [file for together in listed("together")["files"] for file in together]
    assert len({*files}) == len(files)
    assert all((ROOT / file).is_file() for file in files)


def test_six_tenths_of_the_tests_are_fast() -> None:
    every = [p for top in ("packages", "experiments", "benchmarks", "tools") for p in (ROOT / top).rglob("test_*.py")]
    slow = sum(number_of_tests(ROOT / file) for file in listed("files")) + sum(map(len, listed("tests").values()))
    assert slow <= 0.4 * sum(number_of_tests(path) for path in every)
