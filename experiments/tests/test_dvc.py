"""What ``dvc repro`` runs again after an edit, in a copy of the repository whose outputs are made up."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from .test_pipeline import clone, environment

pytestmark = pytest.mark.slow("DVC, and the stage inputs")

PACKAGES = ("budget", "rollout", "learner", "frontier")
SAID = (
    "packages/budget/src/isocompute/budget/ledger/meter.py",
    "packages/rollout/src/isocompute/rollout/scoring/scorer.py",
    "packages/learner/src/isocompute/learner/objective/loss.py",
    "packages/frontier/src/isocompute/frontier/posterior/posterior.py",
    "contract/tables.py",
    "experiments/running/worker.py",
)


def run(folder: Path, *command: str) -> str:
    """Run a command on the code of the copy; returns what it printed."""
    places = [str(folder / "packages" / name / "src") for name in PACKAGES]
    variables = {**environment(), "PYTHONPATH": os.pathsep.join(places)}
    done = subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


def dvc(folder: Path, *arguments: str) -> str:
    return run(folder, sys.executable, "-m", "dvc", *arguments)


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy, as if everything had run."""
    folder = clone(tmp_path_factory.mktemp("copy"), {})
    dvc(folder, "repro", "inputs")
    for stage in yaml.safe_load((folder / "dvc.yaml").read_text())["stages"].values():
        for out in (path.replace("${item.set}", "easy") for path in stage["outs"] if isinstance(path, str)):
            path = folder / (out if Path(out).suffix else f"{out}/made.up")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text('{"reward": 0.5}')
    for name in ("posterior.json", "draws.parquet", "runs.parquet"):
        (folder / "outputs" / "frontier" / "easy" / name).write_text("{}")
    dvc(folder, "commit", "--force")
    return folder


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


def test_an_edit_of_a_comment_and_of_a_docstring_in_every_package_runs_inputs_alone(copy: Path) -> None:
    lock = (copy / "dvc.lock").read_text()
    for name in SAID:
        edit(copy / name, '"""', '"""Said otherwise: ')
        (copy / name).write_text((copy / name).read_text() + "\n# Said at the end.\n")
    assert re.findall("Running stage '(.*)'", dvc(copy, "repro")) == ["inputs"]
    assert (copy / "dvc.lock").read_text() == lock


def test_an_edit_of_a_constant_runs_the_stages_that_reach_it(copy: Path) -> None:
    edit(copy / "packages/frontier/src/isocompute/frontier/posterior/posterior.py", "KEPT = 48, ", "KEPT = 47, ")
    said = dvc(copy, "repro", "inputs")
    changed = re.findall(
        r"^inputs: (\w+) has other code of isocompute.frontier.posterior.posterior$", said, re.MULTILINE
    )
    assert changed == ["frontier", "prescribe"]
    assert {*re.findall(r"^(\S+):$", dvc(copy, "status"), re.MULTILINE)} == {
        "inputs",
        "frontier@easy",
        "prescribe@easy",
    }


def test_metrics_plots_and_experiments_are_shown(copy: Path) -> None:
    shown = json.loads(dvc(copy, "metrics", "show", "--json"))[""]["data"]
    assert shown["outputs/metrics/easy.json"]["data"] == {"reward": 0.5}
    assert "outputs/plots/easy.png" in json.loads(dvc(copy, "plots", "show", "--json"))["data"]
    (copy / ".gitignore").write_text("outputs/\n__pycache__/\n/.dvc/*\n")
    dvc(copy, "config", "--local", "core.no_scm", "false")
    who = ("-c", "user.name=a", "-c", "user.email=a@example.com")
    for words in (("init", "-q"), ("add", "--all"), (*who, "commit", "-q", "-m", "all")):
        run(copy, "git", *words)
    dvc(copy, "exp", "run", "--name", "seed", "--set-param", "smoke.frontier.seed=9", "inputs")
    assert "seed" in dvc(copy, "exp", "list", "--name-only").split()
    assert "| 9 " in dvc(copy, "exp", "show", "--only-changed", "--md")
