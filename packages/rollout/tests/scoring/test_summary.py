"""The report on the sandbox: it names what a test process has just been refused, and nothing else."""

import os
import tempfile
from pathlib import Path

import pytest
from isocompute.rollout.scoring.config import LAYERS, ScoringConfig
from isocompute.rollout.scoring.sandbox.process import ATTEMPTS, report, words

pytestmark = pytest.mark.slow("sandboxes, one after another")


def named(lines: list[str]) -> dict[str, str]:
    """What each line says, by its first word."""
    return {line.split(" ")[0]: line.partition(": ")[2] for line in lines}


def test_a_layer_that_did_not_hold_is_not_named() -> None:
    layers = {"files": "Landlock 7", "network": "namespace", "seccomp": "set", "processes": "namespace", "user": ""}
    refused = dict.fromkeys(ATTEMPTS, "refused")
    assert words("files", layers, refused) == "Landlock 7"
    for attempt, layer in ATTEMPTS.items():
        said = words(layer, {**layers, layer: "claimed"}, {**refused, attempt: "done"})
        assert said == f"not shown: a test process could {attempt}"
    # What was not tried was not shown.
    assert words("network", layers, {}).startswith("not shown: ")
    assert words("seccomp", {**layers, "seccomp": ""}, refused) == "missing"


def test_the_report_names_what_was_refused_just_now() -> None:
    before = set(Path(tempfile.gettempdir()).iterdir())
    full = named(report())
    assert set(full) == {"no_new_privs", "user", "network", "processes", "files", "seccomp", "limits:", "rules"}
    assert not [line for line in full.values() if "not shown" in line or "missing" in line], full
    bare = named(report(ScoringConfig(without=LAYERS)))
    assert bare["seccomp"] == bare["network"] == bare["files"] == "missing"
    assert bare["processes"] == "not shown: a test process could signal the engine"
    left = {path for path in set(Path(tempfile.gettempdir()).iterdir()) - before if "isocompute" in path.name}
    assert not left


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_the_report_says_whose_user_it_is() -> None:
    assert named(report())["user"].startswith("uid ")
    assert named(report(ScoringConfig(without=("user",))))["user"] == "missing: the engine's own user"
