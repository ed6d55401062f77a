"""Versions, CHANGELOGs and the contract, in a made-up repository and in this one."""

from pathlib import Path

import pytest

from tools import releases
from tools.releases import PACKAGES, ReleaseError

ROOT = Path(__file__).parents[2]


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Four packages of version 0.1.0 with a contract that was recorded."""
    for package in PACKAGES:
        (tmp_path / "packages" / package).mkdir(parents=True)
        raise_version(tmp_path, package, "0.1.0")
    (tmp_path / "contract").mkdir()
    (tmp_path / "contract" / "tables.py").write_text("a = 1\n")
    releases.record_contract(tmp_path)
    return tmp_path


def raise_version(root: Path, package: str, version: str) -> None:
    folder = root / "packages" / package
    (folder / "pyproject.toml").write_text(f'[project]\nversion = "{version}"\n')
    (folder / "CHANGELOG.md").write_text(f"## [{version}]\n")


def test_this_repository_can_be_released() -> None:
    assert len(releases.check(ROOT)) == len(PACKAGES)


def test_tags_agree_with_versions_and_changelogs(repository: Path) -> None:
    assert releases.check(repository) == [f"{p}-v0.1.0" for p in PACKAGES]
    for tag, why in (
        ("nothing-v0.1.0", "there is no package 'nothing'"),
        ("budget-v0.2.0", "is 0.1.0"),
    ):
        with pytest.raises(ReleaseError, match=why):
            releases.check(repository, [tag])
    (repository / "packages" / "budget" / "CHANGELOG.md").write_text("## [0.0.1]\n")
    with pytest.raises(ReleaseError, match=r"has no section \[0.1.0\]"):
        releases.check(repository)


@pytest.mark.parametrize("change", ["edited", "added", "renamed", "removed"])
def test_a_change_of_the_contract_concerns_all_four_versions(repository: Path, change: str) -> None:
    contract = repository / "contract"
    if change == "edited":
        (contract / "tables.py").write_text("a = 2\n")
    elif change == "added":
        (contract / "schema.py").write_text("")
    elif change == "renamed":
        (contract / "tables.py").rename(contract / "other.py")
    else:
        (contract / "tables.py").unlink()
    with pytest.raises(ReleaseError, match="raise the version of each"):
        releases.check(repository)
    for package in PACKAGES[:3]:
        raise_version(repository, package, "0.2.0")
    with pytest.raises(ReleaseError, match="the version of frontier is not above"):
        releases.record_contract(repository)
    raise_version(repository, "frontier", "0.10.0")
    releases.record_contract(repository)
    assert releases.check(repository)


def test_compiled_files_are_not_part_of_the_contract(repository: Path) -> None:
    (repository / "contract" / "__pycache__").mkdir()
    (repository / "contract" / "__pycache__" / "tables.pyc").write_bytes(b"\0")
    assert releases.check(repository)
