"""The panel's grid: which cells a unit has, and which of them a branch, or a further seed, is made from."""

from pathlib import Path

import pytest

from experiments.errors import ExperimentError
from experiments.playbook import study as panel
from experiments.playbook.prepare import preset_of
from experiments.rates.rule import Rates
from experiments.running.cells import Cell, Origin
from experiments.running.design import Design
from experiments.running.identity import Surroundings

from ..made import SURROUNDINGS


@pytest.fixture
def study() -> panel.Study:
    return panel.load()


@pytest.fixture
def design(study: panel.Study) -> Design:
    unit = study.unit("hard-0")
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


def crossing(cells: list[Cell]) -> dict[str, dict[int, float]]:
    """Scores by which the highest rate leads up to 8,192 rollouts, and the lowest one later."""
    early, late = (4096, 6144, 8192), (32768, 49152, 65536)
    return {
        cell.run_id: dict.fromkeys(early, cell.learner.learning_rate) | dict.fromkeys(late, -cell.learner.learning_rate)
        for cell in cells
    }


def test_the_panel_has_twelve_units_of_four_settings_and_three_bases(study: panel.Study) -> None:
    units = study.units()
    assert len(units) == len({unit.name for unit in units}) == 12
    assert [unit.name for unit in units[:4]] == ["hard-0", "easy-0", "needle-0", "mixture-0"]
    with pytest.raises(ExperimentError, match="the panel has no unit 'hard'; it has hard-0"):
        study.unit("hard")


def test_the_rate_of_a_trunk_is_a_factor_on_the_root_of_its_batch(study: panel.Study, design: Design) -> None:
    cells = panel.trunks(study, design, RATES)
    assert len(cells) == len({cell.run_id for cell in cells}) == 15
    at = {(cell.rollouts_per_problem, cell.learner.learning_rate) for cell in cells}
    assert {(32, 1e-4), (32, 2e-4), (32, 4e-4), (2, 2.5e-5), (2, 5e-5), (2, 1e-4)} <= at


def test_warm_up_covers_the_same_rollouts_and_branches_begin_at_about_the_same(
    study: panel.Study, design: Design
) -> None:
    for cell in panel.trunks(study, design, RATES):
        assert cell.learner.optimizer.warmup_steps * cell.batch_rollouts == 1024
        begins = [step * cell.batch_rollouts for step in cell.branches_at]
        assert begins == [pytest.approx(0.85 * end, abs=cell.batch_rollouts) for end in (8192, 65536)]


def test_a_branch_continues_the_trunk_that_was_best_before_it_begins(study: panel.Study, design: Design) -> None:
    cells = panel.trunks(study, design, RATES)
    branches = panel.branches(study, cells, crossing(cells))
    trunks = {cell.run_id: cell for cell in cells}
    assert len(branches) == 10
    for branch in branches:
        trunk = trunks[branch.branch_of or ""]
        rates = sorted(each.learner.learning_rate for each in cells if each.batch_rollouts == branch.batch_rollouts)
        assert branch.learner.learning_rate == (rates[-1] if branch.rollouts == 8192 else rates[0])
        assert branch.first_step in trunk.branches_at
        assert branch.own_rollouts == branch.rollouts - branch.first_step * branch.batch_rollouts
        assert branch.learner.optimizer.factor_at(branch.first_step) == 1.0
        assert branch.learner.optimizer.factor_at(branch.rollouts // branch.batch_rollouts + 1) == 0.0


def test_equal_batches_take_the_rate_of_their_batch_and_further_seeds_the_best(
    study: panel.Study, design: Design
) -> None:
    cells = panel.trunks(study, design, RATES)
    scores = crossing(cells)
    more = panel.extras(study, study.unit("hard-0"), design, cells, scores)
    equal, seeds = more[:2], more[2:]
    chosen = {size: panel.best(own, scores, before=65536) for size, own in by_batch(cells).items()}
    assert [(cell.problems_per_batch, cell.rollouts_per_problem) for cell in equal] == [(16, 4), (32, 4)]
    assert [cell.learner for cell in equal] == [chosen[64].learner, chosen[128].learner]
    assert [(cell.seed, cell.learner) for cell in seeds] == [(1, chosen[size].learner) for size in chosen]
    assert not panel.extras(study, study.unit("needle-2"), design, cells, scores)


def by_batch(cells: list[Cell]) -> dict[int, list[Cell]]:
    found: dict[int, list[Cell]] = {}
    for cell in cells:
        found.setdefault(cell.batch_rollouts, []).append(cell)
    return found


def test_a_setting_that_the_study_does_not_know_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = panel.PANEL.read_text().replace("base_seeds:", "base_sedes:")
    monkeypatch.setattr(panel, "PANEL", tmp_path / "panel.yaml")
    panel.PANEL.write_text(text)
    with pytest.raises(ExperimentError, match=r"panel.yaml: study\.base_s"):
        panel.load()


def test_a_budget_whose_end_would_not_be_evaluated_is_refused(design: Design) -> None:
    sweep = design.sweep.model_copy(update={"rollouts": 5 * 512})
    with pytest.raises(ExperimentError, match=r"sweep\.hard\.rollouts is 2560, no point of the grid"):
        Design(preset=design.preset, sweep=sweep, origin=design.origin)
    for rollouts in (4 * 512, 6 * 512, 131072):
        Design(preset=design.preset, sweep=sweep.model_copy(update={"rollouts": rollouts}), origin=design.origin)
