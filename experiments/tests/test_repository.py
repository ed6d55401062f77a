"""What keeps the packages apart, and the documents and stages true to the code."""

import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml

from experiments.settings import load
from experiments.stages import SET_STAGES, STAGES

from .made import ROOT

HIDDEN = {".nox", "outputs", "work", "CHANGELOG.md"}
DOCUMENTS = [p for p in ROOT.glob("**/*.md") if not HIDDEN & set(p.relative_to(ROOT).parts)]
SESSIONS = set(re.findall(r"^def (\w+)\(session", (ROOT / "noxfile.py").read_text(), re.MULTILINE))


def test_every_stage_depends_on_what_is_written_for_it_each_time() -> None:
    stages = yaml.safe_load((ROOT / "dvc.yaml").read_text())["stages"]
    made = {path for out in stages.pop("inputs")["outs"] for path in out}
    assert stages.keys() == {*STAGES, *SET_STAGES} - {"inputs", "plan"}
    assert made == {f"outputs/inputs/{stage}.json" for stage in stages}
    for name, stage in stages.items():
        assert made & {*stage["deps"]} == {f"outputs/inputs/{name}.json"}
        # All else is what other stages make: what is no output, its own document names.
        assert all(path.startswith("outputs/") for path in stage["deps"])


def test_links_lead_somewhere() -> None:
    for document in DOCUMENTS:
        for target in re.findall(r"\]\((?!http)([^)#]+)", document.read_text()):
            assert (document.parent / target).exists(), f"{document}: {target}"


def test_the_commands_and_files_that_the_documents_name_are_there() -> None:
    known = {*STAGES, *SET_STAGES, "repro", "schema", "send", "init", "probe"}
    for document in DOCUMENTS:
        text = document.read_text()
        assert set(re.findall(r"python -m experiments (\w+)", text)) <= known, document
        for module in re.findall(r"python -m ((?:experiments|benchmarks)\.[\w.]+)", text):
            place = ROOT.joinpath(*module.split("."))
            frozen = "playbook" in module
            assert frozen or place.with_suffix(".py").is_file() or (place / "__main__.py").is_file(), (
                f"{document}: {module}"
            )
    contributing = (ROOT / "CONTRIBUTING.md").read_text()
    named = contributing + (ROOT / "docs" / "architecture.md").read_text()
    for place in re.findall(r"`((?:packages|experiments|contract|docs)/[\w./-]+)`", named):
        assert (ROOT / place).exists(), place
    for module, look_for in re.findall(r"^\| `([^`]+/[^`]+)` \| `([^`]+)` \|$", contributing, re.MULTILINE):
        assert look_for in (ROOT / module).read_text(), f"{module}: {look_for}"


def test_the_sessions_that_documents_and_ci_name_are_there() -> None:
    texts = [(ROOT / name).read_text() for name in ("CONTRIBUTING.md", "README.md", ".ci/run")]
    for names in re.findall(r"nox -s ((?:[a-z-]+ ?)+)", "\n".join(texts)):
        assert {name.replace("-", "_") for name in names.partition(" --")[0].split()} <= SESSIONS, names


def test_every_column_of_the_schemas_is_in_the_reference() -> None:
    reference = (ROOT / "docs" / "artifacts.md").read_text()
    for path in (ROOT / "contract" / "schemas").glob("*.json"):
        schema = json.loads(path.read_text())
        section = reference.split(f"## {schema['name']}\n")[1].split("\n## ")[0]
        assert [c["name"] for c in schema["columns"] if f"`{c['name']}`" not in section] == []


def test_the_jobs_of_clusters_have_the_gpus_that_the_preset_asks_for() -> None:
    paper, docs = load(preset="paper"), ROOT / "docs" / "clusters"
    given = dict(re.findall(r"^#SBATCH --([a-z-]+)=(\S+)$", (docs / "paper.sbatch").read_text(), re.MULTILINE))
    job: dict[str, Any] = yaml.safe_load((docs / "paper-kuberay.yaml").read_text())
    (group,) = job["spec"]["rayClusterSpec"]["workerGroupSpecs"]
    (container,) = group["template"]["spec"]["containers"]
    gpus = int(container["resources"]["limits"]["nvidia.com/gpu"])
    # A cell's processes are on one node.
    assert gpus == int(given["gpus-per-node"]) == paper.resources.processors_of_a_worker()
    assert gpus * group["replicas"] == int(given["nodes"]) * gpus == paper.processors()


@pytest.mark.slow("builds of wheels")
def test_a_wheel_is_the_same_to_the_byte_wherever_it_is_built_and_is_not_built_without_links(tmp_path: Path) -> None:
    source, package = ROOT / "packages" / "budget", tmp_path / "elsewhere" / "budget"
    shutil.copytree(source, package, symlinks=True, ignore=shutil.ignore_patterns(".*"))
    link = package / "src" / "isocompute" / "budget" / "contract"
    # What an archive, or git where links are not allowed, has in place of a link.
    target = str(link.readlink())
    link.unlink()
    link.write_text(target)
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory"]
    none = [*command, str(tmp_path / "none")]
    refused = subprocess.run(none, cwd=package, capture_output=True, text=True, check=False)
    assert (refused.returncode, list(tmp_path.glob("none/*.whl"))) == (1, [])
    assert "without symbolic links" in refused.stderr.splitlines()[-1]
    link.unlink()
    shutil.copytree(ROOT / "contract", link)
    for path in package.rglob("*"):
        os.utime(path, (1e9, 1e9))
        path.chmod(0o700 if path.is_dir() else 0o600)
    for name, folder in (("one", source), ("other", package)):
        subprocess.run([*command, str(tmp_path / name)], cwd=folder, capture_output=True, check=True)
    one, other = tmp_path.glob("o*/*.whl")
    assert one.read_bytes() == other.read_bytes()
    assert "isocompute/budget/contract/tables.py" in zipfile.ZipFile(one).namelist()
