"""What the report and the closing words say of runs that diverged, and what gains are over."""

from pathlib import Path
from typing import Any

import polars as pl
import pytest
from isocompute.rollout.contract import tables

from experiments.closing import _rates
from experiments.report.gains import gains, gains_table, metric_label
from experiments.report.spent import diverged, spent
from experiments.running.work import write_json
from experiments.settings import load
from experiments.stages import prescribe, report

from .rates.made import declared, found, line, pilot
from .rates.test_leaders import easy

PARAMS = Path(__file__).parents[2] / "params.yaml"


def evals(*, ends: dict[tuple[int, int], tuple[int, float]]) -> pl.DataFrame:
    """Runs by (n, seed), each with its last rollouts and score; all begin at 0.9, which no gain may be over."""
    rows = [
        {"run_id": f"n{n}s{seed}", "step": at // 16, "rollouts": at, "tokens": at, "rollouts_per_problem": n,
         "problems_per_batch": 4, "seed": seed, "problem_set": "easy", "split": "validation", "questions": 12,
         "samples": 4, "avg_at_4": score}
        for (n, seed), (last, end) in ends.items()
        for at, score in ((0, 0.9), (last, end))
    ]  # fmt: skip
    return pl.DataFrame(rows)


def state(n: int, seed: int, status: str) -> dict[str, Any]:
    return {
        "run_id": f"n{n}s{seed}", "purpose": "sweep", "rollouts_per_problem": n, "problems_per_batch": 4, "seed": seed,
        "learning_rate": 1e-3, "rollouts": 128, "steps": 3, "status": status,
        "health": [], "policy": None,
    }  # fmt: skip


ENDS = {(2, 0): (128, 0.5), (2, 1): (128, 0.7), (4, 0): (128, 0.4), (4, 1): (32, 0.0)}
STATES = [state(n, seed, "diverged" if (n, seed) == (4, 1) else "finished") for n, seed in ENDS]


def test_gains_are_over_the_fresh_score_and_of_the_seeds_that_ended() -> None:
    two, four = gains(evals(ends=ENDS), "avg_at_4", STATES, base=0.2, base_error=0.05)
    # Seeds of 0.5 and 0.7: 0.141 / √2 = 0.1, and 0.05 of the base model.
    assert two.text() == "0.200 -> 0.600 (+0.400 ± 0.112, 2 seeds)"
    assert four.text() == "0.200 -> 0.400 (+0.200, 1 seed, 1 diverged)"
    every = [state(4, seed, "diverged") for seed in (0, 1)]
    (none,) = gains(evals(ends={k: v for k, v in ENDS.items() if k[0] == 4}), "avg_at_4", every, base=0.2)
    assert none.text() == "no seed was trained to the end, 2 diverged"


def test_a_gains_error_is_no_lower_than_that_of_sampling() -> None:
    """Two seeds that end alike: 48 responses each of mean 0.5."""
    (same,) = gains(evals(ends={(2, 0): (128, 0.5), (2, 1): (128, 0.5)}), "avg_at_4", STATES, base=0.2)
    assert same.error == pytest.approx((0.25 / 48 / 2) ** 0.5)
    assert "+0.300 ± 0.051" in gains_table([same], pilot(easy()))


def test_the_base_models_score_is_measured_again_only_in_a_mean_of_responses() -> None:
    (gain,) = gains(evals(ends={(2, 0): (128, 0.5)}), "avg_at_4", STATES, base=0.2)
    assert gain.error is None
    assert "<th>base model, measured again</th>" in gains_table([gain], pilot(easy()))
    for metric in ("best_at_4", "worst_at_4"):
        searched, known = pilot(easy(), metric=metric), declared(metric=metric)
        assert "<th>base model, the pilots&#x27; first evaluations</th>" in gains_table([gain], searched)
        assert "<th>base model, the cells&#x27; first evaluations</th>" in gains_table([gain], known)


