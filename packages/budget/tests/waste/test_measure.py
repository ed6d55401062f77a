import json
import random

import polars as pl
import pytest
from isocompute.budget import BudgetError, Counts, Ledger
from isocompute.budget.cli import main
from isocompute.budget.contract import tables
from isocompute.budget.waste import responses, waste
from isocompute.budget.waste.expectation import expected_zero_variance


def rollouts_of(groups):
    """A ``rollouts`` table from (step, problem, rewards, finish reasons)."""
    rows = [
        {
            "run_id": "run", "step": step, "phase": "train", "problem_id": problem, "sample": sample,
            "prompt_ids": [1, 2, 3], "response_ids": [4] * 5, "logprobs": [0.0] * 5, "reward": float(reward),
            "finish_reason": reason, "weights_version": step,
        }
        for step, problem, rewards, reasons in groups
        for sample, (reward, reason) in enumerate(zip(rewards, reasons, strict=True))
    ]  # fmt: skip
    return tables.check(pl.DataFrame(rows), "rollouts", where="test")


STOP = ("stop",) * 4


SMALL = [
    (1, "a", (1, 1, 1, 1), STOP),
    (1, "b", (0, 1, 0, 1), ("stop", "stop", "length", "stop")),
    (2, "a", (0, 0, 0, 0), ("length",) * 4),
    (2, "c", (1, 1, 0, 0), ("stop", "stop", "stop", "aborted")),
    (2, "d", (1, 1, 1, 0), ("stop", "stop", "stop", "aborted")),
]


def test_groups_without_variance_failed_and_truncated_are_counted():
    found = waste(rollouts_of(SMALL))
    assert (found.groups, found.zero_variance_groups, found.all_right) == (5, 3, 2)
    # Three flat groups of 4 (one with a failed response) and one more failed response.
    assert found.without_gradient == Counts(rollouts=13, prompt_tokens=39, response_tokens=65)
    assert (found.truncated, found.failed, found.solved_problems) == (5, 2, 4)
    assert found.rollouts_per_solved == 5
    assert found.tokens_per_solved == 25
    assert found.generated == found.sampled == Counts(rollouts=20, prompt_tokens=60, response_tokens=100)
    steps = found.by_step.rows()
    assert [row[:5] for row in steps] == [(1, 1, 2, 0.5, 0.5), (2, 2, 3, 2 / 3, 1 / 3)]


@pytest.mark.slow
def test_expected_and_measured_shares_agree_where_pass_rates_stand_still():
    source = random.Random(1)
    rates = {f"p{i}": source.random() for i in range(60)}
    groups = [
        (step, problem, [int(source.random() < p) for _ in range(4)], STOP)
        for step in range(1, 21)
        for problem, p in rates.items()
    ]
    found = waste(rollouts_of(groups), bins=4)
    assert found.expected.share == found.zero_variance
    assert not found.expected.independent
    assert found.by_step.height == 4
    measured = {problem: sum(source.random() < p for _ in range(64)) for problem, p in rates.items()}
    given_rates = pl.DataFrame({"problem_id": list(rates), "successes": list(measured.values()), "samples": 64})
    again = waste(rollouts_of(groups), pass_rates=given_rates).expected
    assert (again.estimator, again.independent, again.by_step) == ("unbiased", True, False)
    assert again.share == pytest.approx(found.zero_variance, abs=0.03)
    few = given_rates.with_columns(successes=(pl.col("successes") / 21).round().cast(pl.Int64).clip(0, 3), samples=3)
    assert waste(rollouts_of(groups), pass_rates=few).expected.estimator == "plug-in"


def test_a_single_response_is_no_group_and_teaches_nothing():
    found = waste(rollouts_of([(1, "a", (1,), ("stop",)), (1, "b", (0,), ("stop",))]))
    assert (found.groups, found.zero_variance, found.expected) == (0, 0.0, None)
    assert found.without_gradient.rollouts == 2


