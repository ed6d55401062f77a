"""A rate that is declared: the cells that it gives, and that nothing is searched."""

import json
from dataclasses import asdict
from math import sqrt
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import yaml

from experiments.__main__ import main
from experiments.errors import ExperimentError
from experiments.rates.record import Pilot
from experiments.running import starts, work
from experiments.running.cells import Origin
from experiments.running.design import Design
from experiments.running.identity import Surroundings
from experiments.settings import Preset, load, template
from experiments.stages import anchor, plan
from experiments.stages.search import find, first_score, write_pilot

from .made import PARAMS, SURROUNDINGS, changed
from .rates.made import BASE, declared, pilot
from .rates.test_leaders import easy

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
        problem_set="easy", base="b", problems="p", generation=of.generation, surroundings=Surroundings(**SURROUNDINGS)
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


def test_there_is_nothing_to_search(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = "sweep.easy.learning_rate declares a rate: there is nothing to search"
    known = preset(tmp_path)
    with pytest.raises(ExperimentError, match=said):
        find(design(known), lambda cells: {}, BASE)
    # Before anything is read or started, whatever the budget.
    for budget in (None, 1):
        with pytest.raises(ExperimentError, match=said):
            anchor.run(known, "easy", budget=budget)
    assert main(["anchor", "easy", "--preset", "smoke"]) == 2
    assert [line for line in capsys.readouterr().err.splitlines() if said in line]


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
    # Four cells of 96 rollouts and six of 128, evaluated every 16 and 32, with four responses to each of 12 problems.
    assert f"{(4 * 6 + 6 * 4) * 12 * 4:,} rollouts" in evaluate


def test_where_the_rate_is_from_is_written_without_a_figure_and_that_of_an_earlier_search_goes(tmp_path: Path) -> None:
    out = tmp_path / "sweep"
    assert [path.exists() for path in write_pilot(pilot(easy()), out)] == [True, True]
    assert write_pilot(declared(), out) == []
    assert [path.name for path in out.iterdir()] == ["pilot.json"]
    assert Pilot.read(json.loads((out / "pilot.json").read_text())) == declared()


def test_the_base_models_score_is_that_of_the_sweeps_first_evaluations_where_it_was_not_measured(
    tmp_path: Path,
) -> None:
    made = design(preset(tmp_path))
    rates = made.declared_rates()
    assert rates is not None
    cells = made.cells(rates)
    for cell in cells:
        shown = pl.DataFrame({"problem_id": ["p"], "successes": [1], "samples": [4]})
        cost = {"rollouts": 4, "prompt_tokens": 4, "response_tokens": 4}
        score = {"best_at_4": 0.4 if cell.seed else 0.6}
        start = starts.Start(metrics=score, questions=100, samples=4, cost=cost, pass_rates=shown)
        starts.write(work.start_of(cell), start)
    found = Pilot.of(rates, metric="best_at_4", base=first_score(cells, "best_at_4"))
    assert found.base.score == pytest.approx(0.5)
    assert asdict(found)["declared"] == {"learning_rate": 1e-6, "batch_rollouts": 1024}


def test_a_preset_with_a_declared_rate_is_written_whole_by_init(tmp_path: Path) -> None:
    known = preset(tmp_path)
    written = template.text("mine", known, yaml.safe_load((tmp_path / "params.yaml").read_text())["smoke"])
    (tmp_path / "mine.yaml").write_text(written)
    assert load(tmp_path / "mine.yaml", "mine").sweep["easy"].learning_rate == known.sweep["easy"].learning_rate
    assert "batch_rollouts: 1024" in written
