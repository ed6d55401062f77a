"""``evaluate``: what it prints and writes, from a model and from rollouts."""

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from commands.made import rollouts
from isocompute.rollout.cli import main
from isocompute.rollout.contract import tables

pytestmark = pytest.mark.slow("models in processes of their own")


def test_a_model_is_scored_and_the_scores_are_those_of_its_rollouts(
    tiny: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    problems = tmp_path / "problems.parquet"
    tiny.problems.write_parquet(problems)
    sampled = tmp_path / "rollouts.parquet"
    rates = tmp_path / "pass_rates.parquet"
    asked = f"evaluate --model {tiny.folder} --sampler transformers --problems {problems} --samples 8 --k 1 4"
    outs = f"--max-new-tokens 2 --rollouts-out {sampled} --pass-rates {rates} --out {tmp_path / 'model.json'}"
    assert main([*asked.split(), *outs.split()]) == 0
    printed = capsys.readouterr().out
    again = f"evaluate --rollouts {sampled} --problems {problems} --k 1 4 --out {tmp_path / 'rollouts.json'}"
    assert main(again.split()) == 0
    assert capsys.readouterr().out.splitlines()[:-1] == printed.splitlines()[:-1]
    one, other = (json.loads((tmp_path / f"{name}.json").read_text()) for name in ("model", "rollouts"))
    assert one == other
    names = [f"{metric}_at_{k}" for k in (1, 4) for metric in ("avg", "best", "worst")]
    assert [score["name"] for score in one["scores"]] == names
    assert (one["questions"], one["responses"], one["phase"]) == (6, 48, "eval")
    assert one["truncated"] == int((pl.read_parquet(sampled)["finish_reason"] == "length").sum()) > 0
    counted = tables.read(rates, "pass_rates")
    assert counted["samples"].to_list() == [8] * 6
    assert one["scores"][0]["value"] == pytest.approx(counted["successes"].sum() / 48)
    assert not list(tmp_path.glob("*.partial"))


def test_two_runs_are_paired_on_the_questions_that_both_answered(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rollouts({"a": 4, "b": 2, "c": 1}).write_parquet(tmp_path / "ours.parquet")
    rollouts({"a": 3, "b": 0, "d": 4}).write_parquet(tmp_path / "theirs.parquet")
    asked = f"evaluate --rollouts {tmp_path}/ours.parquet --against {tmp_path}/theirs.parquet --out {tmp_path}/e.json"
    assert main(asked.split()) == 0
    found = json.loads((tmp_path / "e.json").read_text())["against"]
    assert found["questions"] == 2
    difference = found["differences"][0]
    assert difference["name"] == "avg_at_4"
    assert difference["value"] == pytest.approx((0.25 + 0.5) / 2)
    assert difference["standard_error"] == pytest.approx(0.125)
    assert "on 2 questions that both answered" in capsys.readouterr().out
    longer = rollouts({"a": 3, "b": 0}, samples=8)
    longer.write_parquet(tmp_path / "theirs.parquet")
    assert main([*asked.split(), "--k", "2"]) == 0


def test_a_model_is_paired_on_the_questions_that_a_limit_leaves(
    tiny: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny.problems.write_parquet(tmp_path / "problems.parquet")
    theirs = tmp_path / "theirs.parquet"
    asked = f"evaluate --model {tiny.folder} --sampler transformers --problems {tmp_path}/problems.parquet --limit 3"
    command = [*asked.split(), "--max-new-tokens", "2", "--against", str(theirs), "--out", str(tmp_path / "e.json")]
    everything = dict.fromkeys(tiny.problems["problem_id"], 1)
    wrong = {
        "has 8 responses per question and the other run 4": rollouts(everything, samples=8),
        "answers none of the 3 questions": rollouts({"p5": 1}),
        "1 of 3 questions have fewer than 4 completed": rollouts({"p0": 1, "p1": 1, "p5": 1}),
        "chose the questions": rollouts({**everything, "other": 1}, phase="difficulty"),
    }
    for said, table in wrong.items():
        table.write_parquet(theirs)
        assert main(command) == 2
        assert said in capsys.readouterr().err
        # Nothing was sampled.
        assert not list(tmp_path.glob("*.partial"))
    rollouts(everything, phase="difficulty").write_parquet(theirs)
    assert main(command) == 0
    assert json.loads((tmp_path / "e.json").read_text())["against"]["questions"] == 3


def test_questions_that_lack_responses_are_left_out_and_too_many_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = {f"q{i:02d}": 2 for i in range(12)}
    rollouts(names, aborted=1).write_parquet(tmp_path / "rollouts.parquet")
    asked = f"evaluate --rollouts {tmp_path}/rollouts.parquet --out {tmp_path}/e.json"
    assert main(asked.split()) == 0
    said = capsys.readouterr().out
    assert (
        "11 questions, 48 responses, 1 questions left out with too few responses, 1 aborted: HTTP 500 (1), in" in said
    )
    assert json.loads((tmp_path / "e.json").read_text())["left_out"] == 1
    assert main([*asked.split(), "--k", "3"]) == 0
    assert json.loads((tmp_path / "e.json").read_text())["questions"] == 12
    rollouts(dict(list(names.items())[:3]), aborted=1).write_parquet(tmp_path / "rollouts.parquet")
    assert main(asked.split()) == 2
    assert (
        "1 of 3 questions have fewer than 4 completed responses; a smaller --k would score them"
        in capsys.readouterr().err
    )


def test_responses_that_measured_all_problems_may_score_them_and_no_part_of_them(tmp_path: Path) -> None:
    names = {"a": 4, "b": 2, "c": 1}
    rollouts(names, phase="difficulty").write_parquet(tmp_path / "rollouts.parquet")
    problems = pl.DataFrame({"problem_id": list(names)}).with_columns(
        **{name: pl.lit("x") for name in ("prompt", "answer", "verifier", "source", "split")}
    )
    asked = f"evaluate --rollouts {tmp_path}/rollouts.parquet --problems {tmp_path}/problems.parquet"
    for table, code in ((problems, 0), (problems.head(2), 2), (problems.with_columns(pass_rate=pl.lit(0.5)), 2)):
        table.write_parquet(tmp_path / "problems.parquet")
        assert main([*asked.split(), "--out", str(tmp_path / "e.json")]) == code