def test_what_cannot_be_is_refused():
    table = rollouts_of(SMALL)
    with pytest.raises(tables.TableError, match="no rollouts of phase train"):
        waste(table.with_columns(phase=pl.lit("eval")))
    with pytest.raises(BudgetError, match="solved_at is 2"):
        waste(table, solved_at=2)
    with pytest.raises(BudgetError, match="5 successes of 4 samples"):
        expected_zero_variance(5, 4, 2)


@pytest.fixture
def folder(tmp_path):
    tables.write(rollouts_of(SMALL), "rollouts", tmp_path / "rollouts.parquet")
    with Ledger.open(tmp_path / "run.ledger", run_id="run") as ledger:
        ledger.charge(1, {"trained": Counts(rollouts=8, response_tokens=40)})
        ledger.charge(2, {"trained": Counts(rollouts=12, response_tokens=60)})
    with Ledger.open(tmp_path / "run.ledger", run_id="run", resumed_from=1) as ledger:
        ledger.charge(2, {"trained": Counts(rollouts=10, response_tokens=50), "failed": Counts(rollouts=2)})
        ledger.charge(2, {"eval": Counts(rollouts=100)})
    return tmp_path


def test_the_command_takes_the_ledger_for_what_was_paid(folder, capsys):
    out = folder / "waste.json"
    arguments = ["waste", str(folder / "rollouts.parquet"), "--ledger", str(folder / "run.ledger"), "--json", str(out)]
    assert main(arguments) == 0
    printed = capsys.readouterr().out
    assert "generated for training    32 rollouts, 150 response tokens\n" in printed
    assert "of which lost in crashes  12 rollouts, 60 tokens\n" in printed
    assert "without variance          60.0% of 5 groups, 2 of them all correct\n" in printed
    assert "problems solved           4, each for 8.0 rollouts and 38 tokens\n" in printed
    document = json.loads(out.read_text())
    assert document["zero_variance"] == 0.6
    assert [row["groups"] for row in document["by_step"]] == [2, 3]


def test_the_command_takes_pass_rates_from_a_table(folder, capsys):
    problems = pl.DataFrame(
        {
            "problem_id": list("abcd"), "prompt": "x", "answer": "y", "verifier": "v", "source": "s", "split": "train",
            "pass_rate": [0.5, 0.25, 1.0, 0.0], "pass_rate_samples": 16,
        }
    )  # fmt: skip
    tables.write(problems, "problems", folder / "problems.parquet")
    arguments = ["waste", str(folder / "rollouts.parquet"), "--problems", str(folder / "problems.parquet")]
    assert main(arguments) == 0
    half, quarter, half_of_three = (expected_zero_variance(s, 16, n)[0] for s, n in ((8, 4), (4, 4), (8, 3)))
    printed = capsys.readouterr().out
    assert f"expected from pass rates  {(2 * half + quarter + 2) / 5:.1%} ± " in printed
    assert "measured once and used for every step" in printed
    fresh = problems.with_columns(fresh_pass_rate=pl.lit(0.5), fresh_pass_rate_samples=pl.lit(16))
    tables.write(fresh, "problems", folder / "problems.parquet")
    assert main(arguments) == 0
    assert f"expected from pass rates  {(3 * half + 2 * half_of_three) / 5:.1%} ± " in capsys.readouterr().out
    tables.write(problems.drop("pass_rate"), "problems", folder / "bare.parquet")
    assert main([*arguments[:2], "--problems", str(folder / "bare.parquet")]) == 2
    assert "has no pass_rate and pass_rate_samples" in capsys.readouterr().err


def test_a_policy_that_went_from_nothing_to_everything_is_expected_to_have_no_signal():
    groups = [(step, f"p{i}", (step > 5,) * 4, STOP) for step in range(1, 11) for i in range(8)]
    measured = pl.DataFrame(
        [
            {"run_id": "run", "step": updates, "problem_id": f"p{i}", "successes": 16 * (updates >= 5), "samples": 16}
            for updates in (0, 5)
            for i in range(8)
        ]
    )
    for rates in (None, measured):
        found = waste(rollouts_of(groups), pass_rates=rates)
        assert (found.zero_variance, found.expected.share) == (1.0, 1.0)
        assert found.expected.standard_error > 0