def test_what_pilots_generated_for_evaluation_has_a_row_of_its_own(tmp_path: Path) -> None:
    states = [state(2, 0, "finished"), {**state(2, 900, "finished"), "purpose": "pilot"}]
    rows = [
        ("n2s0", 1, "trained", 64), ("n2s0", 1, "filtered", 8), ("n2s0", 1, "eval", 48), ("n2s900", 1, "pilot", 32),
        ("n2s900", 1, "eval", 1048), ("start", 0, "eval", 16),
    ]  # fmt: skip
    ledger = [
        {"run_id": run, "step": step, "cohort": cohort, "rollouts": count, "prompt_tokens": 1, "response_tokens": 9}
        for run, step, cohort, count in rows
    ]
    tables.write(pl.DataFrame(ledger), "ledger", tmp_path / "sweep" / "easy" / "ledger.parquet")
    write_json(tmp_path / "sweep" / "easy" / "cells.json", {"cells": states})
    shown = spent("easy", tmp_path)
    for what, count in (
        ("sweep: trained", "64"), ("sweep: filtered", "8"), ("sweep: evaluation", "48"), ("pilots: training", "32"),
        ("pilots: evaluation", "1,048"), ("sweep and pilots: evaluation before the first update", "16"),
    ):  # fmt: skip
        assert f"<td>{what}</td><td>{count}</td><td>9</td>" in shown, what
    assert shown.count("<tr>") == 7


def test_the_closing_words_give_the_rate_of_every_n_and_no_order_of_n() -> None:
    cells = [(4, 8), (8, 8), (16, 8)]
    assert _rates(pilot(easy()), cells) == (
        "  learning rates (tuned): 0.00025 at n = 4, 0.00025 at n = 8 (interpolated in log n between n = 4 and "
        "n = 16), 0.00025 at n = 16"
    )
    anchored = pilot([found(16, [line(1e-4, 0.4), line(2e-4, 0.6)])], rule="sqrt")
    assert _rates(anchored, cells) == (
        "  learning rates (sqrt): 0.0001 at n = 4, 0.000141 at n = 8, 0.0002 at n = 16 (edge of the grid); 0.0002 of "
        "the pilot at B = 128, scaled with the root of B"
    )
    for rule, rate in (("constant", "0.0002"), ("linear", "5e-05")):
        assert f"({rule}): {rate} at n = 4, B_p = 8; " in _rates(
            pilot([found(16, [line(1e-4, 0.4), line(2e-4, 0.6)])], rule=rule), [*cells, (4, 32)]
        )


def test_the_closing_words_say_that_a_rate_was_declared() -> None:
    assert _rates(declared(), [(4, 64), (16, 256)]) == (
        "  learning rates (sqrt): 5e-07 at n = 4, B_p = 64; 2e-06 at n = 16, B_p = 256; 1e-06 as declared at "
        "B = 1,024, scaled with the root of B"
    )


def test_the_report_names_runs_that_diverged_and_only_those() -> None:
    shown = diverged(STATES)
    assert shown.count("<tr>") == 2
    assert "<td>n = 4</td><td>4</td><td>1</td>" in shown
    assert diverged([s for s in STATES if s["status"] == "finished"]) == ""
    assert metric_label("worst_at_4") == "worst@4"


def test_a_test_of_the_prescription_leaves_out_what_diverged_and_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run that diverged has no evaluation at that budget, which would otherwise end the comparison."""
    monkeypatch.chdir(tmp_path)
    preset = load(PARAMS, "smoke")
    settings = preset.prescribe["easy"].model_copy(update={"baselines": (4,)})
    out = prescribe.OUT / "prescribe" / "easy"
    tables.write(evals(ends=ENDS), "evals", out / "evals.parquet")
    write_json(out / "cells.json", {"cells": STATES})
    found = prescribe._compared(preset, "easy", settings, 2)
    assert found["diverged"] == [{"rollouts_per_problem": 4, "seed": 1, "steps": 3}]
    (against,) = found["against"]
    assert against["differences"] == [pytest.approx(0.1)]
    assert against["verdict"] == "unresolved"
    assert "n = 4, seed 1 diverged" in capsys.readouterr().out


def test_the_numbers_that_dvc_shows_are_those_of_the_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    out = Path("outputs")
    tables.write(evals(ends=ENDS), "evals", out / "sweep" / "easy" / "evals.parquet")
    write_json(out / "sweep" / "easy" / "cells.json", {"cells": STATES})
    write_json(out / "sweep" / "easy" / "pilot.json", pilot(easy()).document())
    write_json(out / "difficulty" / "base.json", {"easy": {side: {"fresh": 0.2} for side in ("train", "validation")}})
    prescribed = {"rollouts_per_problem": 2, "problems_per_batch": 4, "update_steps": 16, "learning_rate": 1e-3}
    write_json(out / "prescribe" / "easy" / "allocation.json", {**prescribed, "flags": []})
    assert report.numbers(load(PARAMS, "smoke"), "easy") == {
        "base": {"train": 0.2, "validation": 0.2},
        "last": {"n_2_batch_4": 0.6, "n_4_batch_4": 0.4},
        "prescribed": prescribed,
    }
