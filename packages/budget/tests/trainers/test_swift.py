"""ms-swift's logs, against a simulation of TRL's trainer that writes its log file."""

import random

import pytest
from hypothesis import given
from hypothesis import settings as profile
from hypothesis import strategies as st
from isocompute.budget import BudgetError
from isocompute.budget.trainers.doctor import Given, examine
from reading_logs import ingested, lines, rollouts, settings, trackio

SIZES = settings(
    "rlhf_type=grpo num_generations=4 per_device_train_batch_size=2 global_world_size=2 seed=7 num_generations_eval=2 "
    "per_device_eval_batch_size=2"
)


def run_of(seed, *, steps, accumulated, kept, **other):
    """A run: each generation batch serves ``kept`` micro-steps, and every optimizer step takes ``accumulated``.

    Returns:
        The log, the settings beside it, and the rollouts and tokens after each step.
    """
    rng, batch = random.Random(seed), 4 * kept
    sizes = {"gradient_accumulation_steps": accumulated, "steps_per_generation": kept, "max_steps": steps}
    rows, truth, rollouts, tokens = [], [], 0, 0
    for step in range(1, steps + 1):
        lengths = []
        for micro in range((step - 1) * accumulated, step * accumulated):
            if micro % kept == 0:
                total = rng.randint(batch, 9 * batch)
                rollouts, tokens = rollouts + batch, tokens + total
                lengths.append(total / batch)
        truth.append((rollouts, tokens))
        counted = {"global_step/max_steps": f"{step}/{steps}", "memory(GiB)": 1.5, "train_speed(s/it)": 2.0}
        made = {"completions/mean_length": round(sum(lengths) / len(lengths), 8), "reward": 0.5} if lengths else {}
        rows.append({"loss": 0.1, "num_tokens": None, "epoch": round(step / 120 / kept, 8), **made, **counted})
        took = {"eval_runtime": 2.0, "eval_samples_per_second": 8.0}
        rows.append({"eval_reward": rng.randint(0, 32) / 32, **took, **counted})
    return rows, SIZES | sizes | other, truth


@profile(max_examples=20, deadline=None)
@given(
    seed=st.integers(0, 10**6), steps=st.integers(1, 6), accumulated=st.sampled_from([1, 2, 4]), kept=st.integers(1, 4)
)
def test_the_number_before_the_slash_is_the_step_and_the_batches_are_trls(**sizes):
    rows, config, truth = run_of(**sizes)
    evals, _ = ingested("swift", rows, config, questions=None)
    assert evals["step"].to_list() == list(range(1, sizes["steps"] + 1))
    assert evals["rollouts"].to_list() == [made for made, _ in truth]
    assert evals["tokens"].to_list() == pytest.approx([tokens for _, tokens in truth], abs=1)
    assert evals["seed"].unique().to_list() == [7]


def test_what_resampling_generated_is_asked_for():
    rows, config, _ = run_of(0, steps=3, accumulated=2, kept=2, dynamic_sample=True)
    with pytest.raises(BudgetError, match="--set rollouts_per_step="):
        rollouts("swift", rows, config)
    assert rollouts("swift", rows, config, rollouts_per_step="20") == [20, 40, 60]


def found(source, **given):
    """The trainer of a run that doctor finds, and its rollouts."""
    (patient,) = examine([str(source)], Given(every=given)).patients
    return patient.trainer.name, [row["rollouts"] for row in patient.rows], patient.training


def test_a_run_that_trl_logged_is_known_by_its_settings(tmp_path):
    rows, config, truth = run_of(0, steps=3, accumulated=2, kept=2)
    for row in rows:
        row["global_step"] = int(row.pop("global_step/max_steps").split("/")[0])
        del row["memory(GiB)"], row["train_speed(s/it)"]
    assert found(lines(tmp_path / "run" / "other.jsonl", rows))[0] == "trl"
    # What tells is the configuration that a log holds.
    assert found(trackio(tmp_path / "p.db", config, rows)) == ("swift", [made for made, _ in truth], False)


def test_the_rewards_of_training_are_offered_where_there_is_no_evaluation(tmp_path):
    rows, config, truth = run_of(0, steps=4, accumulated=2, kept=2)
    lines(tmp_path / "logging.jsonl", [row for row in rows if "loss" in row])
    lines(tmp_path / "args.json", [config])
    lines(tmp_path / "completions.jsonl", [{"prompt": "a", "step": 1, "reward": 1.0}])
    assert found(tmp_path) == ("swift", [made for made, _ in truth], True)


def test_the_megatron_trainer_is_named():
    log = [{"iteration": "1/9", "train_speed(s/it)": 2.0, "eval_reward": 0.5}]
    with pytest.raises(BudgetError, match="Megatron"):
        ingested("swift", log, {"rlhf_type": "grpo", "num_generations": 4, "train_iters": 9})
