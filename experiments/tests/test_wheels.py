"""A wheel that is built from what is no whole checkout."""

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
