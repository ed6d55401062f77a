"""The command line: what is one line to its user, and what keeps its traceback."""

import errno
import os
from importlib import import_module
from pathlib import Path

import pytest

from experiments.__main__ import main
from experiments.errors import ExperimentError
from experiments.stages import plan

from .made import PARAMS, changed

PACKAGES = ("budget", "rollout", "learner", "frontier")
OURS = [getattr(import_module(f"isocompute.{p}.errors"), f"{p.capitalize()}Error") for p in PACKAGES]
HUB = {"kind": "hub", "dataset": "o/d", "revision": "0" * 40}
MODEL = {"kind": "model", "model": "o/m", "revision": "0" * 40}


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "params.yaml").write_text(PARAMS.read_text())


def stops_with(error: Exception, monkeypatch: pytest.MonkeyPatch) -> int:
    def run(preset: object, terms: object) -> None:
        raise error

    monkeypatch.setattr(plan, "run", run)
    return main(["plan", "--preset", "smoke"])


@pytest.mark.parametrize("kind", [ExperimentError, *OURS])
def test_an_error_of_the_project_is_one_line(
    kind: type[Exception], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert stops_with(kind("what was wrong"), monkeypatch) == 2
    assert capsys.readouterr().err == "error: what was wrong\n"


def test_a_full_disk_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert stops_with(OSError(errno.ENOSPC, "No space left on device", "here"), monkeypatch) == 2
    assert "No space left on device" in capsys.readouterr().err


@pytest.mark.parametrize("bug", [ValueError("invalid literal"), KeyError("a"), FileNotFoundError(2, "No such file")])
def test_a_bug_keeps_its_traceback(bug: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(type(bug)):
        stops_with(bug, monkeypatch)


@pytest.mark.parametrize(
    ("change", "value", "offline"),
    [("problems", [HUB], None), ("base", MODEL, None), ("sampling.max_new_tokens", 12, "1")],
)
def test_the_hub_is_closed_where_the_preset_needs_nothing_of_it(
    change: str, value: object, offline: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "")
    monkeypatch.delenv("HF_HUB_OFFLINE")
    changed(tmp_path, change, value)
    seen: list[str | None] = []
    monkeypatch.setattr(plan, "run", lambda preset, terms: seen.append(os.environ.get("HF_HUB_OFFLINE")))
    assert main(["plan", "--preset", "smoke"]) == 0
    assert seen == [offline]


def test_what_the_user_says_of_the_hub_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    seen: list[str | None] = []
    monkeypatch.setattr(plan, "run", lambda preset, terms: seen.append(os.environ.get("HF_HUB_OFFLINE")))
    assert main(["plan", "--preset", "smoke"]) == 0
    assert seen == ["0"]
