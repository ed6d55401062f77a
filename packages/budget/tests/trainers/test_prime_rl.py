"""prime-rl's logs, against simulations of how it generates."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from isocompute.budget import BudgetError
from reading_logs import ingested, rollouts

# It logs pass@k where rewards are 0 and 1 alone.
RIGHT = {"eval/math/avg@4": 0.5, "eval/math/pass@1": 0.5}


def prime_run(seed, steps, *, n, batch, first, beside=False):
    """Groups without a spread of rewards are discarded and replaced until the batch is full, then evaluations begin.

    Args:
        beside: Whether an evaluation is logged after the step that is trained meanwhile.

    Returns:
        The rows, and of each evaluation the rollouts and tokens before it, and the share of problems always solved.
    """
    rng = random.Random(seed)
    queued = made = tokens = 0
    trained, evaluated, truth = [], [], []
    for step in range(first, first + steps + 1):
        truth.append((made, tokens, rng.choice([0.0, 0.1, 0.25])))
        evaluated.append({"step": step, **RIGHT, "eval/math/pass^4": truth[-1][-1]})
        window = 0
        while queued < batch:
            window += n
            queued += n if rng.random() < 0.4 else 0
        queued -= batch
        length = rng.randint(1, 9)
        made, tokens = made + window, tokens + window * length
        trained.append({"step": step, "progress/rollouts": window, "progress/tokens": window * length})
    pairs = zip(evaluated, trained, strict=True)
    rows = [row for evaluation, step in pairs for row in ((step, evaluation) if beside else (evaluation, step))]
    return rows, truth


PRIME = {"orchestrator": {"group_size": 4, "batch_size": 16, "constant_trainer_batch_size": True}}


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10**6), steps=st.integers(1, 8), first=st.integers(0, 1), beside=st.booleans())
def test_prime_rl_counts_the_groups_that_it_discarded(seed, steps, first, beside):
    rows, truth = prime_run(seed, steps, n=4, batch=16, first=first, beside=beside)
    evals, _ = ingested("prime-rl", rows, PRIME)
    assert evals.select("rollouts", "tokens", "worst_at_4").rows() == truth
    assert evals["problems_per_batch"].unique().to_list() == [4]


def test_prime_rl_asks_for_a_step_that_is_not_logged():
    rows, truth = prime_run(0, 3, n=4, batch=16, first=1)
    bare = [row for row in rows if not ("progress/rollouts" in row and row["step"] == 2)]
    with pytest.raises(BudgetError, match=r"step 2 .*rollouts_per_step="):
        rollouts("prime-rl", bare, PRIME)
    made = [made for made, *_ in truth]
    assert rollouts("prime-rl", bare, PRIME, rollouts_per_step=str(made[2] - made[1])) == made
    # The batch that is trained is not all that was generated.
    with pytest.raises(BudgetError, match=r"samples .*rollouts_per_step="):
        rollouts("prime-rl", [{"step": 0, "progress/samples": 16}, {"step": 1, **RIGHT}], PRIME)


def test_prime_rl_takes_the_group_size_of_its_sources():
    rows, truth = prime_run(0, 2, n=8, batch=16, first=1)
    own = {"orchestrator": {**PRIME["orchestrator"], "train": {"source": [{"group_size": 8}, {"group_size": 8}]}}}
    assert rollouts("prime-rl", rows, own) == [made for made, *_ in truth]
    own["orchestrator"]["train"]["source"][1]["group_size"] = 4
    with pytest.raises(BudgetError, match="groups of 4 and 8"):
        rollouts("prime-rl", rows, own)


def test_prime_rl_reads_one_subset_of_an_evaluation():
    # Since 0.8 of all rollouts and of those without errors, for each agent; before, of the one there was.
    row = {
        "step": 1,
        "eval/math/all/solver/avg@4": 0.5,
        "eval/math/effective/solver/avg@4": 0.6,
        "eval/math/effective/solver/pass@4": 0.9,
        "eval/old/avg@4": 0.4,
        "eval/old/pass@1": 0.4,
    }
    given = {"questions": None, "questions.math/solver": "40", "questions.old": "20"}
    evals, notes = ingested("prime-rl", [row], PRIME, **given)
    assert evals.select("problem_set", "avg_at_4", "questions").rows() == [("math/solver", 0.6, 40), ("old", 0.4, 20)]
    assert "left out, because not every evaluation has it: best_at_4, best_at_1" in notes


def test_prime_rl_counts_response_tokens_without_prompts_and_says_what_was_cancelled():
    mean = {"train/agg/all/num_output_tokens/mean": 7.0}
    shipped = {"progress/input_tokens": 90, "progress/output_tokens": 210}
    rows = [
        {"step": 1, "progress/rollouts": 64, "progress/tokens": 640, "dispatcher/cancelled_train_rollouts": 3, **mean},
        {"step": 2, "progress/rollouts": 60, "progress/tokens": 600, **shipped},
        {"step": 3, **RIGHT},
    ]
    evals, notes = ingested("prime-rl", rows, PRIME)
    # Of the second step 70 % of the tokens that were shipped are responses.
    assert evals.select("tokens", "rollouts", "rollouts_error", "count_source").rows() == [
        (64 * 7 + 420, 124, 3, "log")
    ]
    assert "rollouts cancelled on their way are not counted, and are the count's error" in notes
