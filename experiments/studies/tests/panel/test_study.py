"""The panel's grid: its units, and the cells that the settings of one make."""

import pytest

from experiments.errors import ExperimentError
from experiments.running.cells import Origin, Surroundings
from experiments.running.design import Design, Rates
from experiments.studies.panel.prepare import preset_of
from experiments.studies.panel.study import UNITS, unit_of
from experiments.tests.made import SURROUNDINGS


@pytest.fixture
def design() -> Design:
    unit = unit_of("hard-0")
    preset = preset_of(unit)
    origin = Origin(
        problem_set="hard",
        base_model="chains-0",
        base="b",
        problems="p",
        generation=preset.generation,
        surroundings=Surroundings(**SURROUNDINGS),
    )
    return Design(preset=preset, sweep=preset.sweep_of("hard"), origin=origin)


RATES = Rates(rule="sqrt", found={(8, 8): 1e-4})


def test_the_panel_has_twelve_units_of_four_settings_and_three_bases() -> None:
    assert len(UNITS) == len({unit.name for unit in UNITS}) == 12
    assert [unit.name for unit in UNITS[:4]] == ["hard-0", "easy-0", "needle-0", "mixture-0"]
    with pytest.raises(ExperimentError, match="the panel has no unit 'hard'; it has hard-0"):
        unit_of("hard")


def test_warm_up_covers_the_same_rollouts(design: Design) -> None:
    for cell in design.cells(RATES):
        assert cell.learner.optimizer.warmup_steps * cell.batch_rollouts == 1024


def test_a_budget_whose_end_would_not_be_evaluated_is_refused(design: Design) -> None:
    sweep = design.sweep.model_copy(update={"rollouts": 5 * 512})
    with pytest.raises(ExperimentError, match=r"sweep\.hard\.rollouts is 2560, no point of the grid"):
        Design(preset=design.preset, sweep=sweep, origin=design.origin)
    for rollouts in (4 * 512, 6 * 512, 131072):
        Design(preset=design.preset, sweep=sweep.model_copy(update={"rollouts": rollouts}), origin=design.origin)
