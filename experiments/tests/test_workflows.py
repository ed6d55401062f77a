"""What CI is told to run, which cannot be run here."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
SESSION = re.compile(r"^@nox\.session(\(.*\))?\ndef (\w+)", re.MULTILINE)
SESSIONS = {name: arguments for arguments, name in SESSION.findall((ROOT / "noxfile.py").read_text())}
NEEDED = {"lint", "types", "docs", "docs-check", "release-check", "tests", "isolated"}
BY_HAND = {"constraints", "golden", "repro_trl", "ui", "screenshot", "figures", "fast"}


def jobs() -> list[dict[str, Any]]:
    return [job for path in WORKFLOWS for job in yaml.safe_load(path.read_text())["jobs"].values()]


def sessions_of(job: dict[str, Any]) -> set[str]:
    ran = [str(step["run"]) for step in job["steps"] if "nox -s" in str(step.get("run"))]
    words = {word for line in ran for word in line.split("nox -s", 1)[1].split(" -- ")[0].split()}
    return words - {'"$SESSION"'}


def test_every_session_that_ci_needs_is_run_and_is_there() -> None:
    found = {session for job in jobs() for session in sessions_of(job)}
    assert found >= NEEDED
    assert {session.replace("-", "_") for session in found} <= {*SESSIONS}


def test_the_light_packages_are_tested_on_every_system_and_python() -> None:
    (light,) = (job for job in jobs() if {"os", "python"} <= set(job.get("strategy", {}).get("matrix", {})))
    matrix = light["strategy"]["matrix"]
    assert {name.partition("-")[0] for name in matrix["os"]} == {"ubuntu", "macos", "windows"}
    assert matrix["python"] == ["3.11", "3.12", "3.13", "3.14"]
    (line,) = (step["run"] for step in light["steps"] if "nox" in step.get("run", "") and "-s" in step["run"])
    assert line.split(" -- ")[1].split() == ["whole", "budget", "frontier", "${{", "matrix.python", "}}"]


def test_what_is_neither_a_check_nor_made_by_hand_is_a_campaign_that_runs_every_week() -> None:
    campaigns = {name for name, arguments in SESSIONS.items() if "tags=CAMPAIGN" in arguments}
    assert campaigns == {*SESSIONS} - {name.replace("-", "_") for name in NEEDED} - BY_HAND
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "campaigns.yml").read_text())
    assert any("nox --list --json -t campaign" in step.get("run", "") for step in workflow["jobs"]["list"]["steps"])
    assert (
        workflow["jobs"]["campaign"]["strategy"]["matrix"]["session"] == "${{ fromJSON(needs.list.outputs.sessions) }}"
    )


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_no_workflow_names_a_host_or_asks_for_more_than_reading(path: Path) -> None:
    text = path.read_text()
    assert not re.search(r"https?://|\w\.(org|com|io|dev)\b", text)
    assert yaml.safe_load(text)["permissions"] == {"contents": "read"}
    for action in re.findall(r"uses: (\S+)", text):
        assert re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40}", action), action


def test_lint_is_offered_to_pre_commit_as_it_is_run_here() -> None:
    (repository,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    assert repository["repo"] == "local"
    assert [hook["entry"] for hook in repository["hooks"]] == ["python3 -m nox -s lint"]
