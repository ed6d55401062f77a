"""Versions and CHANGELOGs, in a made-up repository and in this one."""

import re
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tools import releases
from tools.environment import COMPLETE, HASHED
from tools.releases import PACKAGES, ReleaseError

ROOT = Path(__file__).parents[2]


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Four packages of version 0.1.0."""
    for package in PACKAGES:
        (tmp_path / "packages" / package).mkdir(parents=True)
        raise_version(tmp_path, package, "0.1.0")
    return tmp_path


def raise_version(root: Path, package: str, version: str) -> None:
    folder = root / "packages" / package
    (folder / "pyproject.toml").write_text(f'[project]\nversion = "{version}"\n')
    (folder / "CHANGELOG.md").write_text(f"## [{version}]\n")


def test_this_repository_can_be_released() -> None:
    assert len(releases.check(ROOT)) == len(PACKAGES)
    releases.check_locked(ROOT)


def test_tags_agree_with_versions_and_changelogs(repository: Path) -> None:
    assert releases.check(repository) == [f"{p}-v0.1.0" for p in PACKAGES]
    for tag, why in (("nothing-v0.1.0", "there is no package 'nothing'"), ("budget-v0.2.0", "is 0.1.0")):
        with pytest.raises(ReleaseError, match=why):
            releases.check(repository, [tag])
    (repository / "packages" / "budget" / "CHANGELOG.md").write_text("## [0.0.1]\n")
    with pytest.raises(ReleaseError, match=r"has no section \[0.1.0\]"):
        releases.check(repository)


PINS = st.dictionaries(st.sampled_from(["mlflow", "mlflow-skinny", "zss"]), st.sampled_from(["1", "1.0", "1.0.post2"]))


@settings(deadline=None)
@given(PINS, PINS)
def test_hashes_of_other_versions_than_the_constraints_are_named(ours: dict[str, str], theirs: dict[str, str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        (root / COMPLETE).write_text("".join(f"{name}=={version}\n" for name, version in ours.items()))

        def write(pins: dict[str, str]) -> None:
            lines = [f"{name}=={version}+cpu \\\n    --hash=sha256:00\n" for name, version in pins.items()]
            (root / HASHED).write_text("".join(lines))

        write(ours)
        releases.check_locked(root)
        wrong = {name for name in ours.keys() | theirs.keys() if ours.get(name) != theirs.get(name)}
        write(theirs)
        if wrong:
            with pytest.raises(ReleaseError) as raised:
                releases.check_locked(root)
            assert wrong <= set(re.findall(r"[\w-]+", str(raised.value)))
