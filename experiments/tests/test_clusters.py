"""The examples for clusters: what they ask for is what the preset needs, and they can be parsed."""

import re
import subprocess
from pathlib import Path
from typing import Any

import yaml

from experiments.settings import load

ROOT = Path(__file__).parents[2]

SLURM, KUBERAY = ROOT / "docs" / "clusters" / "paper.sbatch", ROOT / "docs" / "clusters" / "paper-kuberay.yaml"


def test_the_slurm_job_has_as_many_gpus_as_the_preset_asks_for() -> None:
    subprocess.run(["bash", "-n", str(SLURM)], check=True)
    given = dict(re.findall(r"^#SBATCH --([a-z-]+)=(\S+)$", SLURM.read_text(), flags=re.MULTILINE))
    assert int(given["nodes"]) * int(given["gpus-per-node"]) == load(preset="paper").processors()
    # A cell's processes are on one node.
    assert load(preset="paper").resources.processors_of_a_worker() == int(given["gpus-per-node"])


def test_the_kuberay_job_has_as_many_gpus_as_the_preset_asks_for() -> None:
    job: dict[str, Any] = yaml.safe_load(KUBERAY.read_text())
    assert (job["apiVersion"], job["kind"]) == ("ray.io/v1", "RayJob")
    (group,) = job["spec"]["rayClusterSpec"]["workerGroupSpecs"]
    (container,) = group["template"]["spec"]["containers"]
    gpus = int(container["resources"]["limits"]["nvidia.com/gpu"])
    assert gpus == int(group["rayStartParams"]["num-gpus"]) == load(preset="paper").resources.processors_of_a_worker()
    assert gpus * group["replicas"] == load(preset="paper").processors()
