from pathlib import Path

import pytest
import yaml

from experiments.config import load
from experiments.errors import ExperimentError

PARAMS = Path(__file__).parents[2] / "params.yaml"


@pytest.mark.parametrize("preset", ["tiny", "smoke", "paper"])
def test_every_preset_is_a_configuration(preset: str) -> None:
    assert load(PARAMS, preset).name == preset


def changed(tmp_path: Path, change: str, value: object) -> Path:
    raw = yaml.safe_load(PARAMS.read_text())
    place = raw["smoke"]
    *parents, last = change.split(".")
    for key in parents:
        place = place[key]
    place[last] = value
    path = tmp_path / "params.yaml"
    path.write_text(yaml.safe_dump(raw))
    return path


@pytest.mark.parametrize(
    ("change", "value", "message"),
    [
        ("sweep.easy.rolouts", 1, "smoke.sweep.easy has no setting 'rolouts'"),
        ("colour", "red", "smoke has no setting 'colour'"),
        ("sweep.easy.rollouts_per_problem", [1, 2], "a group baseline needs 2 or more"),
        ("sweep.easy.rollouts", 4, "no step could be taken"),
        ("sweep.easy.evaluate_every", 24, "multiple of every batch"),
        ("sweep.easy.learner", {"kl": 1}, "no setting 'kl'"),
        ("base", {"kind": "huge"}, "tiny or model"),
        ("difficulty.sets.easy.lowest", 2.0, "interval within 0 to 1"),
        ("resources.workers", "two", "has to be of type int"),
    ],
)
def test_what_cannot_be_is_one_clear_error(change: str, value: object, message: str, tmp_path: Path) -> None:
    with pytest.raises(ExperimentError, match=message):
        load(changed(tmp_path, change, value), "smoke")


def test_an_unknown_preset_and_a_missing_file_are_named(tmp_path: Path) -> None:
    with pytest.raises(ExperimentError, match="there is no preset 'huge'"):
        load(PARAMS, "huge")
    with pytest.raises(ExperimentError, match="cannot be read"):
        load(tmp_path / "params.yaml")
