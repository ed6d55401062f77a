"""Wheels that are built from what is no whole checkout."""

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("budget", "rollout", "learner", "frontier")


def build(package: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel"]
    return subprocess.run(command, cwd=package, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("name", PACKAGES)
def test_a_checkout_without_links_builds_no_wheel_and_says_why(tmp_path: Path, name: str) -> None:
    package = tmp_path / name
    tests = shutil.ignore_patterns("tests", "docs", ".*")
    shutil.copytree(ROOT / "packages" / name, package, symlinks=True, ignore=tests)
    link = package / "src" / "isocompute" / name / "contract"
    # What an archive, or git where links are not allowed, has in place of a link.
    target = str(link.readlink())
    link.unlink()
    link.write_text(target)
    refused = build(package)
    assert refused.returncode == 1
    assert refused.stderr.splitlines()[-1].endswith(f"not found: {link / 'tables.py'}")
    assert not list(package.glob("dist/*.whl"))
    link.unlink()
    shutil.copytree(ROOT / "contract", link)
    built = build(package)
    assert built.returncode == 0, built.stderr
    (wheel,) = package.glob("dist/*.whl")
    assert f"isocompute/{name}/contract/tables.py" in zipfile.ZipFile(wheel).namelist()
