"""What stages print and refuse: prepared base models, difficulty, tests of a prescription, reports."""

import json
import shutil
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from isocompute.rollout.scoring.evaluation import wilson_interval

from experiments.errors import ExperimentError
from experiments.report import from_other_bases, health, spent, sweep_digest
from experiments.running.cell_folder import PREPARED, write_json
from experiments.running.cells import problems_hash
from experiments.settings import PreparedConfig, PreparedModel, Preset, load
from experiments.stages import frontier, prepare
from experiments.stages.prepare import score, signal
from experiments.stages.prescribe import sentence
from experiments.stages.sweep import setup_of, swept_for

from .made import PARAMS, ROOT, keep
from .made import spent as charged

INPUTS = ROOT / "experiments" / "studies" / "panel" / "inputs"


@pytest.fixture
def preset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Preset:
    """The default with two of its base models, in folders here."""
    monkeypatch.chdir(tmp_path)
    for name in ("one", "two"):
        shutil.copytree(INPUTS / f"chains-{int(name == 'two')}", name)
    models = tuple(PreparedModel(name=name, folder=name) for name in ("one", "two"))
    return load(PARAMS, "tiny").model_copy(update={"base": PreparedConfig(models=models)})


@pytest.mark.slow
def test_every_base_model_has_cells_of_its_own_problems(preset: Preset) -> None:
    prepare.run(preset)
    setup = setup_of(preset, "hard")
    assert [design.origin.base_model for design in setup.designs] == ["one", "two"]
    assert set(setup.models) == {design.origin.base for design in setup.designs}
    places = [Path(place).parts[-3:] for place in setup.models.values()]
    assert places == [("prepared", name, "base") for name in ("one", "two")]
    assert all(hashed == problems_hash(table) for hashed, table in setup.problems.items())
    assert set(setup.problems) == {design.origin.problems for design in setup.designs}
    rates = setup.designs[0].declared_rates()
    assert rates is not None
    cells = [cell for design in setup.designs for cell in design.cells(rates)]
    assert len({cell.run_id for cell in cells}) == len({cell.name for cell in cells}) == 2 * 5 * 3
    assert len({cell.baseline_id for cell in cells}) == 2


def test_a_file_that_is_missing_and_a_model_of_another_shape_are_named_and_nothing_is_copied(preset: Preset) -> None:
    for name in ("base/config.json", "base.json", "hard.parquet"):
        lost = (Path("two") / name).rename("lost")
        with pytest.raises(ExperimentError, match=f"two/{name}: there is no such file of the base model two"):
            prepare.run(preset)
        lost.rename(Path("two") / name)
    path = Path("two/base/config.json")
    path.write_text(json.dumps(json.loads(path.read_text()) | {"hidden_size": 128}))
    with pytest.raises(ExperimentError, match="differ in their weights alone"):
        prepare.run(preset)
    assert not PREPARED.exists()


def test_difficulty_is_measured_only_where_engine_and_learner_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def refuse(*_: object) -> None:
        asked.append("check")
        raise ExperimentError("they do not agree")

    monkeypatch.setattr(prepare, "model_of", lambda preset: ("model", "base"))
    monkeypatch.setattr(prepare, "workers", lambda *_: nullcontext())
    monkeypatch.setattr(prepare, "measure", lambda *_, **__: asked.append("measure"))
    monkeypatch.setattr(prepare, "check_agreement", refuse)
    preset = load(PARAMS, "smoke")
    assert preset.difficulty is not None
    with pytest.raises(ExperimentError, match="they do not agree"):
        prepare.measure_sets(preset, preset.difficulty, pl.DataFrame())
    assert asked == ["check"]


def runs(ends: dict[tuple[int, str, int], float]) -> tuple[pl.DataFrame, list[dict[str, Any]]]:
    """Runs by (n, base model, seed), each with its score at 128 rollouts; all were at 0.9 before."""
    columns = ["run_id", "rollouts", "rollouts_per_problem", "base_model", "seed", "avg_at_4"]
    rows = [
        (f"{n} {base} {seed}", at, n, base, seed, score)
        for (n, base, seed), end in ends.items()
        for at, score in ((32, 0.9), (128, end))
    ]
    states = [{"run_id": f"{n} {b} {s}", "rollouts_per_problem": n, "status": "finished"} for n, b, s in ends]
    return pl.DataFrame(rows, schema=columns, orient="row"), states


def said(evals: pl.DataFrame, states: list[dict[str, Any]]) -> str:
    return sentence(evals, states, "avg_at_4", chosen=2, rollouts=128)


def test_runs_are_paired_by_base_model_and_seed() -> None:
    evals, states = runs(
        {(2, "a", 0): 0.5, (2, "a", 1): 0.7, (2, "b", 0): 0.2, (4, "a", 0): 0.4, (4, "a", 1): 0.5, (4, "b", 0): 0.1}
    )
    assert said(*runs({(2, "a", 0): 0.5})).endswith("n = 2 against no other")
    # Differences of 0.1, 0.2 and 0.1: 4.303 · 0.0577 / √3 = 0.143.
    assert said(evals, states) == (
        "trained at 128 rollouts with fresh seeds, n = 2 against n = 4: +0.133 (95 %: -0.010 to +0.277, 3 pairs)"
    )


def test_what_diverged_is_counted_apart_and_its_pair_is_left_out() -> None:
    evals, states = runs({(2, "a", 0): 0.5, (2, "a", 1): 0.7, (4, "a", 0): 0.4, (4, "a", 1): 0.0})
    states[-1]["status"] = "diverged"
    assert said(evals, states).endswith("n = 4: +0.100 (95 %: -inf to +inf, 1 pairs); 1 of 4 runs diverged")
    states[-2]["status"] = "diverged"
    assert said(evals, states).endswith("n = 4: no pair was trained to the end; 2 of 4 runs diverged")


