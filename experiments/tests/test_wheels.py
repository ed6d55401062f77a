"""Wheels: built from what is no whole checkout, and built twice."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from .made import ROOT

pytestmark = pytest.mark.slow("builds of wheels")


def test_a_checkout_without_links_builds_no_wheel_and_one_with_them_holds_the_contract(tmp_path: Path) -> None:
    package = tmp_path / "budget"
    tests = shutil.ignore_patterns("tests", "docs", ".*")
    shutil.copytree(ROOT / "packages" / "budget", package, symlinks=True, ignore=tests)
    link = package / "src" / "isocompute" / "budget" / "contract"
    # What an archive, or git where links are not allowed, has in place of a link.
    target = str(link.readlink())
    link.unlink()
    link.write_text(target)
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel"]
    refused = subprocess.run(command, cwd=package, capture_output=True, text=True, check=False)
    assert (refused.returncode, list(package.glob("dist/*.whl"))) == (1, [])
    assert "without symbolic links" in refused.stderr.splitlines()[-1]
    link.unlink()
    shutil.copytree(ROOT / "contract", link)
    subprocess.run(command, cwd=package, capture_output=True, check=True)
    (wheel,) = package.glob("dist/*.whl")
    assert "isocompute/budget/contract/tables.py" in zipfile.ZipFile(wheel).namelist()


def test_a_wheel_is_the_same_to_the_byte_wherever_and_whenever_it_is_built(tmp_path: Path) -> None:
    other = tmp_path / "elsewhere" / "budget"
    shutil.copytree(ROOT / "packages" / "budget", other, ignore=shutil.ignore_patterns(".*"))
    for path in other.rglob("*"):
        os.utime(path, (1e9, 1e9))
        path.chmod(0o700 if path.is_dir() else 0o600)
    wheels = []
    for number, package in enumerate([ROOT / "packages" / "budget", other]):
        out = tmp_path / str(number)
        command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(out)]
        subprocess.run(command, cwd=package, capture_output=True, check=True)
        wheels += [path.read_bytes() for path in out.iterdir()]
    assert len(wheels) == 2
    assert wheels[0] == wheels[1]
