"""``python -m experiments init``: a preset of one's own, complete in a file of its own."""

from pathlib import Path

import pytest
import yaml

from experiments.__main__ import main
from experiments.errors import ExperimentError
from experiments.settings import load, reading

from .made import PARAMS
from .test_schema import settings_of

pytestmark = pytest.mark.slow("settings written and read, again and again")


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "params.yaml").write_text(PARAMS.read_text())
    # Where the prepared base models are.
    (tmp_path / "experiments").symlink_to(PARAMS.parent / "experiments")
    return tmp_path


def named(file: str) -> None:
    """Let params.yaml name a file's preset, as ``init`` says."""
    text = Path("params.yaml").read_text()
    text = text.replace("settings_file: params.yaml", f"settings_file: {file}").replace("preset: tiny", "preset: mine")
    Path("params.yaml").write_text(text)


def test_what_it_writes_is_a_preset_that_params_can_name(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["init", "mine"]) == 0
    said = capsys.readouterr().out
    for line in ("settings_file: mine.yaml", "preset: mine", "problem_sets: [hard]", "tested_sets: []"):
        assert line in said
    named("mine.yaml")
    made, tiny = load(), load(preset="tiny")
    assert made.name == "mine"
    assert made.sweep["hard"].grid() == tiny.sweep["hard"].grid()
    assert made.resources == tiny.resources
    assert main(["plan"]) == 0


def test_it_names_every_setting_with_what_it_means(here: Path) -> None:
    main(["init", "mine", "--preset", "smoke"])
    text = (here / "mine.yaml").read_text()
    keys = {str(key) for key in _keys(yaml.safe_load(text))}
    # Of the kinds of problems, models and rules only one is in it, recipes are in place of settings, and there is no
    # adapter.
    other_kinds = {
        "dataset",
        "revision",
        "files",
        "split",
        "prompt",
        "answer",
        "verifier",
        "metadata",
        "path",
        "model",
        "recipe",
        "batch_rollouts",
        "models",
        "folder",
        "others",
        "command",
        "libraries",
        "world_size",
        "micro_batch",
        "logs",
        "log_settings",
        "rank",
        "alpha",
        "target_modules",
    }
    described = {path.rpartition(".")[2]: s["description"] for path, s in settings_of(reading.preset_schema())}
    assert set(described) - other_kinds - {"name", "longest", "margin", "phrase"} <= keys
    assert "# Rollouts per problem" in text or "# Group sizes (rollouts per problem), every n." in text
    assert all(len(line) <= 120 for line in text.splitlines())


def _keys(part: object) -> set[object]:
    if isinstance(part, dict):
        return set(part) | {key for value in part.values() for key in _keys(value)}
    return {key for value in part for key in _keys(value)} if isinstance(part, list) else set()


def test_a_file_that_is_there_stays(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "mine.yaml").write_text("work of days")
    assert main(["init", "mine"]) == 2
    assert "mine.yaml: is there already" in capsys.readouterr().err
    assert (here / "mine.yaml").read_text() == "work of days"


@pytest.mark.parametrize("name", ["../mine", "mine; id", "Mine"])
def test_a_name_that_cannot_be_one_is_refused(name: str, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["init", name]) == 2
    assert "lower-case letters, digits" in capsys.readouterr().err
    assert sorted(path.name for path in here.iterdir()) == ["experiments", "params.yaml"]


def test_a_settings_file_that_is_not_there_or_elsewhere_is_refused(here: Path) -> None:
    named("nothing.yaml")
    with pytest.raises(ExperimentError, match=r"nothing\.yaml: cannot be read"):
        load()
    for place in ("/etc/passwd", "../mine.yaml", "a b.yaml", "$(id).yaml"):
        text = PARAMS.read_text().replace("settings_file: params.yaml", f"settings_file: {place}")
        (here / "params.yaml").write_text(text)
        with pytest.raises(ExperimentError, match="settings_file is"):
            load()
