"""The panel's commands run the code that the study is frozen at, whatever the checkout has become."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from experiments.errors import ExperimentError
from experiments.playbook import background
from experiments.playbook.__main__ import main


@pytest.fixture
def frozen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of frozen code, whose command writes what it was given."""
    code = tmp_path / "home" / "code"
    module = code / "experiments" / "playbook" / "__main__.py"
    module.parent.mkdir(parents=True)
    module.write_text("import sys\nopen('given', 'w').write(' '.join(sys.argv[1:]))\nsys.exit(3)\n")
    git = ["git", "-C", str(code), "-c", "user.name=a", "-c", "user.email=a@b.c"]
    subprocess.run(["git", "init", "-q", str(code)], check=True)
    subprocess.run([*git, "add", "."], check=True)
    subprocess.run([*git, "commit", "-qm", "frozen"], check=True)
    commit = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()
    python = code / ".nox" / "repro" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    (tmp_path / "frozen.json").write_text(json.dumps({"commit": commit}))
    monkeypatch.setattr(background, "FROZEN", tmp_path / "frozen.json")
    monkeypatch.setenv(background.PLACE, str(tmp_path / "home"))
    return code


def test_cells_are_trained_again_by_the_frozen_code(frozen: Path) -> None:
    assert main(["again", "hard-0", "--cells", "1"]) == 3
    assert (frozen / "given").read_text() == "again hard-0 --cells 1"


def test_a_folder_at_another_commit_is_refused(frozen: Path) -> None:
    git = ["git", "-C", str(frozen), "-c", "user.name=a", "-c", "user.email=a@b.c"]
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "later"], check=True)
    with pytest.raises(ExperimentError, match="move that folder away"):
        background.in_frozen_code("status")


def test_units_that_are_committed_whole_are_not_trained_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(background.PLACE, str(tmp_path))
    begun = tmp_path / "units" / "hard-0" / "results" / "evals.parquet"
    begun.parent.mkdir(parents=True)
    begun.write_bytes(b"of fewer cells")
    taken = background.take_over()
    assert "hard-0" in taken
    for name in taken:
        here, there = background.RESULTS / name, tmp_path / "units" / name / "results"
        assert {path.name: path.read_bytes() for path in here.iterdir()} == {
            path.name: path.read_bytes() for path in there.iterdir()
        }
    assert background.take_over() == []
