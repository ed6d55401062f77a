"""What keeps the packages apart and alike."""

import re
import subprocess
from pathlib import Path

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


def test_the_files_and_folders_that_contributing_names_are_there() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    named = re.findall(r"`((?:packages|experiments|contract|docs)/[\w./-]+)`", text)
    assert named
    assert [place for place in named if not (ROOT / place).exists()] == []


def test_the_sessions_that_documents_name_are_there() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text() + (ROOT / "README.md").read_text()
    sessions = re.findall(r"^def (\w+)\(session", (ROOT / "noxfile.py").read_text(), flags=re.MULTILINE)
    known = {name.replace("_", "-") for name in sessions}
    for names in re.findall(r"nox -s ((?:[a-z-]+ ?)+)", text):
        assert set(names.partition(" --")[0].split()) <= known, names