def test_outputs_of_another_preset_or_of_other_settings_are_refused_by_the_next_stage(preset: Preset) -> None:
    (problem_set,) = preset.sweep
    prepare.run(preset)
    assert len(setup_of(preset, problem_set).designs) == 2
    mine = preset.model_copy(update={"name": "mine"})
    longer = preset.model_copy(update={"sampling": replace(preset.sampling, max_new_tokens=12)})
    for other, whose in ((mine, "of preset tiny: run `prepare --preset mine`"), (longer, "of other settings")):
        with pytest.raises(ExperimentError, match=f"outputs/prepared is {whose}"):
            setup_of(other, problem_set)
    with pytest.raises(ExperimentError, match="no such file"):
        prepare.run(mine.model_copy(update={"base": PreparedConfig(models=(PreparedModel(name="x", folder="x"),))}))
    with pytest.raises(ExperimentError, match="outputs/prepared is of other settings"):
        setup_of(mine, problem_set)
    write_json(Path("outputs/sweep") / problem_set / "cells.json", {"of": swept_for(preset, problem_set)})
    with pytest.raises(ExperimentError, match=rf"outputs/sweep/{problem_set} is of preset tiny: run `sweep"):
        frontier.run(mine, problem_set)


def test_a_side_without_one_right_response_has_an_error_too() -> None:
    rates = {"pass_rate": 0.1, "fresh_pass_rate": 0.0, "pass_rate_samples": 16, "fresh_pass_rate_samples": 8}
    part = pl.DataFrame([{"split": "train", **rates}] * 20)
    found = score(part, "train")
    assert found["fresh"] == 0
    assert found["fresh_standard_error"] == pytest.approx(wilson_interval(0.0, 160)[1] / (2 * 1.959964), rel=1e-6)


def test_groups_with_signal_are_counted_up_to_the_responses_that_measured_them() -> None:
    rates = pl.DataFrame({"split": ["train"] * 2, "fresh_pass_rate": [0.5, 0.0], "fresh_pass_rate_samples": [4, 4]})
    # Of two draws of four, two of them right, 4 of 6 differ; of the second problem none does.
    assert [*signal(rates, (2, 4, 16))] == ["groups with signal: 33% at n = 2, 50% at n = 4"]
    said = [*signal(rates[1:], (2,))]
    assert said[0].endswith("0% at n = 2")
    assert said[1].startswith("warning: none of 4 responses")


def test_what_was_found_from_other_bases_is_said_of_the_same_sweep_alone(tmp_path: Path) -> None:
    tiny, found = load(PARAMS, "tiny"), tmp_path / "others.json"
    found.write_text(json.dumps({"sweep": sweep_digest(tiny, "hard"), "sentence": "5 alone: n = 4 (5)"}))
    base = {"base": tiny.base.model_copy(update={"others": str(found)})}
    own = tiny.model_copy(update=base)
    assert from_other_bases(own, "hard") == "5 alone: n = 4 (5)"
    longer = tiny.sweep["hard"].model_copy(update={"rollouts": 16384})
    assert from_other_bases(own.model_copy(update={"sweep": {"hard": longer}}), "hard") == ""
    assert from_other_bases(load(PARAMS, "smoke"), "hard") == ""


def state(run: str, **changes: Any) -> dict[str, Any]:
    setting = {"rollouts_per_problem": 2, "problems_per_batch": 4, "seed": 0, "learning_rate": 1e-3}
    ended = {"steps": 30, "status": "finished", "health": [], "judged": True}
    return {"run_id": run, "purpose": "sweep", "base_model": "base", **setting, **ended, **changes}


def test_what_was_generated_is_told_apart_by_what_it_was_for(tmp_path: Path) -> None:
    rows = [
        ("swept", 1, "trained", 64),
        ("swept", 1, "filtered", 8),
        ("swept", 1, "eval", 48),
        ("tried", 1, "pilot", 32),
        ("tried", 1, "eval", 1048),
        ("start", 0, "eval", 16),
    ]
    keep(tmp_path, "ledger", *({**charged(*row), "response_tokens": 9} for row in rows))
    write_json(tmp_path / "cells.json", {"cells": [state("swept"), state("tried", purpose="pilot")]})
    assert spent(tmp_path).rows == (
        ("evaluation", "48", "9"),
        ("evaluation before the first update", "16", "9"),
        ("filtered", "8", "9"),
        ("pilots: evaluation", "1,048", "9"),
        ("pilots: training", "32", "9"),
        ("trained", "64", "9"),
    )


def test_flags_divergence_and_runs_too_short_to_judge_are_listed_by_cell() -> None:
    flag = {"name": "entropy_collapse", "step": 1200, "reason": "0.01 of 1.2 nats"}
    ill, gone, short = state("a", health=[flag]), state("b", status="diverged", steps=3), state("c", judged=False)
    where = ("sweep", "base", "n = 2, B_p = 4, seed 0", "0.001")
    found = health([ill, gone, short, state("d")])
    assert found.text.startswith("No flags in 1 of 4 cells")
    assert found.table is not None
    assert found.table.rows == (
        (*where, "1,200", "entropy collapse", "0.01 of 1.2 nats"),
        (*where, "3", "diverged", "its gradient was not finite, twice; its evaluations count"),
        (*where, "30", "not judged", "it has fewer steps than the flags need"),
    )
    assert health([state("d")]).table is None
