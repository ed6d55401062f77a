"""prime-rl's logs, against simulations of how it generates."""

import json
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from isocompute.budget import BudgetError
from isocompute.budget.trainers.evals import ingest
from reading_logs import QUESTIONS, rollouts

quick = settings(max_examples=40, deadline=None)
# It logs pass@k where rewards are 0 and 1 alone.
RIGHT = {"eval/math/avg@4": 0.5, "eval/math/pass@1": 0.5}


def prime_run(seed, steps, *, n, batch, first):
    """Groups without a spread of rewards are discarded and replaced until the batch is full, then evaluations begin."""
    rng = random.Random(seed)
    queued = made = 0
    rows = [{"step": first, **RIGHT}]
    truth = [0]
    for step in range(first, first + steps):
        window = 0
        while queued < batch:
            window += n
            queued += n if rng.random() < 0.4 else 0
        queued -= batch
        made += window
        rows.append({"step": step, "progress/rollouts": window, "progress/tokens": 10 * window})
        rows.append({"step": step + 1, **RIGHT})
        truth.append(made)
    return rows, truth


PRIME = {"orchestrator": {"group_size": 4, "batch_size": 16, "constant_trainer_batch_size": True}}


@quick
@given(seed=st.integers(0, 10**6), steps=st.integers(1, 8), first=st.integers(0, 1))
def test_prime_rl_counts_the_groups_that_it_discarded(seed, steps, first):
    rows, truth = prime_run(seed, steps, n=4, batch=16, first=first)
    assert rollouts("prime-rl", rows, PRIME) == truth


def test_prime_rl_asks_for_a_step_that_is_not_logged():
    rows, truth = prime_run(0, 3, n=4, batch=16, first=1)
    bare = [row for row in rows if not ("progress/rollouts" in row and row["step"] == 2)]
    with pytest.raises(BudgetError, match=r"step 2 .*rollouts_per_step="):
        rollouts("prime-rl", bare, PRIME)
    given = {"rollouts_per_step": str(truth[2] - truth[1])}
    assert rollouts("prime-rl", bare, PRIME, **given) == truth


def test_prime_rl_asks_where_only_the_trained_batch_is_counted():
    rows = [{"step": 0, "progress/samples": 16}, {"step": 1, **RIGHT}]
    with pytest.raises(BudgetError, match=r"samples .*rollouts_per_step="):
        rollouts("prime-rl", rows, PRIME)


def test_prime_rl_takes_the_group_size_of_its_sources():
    rows, truth = prime_run(0, 2, n=8, batch=16, first=1)
    own = {"orchestrator": {**PRIME["orchestrator"], "train": {"source": [{"group_size": 8}, {"group_size": 8}]}}}
    assert rollouts("prime-rl", rows, own) == truth
    mixed = {"orchestrator": {**PRIME["orchestrator"], "train": {"source": [{"group_size": 8}, {"group_size": 4}]}}}
    with pytest.raises(BudgetError, match="groups of 4 and 8"):
        rollouts("prime-rl", rows, mixed)


def test_prime_rl_reads_one_subset_of_an_evaluation(tmp_path):
    # Since 0.8 of all rollouts and of those without errors, for each agent; before, of the one there was.
    row = {
        "step": 1,
        "eval/math/all/solver/avg@4": 0.5,
        "eval/math/effective/solver/avg@4": 0.6,
        "eval/math/effective/solver/pass@4": 0.9,
        "eval/old/avg@4": 0.4,
        "eval/old/pass@1": 0.4,
    }
    log = tmp_path / "metrics.jsonl"
    log.write_text(json.dumps(row) + "\n")
    evals, notes = ingest(
        "prime-rl",
        [str(log)],
        constants={"questions.math/solver": "40", "questions.old": "20", "group_size": "4", "batch_size": "16"},
    )
    assert evals["problem_set"].to_list() == ["math/solver", "old"]
    assert evals["avg_at_4"].to_list() == [0.6, 0.4]
    assert evals["questions"].to_list() == [40, 20]
    assert "left out, because not every evaluation has it: best_at_4, best_at_1" in notes


def test_prime_rl_sums_the_rollouts_of_each_step(tmp_path):
    log = tmp_path / "metrics.jsonl"
    rows = [
        {"step": 1, "eval/math/avg@4": 0.2, "eval/math/pass@4": 0.5, "eval/math/pass^4": 0.1},
        {"step": 1, "progress/rollouts": 64, "progress/total_rollouts": 0, "progress/tokens": 640},
        {"step": 2, "progress/rollouts": 60, "progress/total_rollouts": 64, "progress/tokens": 600},
        # Evaluations run beside training: that of step 3 began when two batches had been shipped.
        {"step": 3, "progress/rollouts": 72, "progress/total_rollouts": 124, "progress/tokens": 720},
        {"step": 3, "eval/math/avg@4": 0.3, "eval/math/pass@4": 0.6, "eval/math/pass^4": 0.15},
    ]
    log.write_text("".join(json.dumps(row) + "\n" for row in rows))
    constants = {"group_size": "8", "batch_size": "64", **QUESTIONS}
    evals, _ = ingest("prime-rl", [str(log)], constants=constants)
    assert evals["rollouts"].to_list() == [0, 124]
    assert evals["tokens"].to_list() == [0, 1240]
    assert evals["problems_per_batch"].unique().to_list() == [8]
    assert evals["worst_at_4"].to_list() == [0.1, 0.15]


def test_prime_rl_counts_response_tokens_without_prompts_and_says_what_was_cancelled(tmp_path):
    log = tmp_path / "metrics.jsonl"
    mean = {"train/agg/all/num_output_tokens/mean": 7.0}
    shipped = {"progress/input_tokens": 90, "progress/output_tokens": 210}
    rows = [
        {"step": 1, "progress/rollouts": 64, "progress/tokens": 640, "dispatcher/cancelled_train_rollouts": 3, **mean},
        {"step": 2, "progress/rollouts": 60, "progress/tokens": 600, **shipped},
        {"step": 3, "eval/math/avg@4": 0.3, "eval/math/pass@1": 0.3},
    ]
    log.write_text("".join(json.dumps(row) + "\n" for row in rows))
    evals, notes = ingest("prime-rl", [str(log)], constants={"group_size": "8", "batch_size": "64", **QUESTIONS})
    # Of the second step 70 % of the tokens that were shipped are responses.
    assert evals["tokens"].to_list() == [64 * 7 + 420]
    assert (evals["rollouts"].to_list(), evals["rollouts_error"].to_list()) == ([124], [3])
    assert evals["count_source"].to_list() == ["log"]
    assert "rollouts cancelled on their way are not counted, and are the count's error" in notes
