"""What dvc.yaml says a stage depends on, against the import graph."""

import ast
import re
from pathlib import Path

import grimp
import pytest
import yaml

from experiments.running import imports
from experiments.stages import SET_STAGES, STAGES, frontier

pytestmark = pytest.mark.slow("the graph of all imports")

ROOT = Path(__file__).parents[2]
PACKAGES = ("budget", "rollout", "learner", "frontier")
RUN_BY_DVC = [stage for stage in (*STAGES, *SET_STAGES) if stage != "plan"]


@pytest.fixture(scope="module")
def graph() -> grimp.ImportGraph:
    """Imports between all modules, those inside functions included, those for type checkers only left out."""
    packages = (f"isocompute.{p}" for p in PACKAGES)
    return grimp.build_graph("experiments", *packages, exclude_type_checking_imports=True, cache_dir=None)


def file_of(module: str) -> Path:
    root, *parts = module.split(".")
    top = ROOT / "experiments" if root == "experiments" else ROOT / "packages" / parts[0] / "src" / "isocompute"
    # The packages link to contract/, and DVC does not follow links to folders: it is the folder that must be named.
    place = top.joinpath(*parts).resolve() if "contract" in parts else top.joinpath(*parts)
    package = place / "__init__.py"
    return package if package.is_file() else place.with_suffix(".py")


def imported_files(stage: str, graph: grimp.ImportGraph) -> set[Path]:
    """Files of the modules upstream of a stage, and of those that define the names that packages load lazily."""
    module = f"experiments.stages.{stage}"
    files = {file_of(m) for m in {module, *graph.find_upstream_modules(module)}}
    return files | {path.resolve() for path in imports.closure(module).values()}


def dependencies(stage: str) -> list[Path]:
    named = yaml.safe_load((ROOT / "dvc.yaml").read_text())["stages"][stage]["deps"]
    return [ROOT / path for path in named if not path.startswith(("outputs", "constraints"))]


@pytest.mark.parametrize("stage", RUN_BY_DVC)
def test_every_file_that_a_stage_imports_is_a_dependency(stage: str, graph: grimp.ImportGraph) -> None:
    files = imported_files(stage, graph)
    assert all(path.is_file() for path in files)
    listed = dependencies(stage)
    # Files without a statement, such as an empty __init__.py, change nothing.
    missing = [f for f in files if ast.parse(f.read_text()).body and not any(f == d or d in f.parents for d in listed)]
    assert not missing


@pytest.mark.parametrize("stage", RUN_BY_DVC)
def test_the_contract_that_the_packages_link_to_is_a_dependency_itself(stage: str) -> None:
    assert all((ROOT / "packages" / p / "src/isocompute" / p / "contract").is_symlink() for p in PACKAGES)
    assert ROOT / "contract" in dependencies(stage)


@pytest.mark.parametrize("stage", RUN_BY_DVC)
def test_no_dependency_is_one_that_nothing_imports(stage: str, graph: grimp.ImportGraph) -> None:
    files = imported_files(stage, graph)
    for listed in dependencies(stage):
        assert listed.exists(), listed
        assert any(f == listed or listed in f.parents for f in files), listed


def test_problem_sets_and_the_metric_are_named_in_params_only() -> None:
    """No text of the code is one of these names, or holds one between its signs; the panel's questions have its own."""
    params = yaml.safe_load((ROOT / "params.yaml").read_text())
    names = {*params["problem_sets"], params[params["preset"]]["evaluation"]["metric"]}
    code = [p for p in (ROOT / "experiments").rglob("*.py") if not {"tests", "playbook", "paper.py"} & {*p.parts}]
    for path in code:
        tree = ast.parse(path.read_text())
        said = {id(n.value) for n in ast.walk(tree) if isinstance(n, ast.Expr)}
        texts = [n.value for n in ast.walk(tree) if isinstance(n, ast.Constant) and id(n) not in said]
        parts = {part for text in texts if isinstance(text, str) for part in re.split(r"[^a-z0-9_]+", text)}
        assert not parts & names, path
    listed = (ROOT / "dvc.yaml").read_text()
    assert not set(re.split(r"[^a-z0-9_]+", listed)) & names


def test_dvc_shows_the_metrics_and_the_plots_of_the_answers() -> None:
    """Images only: DVC's page of other plots loads scripts from the net."""
    declared = yaml.safe_load((ROOT / "dvc.yaml").read_text())
    assert declared["metrics"] == [str(frontier.METRICS)]
    assert declared["plots"] == [str(frontier.PLOTS)]


@pytest.mark.parametrize("stage", RUN_BY_DVC)
def test_dvc_follows_the_settings_into_a_file_of_ones_own(stage: str) -> None:
    own, preset = yaml.safe_load((ROOT / "dvc.yaml").read_text())["stages"][stage]["params"]
    assert own == {"params.yaml": ["preset", "settings_file"]}
    assert list(preset) == ["${settings_file}"]
    assert all(name.startswith("${preset}.") for name in preset["${settings_file}"])
