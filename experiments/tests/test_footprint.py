"""The memory that ``plan`` predicts."""

import pytest

from experiments.settings import Preset, load
from experiments.stages import footprint, plan
from experiments.tiny import model as tiny_model
from experiments.tiny.config import ChainsModelConfig


def test_the_tiny_model_has_the_shape_that_its_memory_is_predicted_from() -> None:
    preset = load(preset="smoke")
    assert isinstance(preset.base, ChainsModelConfig)
    shape = footprint.shape(preset)
    assert shape is not None
    assert shape.parameters == sum(p.numel() for p in tiny_model.new_model(preset.base).parameters())


def test_the_plan_of_the_paper_predicts_the_memory_of_seven_billion_parameters(
    capsys: pytest.CaptureFixture[str],
) -> None:
    plan.run(load(preset="paper"))
    printed = capsys.readouterr().out
    assert printed.count("7.62 billion parameters") == 2
    weights = next(line for line in printed.splitlines() if line.strip().startswith("weights"))
    assert float(weights.split()[-2]) == pytest.approx(4 * 7.616e9 / 2**30, abs=0.05)


def test_a_prepared_model_is_as_large_as_its_folder_says() -> None:
    found, made = footprint.shape(load(preset="tiny")), tiny_model.new_model(ChainsModelConfig())
    assert found is not None
    assert found.parameters == sum(p.numel() for p in made.parameters())


def test_the_plan_of_a_small_model_is_in_one_small_unit(capsys: pytest.CaptureFixture[str]) -> None:
    plan.run(load(preset="tiny"))
    printed = capsys.readouterr().out
    sizes = [line for line in printed.splitlines() if line.endswith("iB")]
    assert sizes
    assert {line.split()[-1] for line in sizes} == {"MiB"}
    assert all(float(line.split()[-2]) > 0 for line in sizes)
    assert " million parameters in " in printed
    assert "billion" not in printed


def test_a_model_whose_shape_is_not_here_is_said_to_be_so() -> None:
    preset = load(preset="paper")
    other = preset.model_copy(update={"base": preset.base.model_copy(update={"model": "someone/else"})})
    assert isinstance(other, Preset)
    assert footprint.shape(other) is None