def test_the_ledger_of_another_run_is_refused_by_name(folder, capsys):
    with Ledger.open(folder / "other.ledger", run_id="other") as ledger:
        ledger.charge(1, {"trained": Counts(rollouts=8)})
    out = folder / "waste.json"
    for ledgers, told in (
        (["other.ledger"], "run only in the rollouts and other only in the ledgers"),
        (["run.ledger", "other.ledger"], "other only in the ledgers"),
    ):
        paths = [str(folder / name) for name in ledgers]
        assert main(["waste", str(folder / "rollouts.parquet"), "--json", str(out), "--ledger", *paths]) == 2
        assert told in capsys.readouterr().err
        assert not out.exists()


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_run_step_problem_and_reward_are_enough(tmp_path, capsys, suffix):
    bare = rollouts_of(SMALL).select("run_id", "step", "problem_id", "reward", "logprobs")
    path = tmp_path / f"bare.{suffix}"
    if suffix == "csv":
        bare.drop("logprobs").write_csv(path)
    else:
        bare.write_parquet(path)
    assert main(["waste", str(path), "--json", str(tmp_path / "out.json"), "--bins", "1"]) == 0
    out = capsys.readouterr().out
    # Without a reason the two aborted responses count as wrong ones.
    assert "generated for training    20 rollouts\n" in out
    assert "without variance          40.0% of 5 groups, 1 of them all correct\n" in out
    assert "without gradient          8 rollouts (40.0%)\n" in out
    assert "truncated                 unknown\nfailed                    unknown\n" in out
    assert out.splitlines()[-1].split()[-2:] == ["-", "-"]
    document = json.loads((tmp_path / "out.json").read_text())
    assert document["generated"] == {"rollouts": 20, "prompt_tokens": None, "response_tokens": None}
    assert document["truncated"] is None


def test_what_the_four_columns_must_be_is_told(tmp_path, capsys):
    bare = rollouts_of(SMALL).select("run_id", "step", "problem_id", "reward")
    path = tmp_path / "rollouts.csv"
    for table, told in (
        (bare.drop("reward", "step"), "lacks the columns step, reward (it has run_id, problem_id)"),
        (bare.with_columns(reward=pl.lit(2.0)), "column reward of the rollouts table, row 1: 2.0 is above 1"),
        (bare.with_columns(step=pl.lit("one")), "'one' is not i64"),
        (bare.clear(), "has no rows"),
    ):
        table.write_csv(path)
        assert main(["waste", str(path)]) == 2
        assert told in capsys.readouterr().err
    path.write_text("")
    assert main(["waste", str(path)]) == 2
    assert "the file is empty" in capsys.readouterr().err


def test_a_folder_of_overlapping_files_counts_a_response_once(tmp_path):
    table = rollouts_of(SMALL)
    for place, rows in (("a", table.head(12)), ("b", table.tail(12))):
        tables.write(rows, "rollouts", tmp_path / place / "rollouts.parquet")
    assert responses.read(tmp_path).height == 20
    changed = table.tail(12).with_columns(reward=1 - pl.col("reward"))
    tables.write(changed, "rollouts", tmp_path / "b" / "rollouts.parquet")
    with pytest.raises(tables.TableError, match="two files differ in run_id=run, step=2"):
        responses.read(tmp_path)


def test_rollouts_of_a_newer_release_are_refused(tmp_path, capsys):
    path = tmp_path / "rollouts.parquet"
    stated = {"isocompute.table": "rollouts", "isocompute.schema_version": "2.0"}
    rollouts_of(SMALL).write_parquet(path, metadata=stated)
    assert main(["waste", str(path)]) == 2
    assert "has schema version 2.0, and this isocompute-budget reads 1.x" in capsys.readouterr().err
