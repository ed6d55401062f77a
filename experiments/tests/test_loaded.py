"""What workers report of the code, the libraries, the device and the base model that they loaded."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from .test_identity import ROOT

pytestmark = pytest.mark.slow("Ray")

SURROGATES = "packages/learner/src/isocompute/learner/objective/loss.py"
DRIVER = """
import sys
import time
from pathlib import Path
import yaml
from experiments.errors import ExperimentError
from experiments.running import models
import ray
from experiments.running.cluster import cluster
from experiments.running.cells import Surroundings
from experiments.running.worker import check
from experiments.running.schedule import workers
from experiments.settings import load

edited, change = Path(sys.argv[1]), sys.argv[2]
preset = load(Path("params.yaml"), "smoke")
model = preset.base.model
try:
    with cluster(1), workers(preset, {models.content_hash(Path(model)): model}) as pool:
        loaded = ray.get(pool._slots[0].actor.open.remote(pool._config))
        try:
            check(loaded, bases=["0123456789abcdef"], surroundings=Surroundings.of(preset.resources))
        except ExperimentError as error:
            print(error)
        edited.write_text(edited.read_text().replace("loss=-advantages", change))
        pool.lost(pool.take())
        while pool.take() is None:
            pool.tend()
            time.sleep(0.1)
except ExperimentError as error:
    print(error)
"""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A copy of the code, and a preset whose one worker samples with transformers."""
    import yaml

    hidden = shutil.ignore_patterns("tests", "studies")
    for package in ("budget", "rollout", "learner", "frontier"):
        shutil.copytree(ROOT / "packages" / package / "src", tmp_path / "packages" / package / "src", ignore=hidden)
    shutil.copytree(ROOT / "experiments", tmp_path / "experiments", ignore=hidden)
    raw = yaml.safe_load((ROOT / "params.yaml").read_text())
    raw["smoke"]["resources"] = {"workers": 1, "sampler": "transformers"}
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(raw))
    return tmp_path


def test_a_worker_that_loads_another_base_model_or_edited_code_is_refused(tree: Path) -> None:
    sources = [str(tree / "packages" / p / "src") for p in ("budget", "rollout", "learner", "frontier")]
    kept = {k: v for k, v in os.environ.items() if k not in ("RAY_ADDRESS", "ISOCOMPUTE_SESSION")}
    done = subprocess.run(
        [sys.executable, "-c", DRIVER, SURROGATES, "loss=advantages"],
        cwd=tree,
        capture_output=True,
        text=True,
        check=False,
        env={**kept, "PYTHONPATH": os.pathsep.join([str(tree), *sources])},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    said = [line for line in done.stdout.splitlines() if line.startswith("the worker")]
    assert len(said) == 2, done.stdout
    other_base, after_change = said
    assert "another base model" in other_base
    assert "other code" in after_change
    assert "isocompute.learner.objective.loss" in after_change
