import json
import random
from itertools import product
from math import comb

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from isocompute.budget import BudgetError, Counts, Ledger, tables
from isocompute.budget.cli import main
from isocompute.budget.waste import expected_zero_variance, waste


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


@given(st.integers(1, 8), st.integers(1, 10), st.integers(0, 10))
def test_the_expectation_is_the_mean_over_every_draw_of_the_samples(n, samples, successes):
    successes = min(successes, samples)
    share, how = expected_zero_variance(successes, samples, n)
    if how == "plug-in":
        p = successes / samples
        assert samples < n
        assert share == p**n + (1 - p) ** n
        return
    results = [1] * successes + [0] * (samples - successes)
    draws = [
        len({results[i] for i in chosen}) == 1
        for chosen in product(range(samples), repeat=min(n, 3))
        if len(set(chosen)) == min(n, 3)
    ]
    if n <= 3:
        assert share == pytest.approx(sum(draws) / len(draws))
    assert 0 <= share <= 1


def test_the_expectation_is_unbiased_for_the_true_pass_rate():
    n, samples, p = 4, 6, 0.3
    mean = sum(
        comb(samples, s) * p**s * (1 - p) ** (samples - s) * expected_zero_variance(s, samples, n)[0]
        for s in range(samples + 1)
    )
    assert mean == pytest.approx(p**n + (1 - p) ** n)


def test_expected_and_measured_shares_agree_where_pass_rates_stand_still():
    source = random.Random(1)
    rates = {f"p{i}": source.random() for i in range(60)}
    groups = [
        (step, problem, [int(source.random() < p) for _ in range(4)], STOP)
        for step in range(1, 21)
        for problem, p in rates.items()
    ]
    found = waste(rollouts_of(groups), bins=4)
    assert found.estimator == "exact"
    assert found.expected == pytest.approx(found.zero_variance, abs=0.03)
    assert found.by_step.height == 4
    given_rates = pl.DataFrame(
        {"problem_id": list(rates), "successes": [round(p * 3) for p in rates.values()], "samples": 3}
    )
    assert waste(rollouts_of(groups), pass_rates=given_rates).estimator == "plug-in"


def test_a_single_response_is_no_group_and_teaches_nothing():
    found = waste(rollouts_of([(1, "a", (1,), ("stop",)), (1, "b", (0,), ("stop",))]))
    assert (found.groups, found.zero_variance, found.expected) == (0, 0.0, None)
    assert found.without_gradient.rollouts == 2


def test_what_cannot_be_is_refused():
    table = rollouts_of(SMALL)
    with pytest.raises(BudgetError, match="no rollouts of phase train"):
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
    assert "without variance          60.0% of 5 groups, 2 of them all right\n" in printed
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
    half, quarter = (expected_zero_variance(s, 16, 4)[0] for s in (8, 4))
    assert f"expected from pass rates  {(2 * half + quarter + 2) / 5:.1%}\n" in capsys.readouterr().out
    tables.write(problems.drop("pass_rate"), "problems", folder / "bare.parquet")
    assert main([*arguments[:2], "--problems", str(folder / "bare.parquet")]) == 2
    assert "has no pass_rate and pass_rate_samples" in capsys.readouterr().err
