"""What keeps the packages apart, and the documents and stages true to the code."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from experiments.__main__ import COMMANDS
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
            file = document.parent / target
            assert file.exists(), f"{document}: {target}"
            # A page of the API is a list of modules until mkdocs has built it.
            assert file.suffix != ".md" or "\n:::" not in file.read_text(), f"{document}: {target}"


def test_the_commands_and_files_that_the_documents_name_are_there() -> None:
    for document in DOCUMENTS:
        text = document.read_text()
        assert set(re.findall(r"python -m experiments (\w+)", text)) <= COMMANDS.keys(), document
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


@pytest.mark.slow("another process")
def test_a_wheel_is_not_built_without_links(tmp_path: Path) -> None:
    source, package = ROOT / "packages" / "budget", tmp_path / "budget"
    shutil.copytree(source, package, symlinks=True, ignore=shutil.ignore_patterns(".*"))
    link = package / "src" / "isocompute" / "budget" / "contract"
    # What an archive, or git where links are not allowed, has in place of a link.
    target = str(link.readlink())
    link.unlink()
    link.write_text(target)
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(tmp_path / "built")]
    refused = subprocess.run(command, cwd=package, capture_output=True, text=True, check=False)
    assert (refused.returncode, list(tmp_path.glob("built/*.whl"))) == (1, [])
    assert "without symbolic links" in refused.stderr.splitlines()[-1]
