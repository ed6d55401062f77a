"""What keeps the packages apart, and the documents and stages true to the code."""

import ast
import json
import re
from typing import Any

import pytest
import yaml

from experiments.running import cells
from experiments.settings import load
from experiments.stages import SET_STAGES, STAGES

from .made import ROOT

PACKAGES = ("budget", "rollout", "learner", "frontier")
RUN_BY_DVC = [stage for stage in (*STAGES, *SET_STAGES) if stage != "plan"]
HIDDEN = {".nox", "outputs", "work", "CHANGELOG.md"}
DOCUMENTS = [p for p in ROOT.glob("**/*.md") if not HIDDEN & set(p.relative_to(ROOT).parts)]
SESSIONS = set(re.findall(r"^def (\w+)\(session", (ROOT / "noxfile.py").read_text(), re.MULTILINE))


def test_the_namespace_has_no_init_and_every_package_links_to_the_one_contract() -> None:
    assert not list(ROOT.glob("packages/*/src/isocompute/__init__.py"))
    for package in PACKAGES:
        link = ROOT / "packages" / package / "src" / "isocompute" / package / "contract"
        assert link.is_symlink()
        assert link.resolve() == ROOT / "contract"


def test_no_fixture_holds_a_path_of_the_machine_that_made_it() -> None:
    files = [p for p in ROOT.glob("packages/*/tests/fixtures/**/*") if p.is_file()]
    assert any("tfevents" in p.name for p in files)
    for path in files:
        for place in ("root", "home", "tmp", "Users", "var"):
            assert f"/{place}/".encode() not in path.read_bytes(), path


@pytest.mark.parametrize("stage", RUN_BY_DVC)
def test_a_stage_depends_on_what_it_imports_and_on_nothing_else(stage: str) -> None:
    named = yaml.safe_load((ROOT / "dvc.yaml").read_text())["stages"][stage]["deps"]
    listed = [ROOT / path for path in named if not path.startswith(("outputs", "constraints"))]
    # Files without a statement, such as an empty __init__.py, change nothing. DVC does not follow links to contract/.
    files = {path.resolve() for path in cells.closure(f"experiments.stages.{stage}").values()}
    code = [path for path in files if ast.parse(path.read_text()).body]
    assert [path for path in code if not any(path == each or each in path.parents for each in listed)] == []
    rest = [each for each in listed if not any(path == each or each in path.parents for path in code)]
    assert [each for each in rest if each.name != "__init__.py"] == []


def test_every_stage_looks_for_changed_inputs_which_are_always_hashed() -> None:
    stages = yaml.safe_load((ROOT / "dvc.yaml").read_text())["stages"]
    (made,) = stages["inputs"]["outs"]
    assert stages["inputs"]["always_changed"]
    assert all(made in stages[name]["deps"] for name in RUN_BY_DVC if name != "inputs")


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
    for place in re.findall(r"`((?:packages|experiments|contract|docs)/[\w./-]+)`", contributing):
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
