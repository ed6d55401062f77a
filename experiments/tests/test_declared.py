"""A rate that is declared: the cells that it gives, and that nothing is searched."""

from dataclasses import replace
from math import sqrt
from pathlib import Path
from typing import Any

import pytest

from experiments.errors import ExperimentError
from experiments.running.cells import Origin, Surroundings
from experiments.running.design import Design
from experiments.settings import Preset, load
from experiments.stages import plan
from experiments.stages.sweep import find

from .made import PARAMS, SURROUNDINGS, changed
from .rates.made import BASE

RATE = "sweep.easy.learning_rate"
DECLARED = {"rule": "sqrt", "learning_rate": 1.0e-6}


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def preset(tmp_path: Path, **changes: Any) -> Preset:
    """``smoke``, whose set ``easy`` has a declared rate."""
    return load(changed(tmp_path, RATE, DECLARED | changes), "smoke")


def design(of: Preset) -> Design:
    origin = Origin(
        problem_set="easy",
        base_model="base",
        base="b",
        problems="p",
        generation=of.generation,
        surroundings=Surroundings(**SURROUNDINGS),
    )
    return Design(preset=of, sweep=of.sweep["easy"], origin=origin)


def test_every_cell_has_the_declared_rate_scaled_to_its_batch_and_there_are_no_pilots(tmp_path: Path) -> None:
    for rule, factor in (("constant", lambda b: 1.0), ("linear", lambda b: b / 32), ("sqrt", lambda b: sqrt(b / 32))):
        made = design(preset(tmp_path, rule=rule, batch_rollouts=32))
        rates = made.declared_rates()
        assert rates is not None
        cells = made.cells(rates)
        assert {cell.batch_rollouts for cell in cells} == {8, 16}
        for cell in cells:
            assert cell.learner.learning_rate == pytest.approx(1e-6 * factor(cell.batch_rollouts))
        assert made.trials() == made.trials([1e-3]) == []


def test_the_rates_of_a_search_are_not_known_before_it() -> None:
    assert design(load(PARAMS, "smoke")).declared_rates() is None


def test_there_is_nothing_to_search(tmp_path: Path) -> None:
    said = "sweep.easy.learning_rate declares a rate: there is nothing to search"
    with pytest.raises(ExperimentError, match=said):
        find(design(preset(tmp_path)), lambda cells: None, BASE)


@pytest.mark.slow
def test_the_plan_has_no_row_of_pilots_and_names_the_rate_of_each_cell(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan.run(preset(tmp_path, batch_rollouts=16))
    lines = capsys.readouterr().out.splitlines()
    # Of the other set there is a search.
    assert [line.split()[0] for line in lines if " pilot " in line and "cells" in line] == ["hard"]
    assert [line.split()[-1] for line in lines if "update steps, learning rate" in line] == ["7.07e-07"] * 2 + [
        "1e-06"
    ] * 2
    evaluate = next(line for line in lines if line.startswith("easy     evaluate"))
    # Four cells of 96 rollouts and six, evaluated every 16 and 32, with four responses to each of 12 problems.
    assert f"{(4 * 6 + 6 * 3) * 12 * 4:,} rollouts" in evaluate


def test_every_cell_is_trained_at_each_factor_of_its_rate(tmp_path: Path) -> None:
    """A factor of 1 changes no rate, so that it changes no run either."""
    known = preset(tmp_path, batch_rollouts=8)
    sweep = known.sweep["easy"].model_copy(update={"rate_factors": (0.5, 1.0)})
    made = replace(design(known), sweep=sweep)
    rates = made.declared_rates()
    assert rates is not None
    both, alone = made.cells(rates), design(known).cells(rates)
    assert len(both) == 2 * len(alone)
    assert {cell.run_id for cell in alone} < {cell.run_id for cell in both}
    assert {cell.learner.learning_rate for cell in both if cell.batch_rollouts == 8} == {5e-7, 1e-6}
