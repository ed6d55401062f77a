"""What each framework generated, against simulations of how it generates."""

import json
import random
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from isocompute.frontier import FrontierError
from isocompute.frontier.data.ingest import ingest

whole = st.integers(1, 4)
quick = settings(max_examples=40, deadline=None)


def rollouts(framework: str, rows: list[dict[str, Any]], config: dict[str, Any] | None, **given: str) -> list[int]:
    """Cumulative rollouts of a run's evaluations, by way of files."""
    with TemporaryDirectory() as folder:
        log, settings_file = Path(folder) / "log.jsonl", Path(folder) / "config.json"
        log.write_text("".join(json.dumps(row) + "\n" for row in rows))
        settings_file.write_text(json.dumps(config or {}))
        constants = {"questions": "16", **given}
        evals, _ = ingest(framework, [str(log)], config=settings_file if config else None, constants=constants)
        return evals["rollouts"].to_list()


# TRL


def trl_run(
    *, per_device: int, world: int, accumulation: int, per_generation: int, iterations: int, steps: int
) -> tuple[list[dict[str, Any]], list[int]]:
    """TRL's loop: a batch is generated before every per_generation × iterations micro-batches."""
    micro, made, rows, truth = 0, 0, [], []
    for step in range(1, steps + 1):
        for _ in range(accumulation):
            if micro % (per_generation * iterations) == 0:
                made += per_device * world * per_generation
            micro += 1
        rows.append({"step": step, "eval_reward": 0.5, "completions/mean_length": 7.0})
        truth.append(made)
    return rows, truth


@quick
@given(per_device=whole, world=st.sampled_from([1, 2, 8]), accumulation=whole, per_generation=whole, iterations=whole,
       steps=st.integers(1, 12))  # fmt: skip
def test_trl_counts_every_process(
    per_device: int, world: int, accumulation: int, per_generation: int, iterations: int, steps: int
) -> None:
    rows, truth = trl_run(per_device=per_device, world=world, accumulation=accumulation,
                          per_generation=per_generation, iterations=iterations, steps=steps)  # fmt: skip
    # What TRL dumps of its configuration: the world size is a property and is not in it.
    config = {
        "num_generations": 1, "per_device_train_batch_size": per_device, "gradient_accumulation_steps": accumulation,
        "steps_per_generation": per_generation, "generation_batch_size": per_device * world * per_generation,
        "num_iterations": iterations,
    }  # fmt: skip
    assert rollouts("trl", rows, config) == truth
    # Older versions dump neither of the two sizes.
    older = {k: v for k, v in config.items() if k not in {"steps_per_generation", "generation_batch_size"}}
    given = {"world_size": str(world), "steps_per_generation": str(per_generation)}
    assert rollouts("trl", rows, older, **given) == truth


TRL_ROWS, _ = trl_run(per_device=8, world=8, accumulation=2, per_generation=2, iterations=1, steps=4)
TRL_CONFIG = {"num_generations": 4, "per_device_train_batch_size": 8, "gradient_accumulation_steps": 2,
              "num_iterations": 1}  # fmt: skip


@pytest.mark.parametrize("known", [{}, {"steps_per_generation": 2}, {"generation_batch_size": 128}])
def test_trl_asks_for_a_world_size_that_does_not_follow(known: dict[str, int]) -> None:
    with pytest.raises(FrontierError, match=r"world_size .* is not known: .*--set world_size=NUMBER"):
        rollouts("trl", TRL_ROWS, {**TRL_CONFIG, **known})


def test_trl_refuses_sizes_that_contradict_each_other() -> None:
    sizes = {"steps_per_generation": 2, "generation_batch_size": 128}
    with pytest.raises(FrontierError, match=r"generation_batch_size is 128, but .* is 16"):
        rollouts("trl", TRL_ROWS, {**TRL_CONFIG, **sizes, "world_size": 1})
    with pytest.raises(FrontierError, match="generation_batch_size is 100, which is not a multiple of"):
        rollouts("trl", TRL_ROWS, {**TRL_CONFIG, **sizes, "generation_batch_size": 100})


# veRL


VERL: dict[str, Any] = {
    "data": {"train_batch_size": 8, "gen_batch_size": 12}, "trainer": {"val_before_train": True},
    "actor_rollout_ref": {"rollout": {"n": 4}, "actor": {"ppo_mini_batch_size": 8}},
    "algorithm": {"adv_estimator": "grpo", "filter_groups": {"enable": True, "max_num_gen_batches": 0}},
}  # fmt: skip


def verl_row(step: int, data: dict[str, float]) -> dict[str, Any]:
    evaluated = {"val-core/m/acc/mean@4": 0.5} if step % 2 == 0 else {}
    return {"step": step, "data": {**data, **evaluated}}


def verl_run(one_step: Callable[[random.Random], tuple[int, dict[str, float]]], seed: int, steps: int, per_prompt: int):  # type: ignore[no-untyped-def]
    """Rows of a run evaluated before training and every other step, and the rollouts made by then."""
    rng = random.Random(seed)
    made, rows, truth = 0, [verl_row(0, {})], [0]
    for step in range(1, steps + 1):
        prompts, logged = one_step(rng)
        made += prompts * per_prompt
        rows.append(verl_row(step, {"training/global_step": step, "response_length/mean": 9.0, **logged}))
        truth += [made] if step % 2 == 0 else []
    return rows, truth


def resampled(rng: random.Random) -> tuple[int, dict[str, float]]:
    """DAPO: whole generation batches until enough groups have a spread of rewards; what is over is dropped."""
    batches = kept = 0
    while kept < 8:
        batches += 1
        kept += sum(rng.random() < 0.5 for _ in range(12))
    return 12 * batches, {"train/num_gen_batches": batches}


def evicted(rng: random.Random) -> tuple[int, dict[str, float]]:
    """The V1 trainer: k evicted groups are refilled, and what is left over is discarded; zeros are not logged."""
    counts = {
        "training/filter_groups/evicted_samples": rng.randint(0, 5),
        "training/filter_groups/discarded_surplus_samples": rng.randint(0, 5),
        "training/off_policy/evicted_samples": rng.randint(0, 2),
        "training/rollout_failure/evicted_samples": rng.randint(0, 1),
    }
    return 8 + sum(counts.values()), {key: count for key, count in counts.items() if count}


@quick
@given(seed=st.integers(0, 10**6), steps=st.integers(2, 12), remax=st.booleans())
def test_verl_counts_the_batches_that_dynamic_sampling_generated(seed: int, steps: int, remax: bool) -> None:
    # ReMax samples one more response to each prompt, greedily, as its baseline.
    rows, truth = verl_run(resampled, seed, steps, per_prompt=5 if remax else 4)
    estimator = {"adv_estimator": "remax"} if remax else {}
    assert rollouts("verl", rows, {**VERL, "algorithm": {**VERL["algorithm"], **estimator}}) == truth


@quick
@given(seed=st.integers(0, 10**6), steps=st.integers(3, 12))
def test_verl_counts_evicted_prompts_with_all_their_responses(seed: int, steps: int) -> None:
    rows, truth = verl_run(evicted, seed, steps, per_prompt=4)
    if any("filter_groups" in key for row in rows for key in row["data"]):
        assert rollouts("verl", rows, {**VERL, "data": {"train_batch_size": 8}}) == truth


def test_verl_asks_where_filtering_left_no_count() -> None:
    rows, _ = verl_run(lambda _: (8, {}), 0, 4, 4)
    with pytest.raises(FrontierError, match=r"step 1 .*train/num_gen_batches.*--set rollouts_per_step=NUMBER"):
        rollouts("verl", rows, VERL)
    assert rollouts("verl", rows, VERL, rollouts_per_step="96") == [0, 192, 384]


def test_verl_asks_for_a_step_of_dynamic_sampling_that_is_not_logged() -> None:
    rows, _ = verl_run(resampled, 0, 6, 4)
    with pytest.raises(FrontierError, match="how many rollouts step 3 generated is not known"):
        rollouts("verl", rows[:3] + rows[4:], VERL)


def test_verl_asks_whether_groups_were_filtered_where_no_configuration_says() -> None:
    rows, _ = verl_run(lambda _: (8, {}), 0, 4, 4)
    known = {"rollouts_per_problem": "4", "problems_per_batch": "8", "ppo_mini_batch_size": "8", "ppo_epochs": "1",
             "adv_estimator": "grpo", "gen_batch_size": "8"}  # fmt: skip
    with pytest.raises(FrontierError, match=r"filter_groups .* is not known.*--set filter_groups="):
        rollouts("verl", rows, None, **known)
    assert rollouts("verl", rows, None, **known, filter_groups="false") == [0, 64, 128]


def test_verl_asks_where_the_generation_batch_is_not_the_training_batch() -> None:
    rows, _ = verl_run(lambda _: (12, {}), 0, 4, 4)
    unfiltered = {**VERL, "algorithm": {"filter_groups": {"enable": False}}}
    with pytest.raises(FrontierError, match=r"gen_batch_size is 12 .* train_batch_size 8"):
        rollouts("verl", rows, unfiltered)


def test_verl_asks_for_what_a_fully_asynchronous_run_generated() -> None:
    rows, _ = verl_run(lambda _: (8, {"fully_async/count/stale_trajectory_processed": 1.0}), 0, 4, 4)
    unfiltered = {**VERL, "data": {"train_batch_size": 8}, "algorithm": {"filter_groups": {"enable": False}}}
    with pytest.raises(FrontierError, match=r"asynchronous.*--set rollouts_per_step=NUMBER"):
        rollouts("verl", rows, unfiltered)


# OpenRLHF


def openrlhf_run(seed: int, steps: int, *, n: int, batch: int, passing: float, responses: bool):  # type: ignore[no-untyped-def]
    """Prompts are replaced until a batch has passed; the rate is of prompts, or (later) n times that."""
    rng = random.Random(seed)
    made, rows, truth = 0, [], []
    for step in range(1, steps + 1):
        consumed = accepted = 0
        while accepted < batch:
            consumed += 1
            accepted += rng.random() < passing
        made += consumed * n
        rate = 100 * accepted * (n if responses else 1) / consumed
        rows.append({"train/global_step": step, "train/dynamic_filtering_pass_rate": rate})
        rows.append({"eval/global_step": step, "eval/eval_math_pass1": 0.5})
        truth.append(made)
    return rows, truth


NESTED = {"rollout": {"n_samples_per_prompt": 8, "batch_size": 16}, "train": {"batch_size": 64, "max_epochs": 1},
          "eval": {"n_samples_per_prompt": 4}, "algo": {"dynamic_filtering_enable": True}}  # fmt: skip
FLAT = {"n_samples_per_prompt": 8, "rollout_batch_size": 16, "train_batch_size": 64, "max_epochs": 1,
        "eval_n_samples_per_prompt": 4, "dynamic_filtering": True}  # fmt: skip


@quick
@given(seed=st.integers(0, 10**6), passing=st.floats(0.05, 0.95))
def test_openrlhf_counts_the_prompts_that_filtering_replaced(seed: int, passing: float) -> None:
    rows, truth = openrlhf_run(seed, 4, n=8, batch=16, passing=passing, responses=True)
    assert rollouts("openrlhf", rows, NESTED) == truth
    assert rollouts("openrlhf", rows, FLAT, pass_rate_of="responses") == truth
    rows, truth = openrlhf_run(seed, 4, n=8, batch=16, passing=passing, responses=False)
    assert rollouts("openrlhf", rows, FLAT, pass_rate_of="prompts") == truth


def test_openrlhf_asks_what_its_pass_rate_is_of() -> None:
    # 80 % of the prompts, or 10 % of them with eight responses each: the log does not say.
    rows, _ = openrlhf_run(0, 2, n=8, batch=16, passing=0.8, responses=False)
    with pytest.raises(FrontierError, match=r"--set pass_rate_of=prompts .*--set pass_rate_of=responses"):
        rollouts("openrlhf", rows, FLAT)
    rows, truth = openrlhf_run(0, 2, n=8, batch=16, passing=0.8, responses=True)
    assert rollouts("openrlhf", rows, FLAT) == truth


def test_openrlhf_asks_where_filtering_left_no_rate() -> None:
    rows, _ = openrlhf_run(0, 2, n=8, batch=16, passing=0.8, responses=True)
    bare = [{k: v for k, v in row.items() if "filtering" not in k} for row in rows]
    with pytest.raises(FrontierError, match=r"dynamic_filtering_pass_rate.*--set rollouts_per_step=NUMBER"):
        rollouts("openrlhf", bare, NESTED)
    off = {**NESTED, "algo": {"dynamic_filtering_enable": False}}
    assert rollouts("openrlhf", bare, off) == [128, 256]


def test_openrlhf_asks_for_a_filtered_step_that_is_not_logged() -> None:
    rows, _ = openrlhf_run(0, 4, n=8, batch=16, passing=0.8, responses=True)
    with pytest.raises(FrontierError, match="how many rollouts step 2 generated is not known"):
        rollouts("openrlhf", rows[:2] + rows[4:], NESTED)


# prime-rl


def prime_run(seed: int, steps: int, *, n: int, batch: int, first: int):  # type: ignore[no-untyped-def]
    """Groups without a spread of rewards are discarded and replaced until the batch is full, then evaluations begin."""
    rng = random.Random(seed)
    queued = made = 0
    rows: list[dict[str, Any]] = [{"step": first, "eval/math/avg@4": 0.5}]
    truth = [0]
    for step in range(first, first + steps):
        window = 0
        while queued < batch:
            window += n
            queued += n if rng.random() < 0.4 else 0
        queued -= batch
        made += window
        rows.append({"step": step, "progress/rollouts": window, "progress/tokens": 10 * window})
        rows.append({"step": step + 1, "eval/math/avg@4": 0.5})
        truth.append(made)
    return rows, truth


PRIME = {"orchestrator": {"group_size": 4, "batch_size": 16, "constant_trainer_batch_size": True}}


@quick
@given(seed=st.integers(0, 10**6), steps=st.integers(1, 8), first=st.integers(0, 1))
def test_prime_rl_counts_the_groups_that_it_discarded(seed: int, steps: int, first: int) -> None:
    rows, truth = prime_run(seed, steps, n=4, batch=16, first=first)
    assert rollouts("prime-rl", rows, PRIME) == truth


def test_prime_rl_asks_for_a_step_that_is_not_logged() -> None:
    rows, truth = prime_run(0, 3, n=4, batch=16, first=1)
    bare = [row for row in rows if not ("progress/rollouts" in row and row["step"] == 2)]
    with pytest.raises(FrontierError, match=r"step 2 .*progress/rollouts.*--set rollouts_per_step=NUMBER"):
        rollouts("prime-rl", bare, PRIME)
    given = {"rollouts_per_step": str(truth[2] - truth[1])}
    assert rollouts("prime-rl", bare, PRIME, **given) == truth


def test_prime_rl_asks_where_only_the_trained_batch_is_counted() -> None:
    rows = [{"step": 0, "progress/samples": 16}, {"step": 1, "eval/math/avg@4": 0.5}]
    with pytest.raises(FrontierError, match=r"progress/samples .*trained.*--set rollouts_per_step=NUMBER"):
        rollouts("prime-rl", rows, PRIME)


def test_prime_rl_takes_the_group_size_of_its_sources() -> None:
    rows, truth = prime_run(0, 2, n=8, batch=16, first=1)
    own = {"orchestrator": {**PRIME["orchestrator"], "train": {"source": [{"group_size": 8}, {"group_size": 8}]}}}
    assert rollouts("prime-rl", rows, own) == truth
    mixed = {"orchestrator": {**PRIME["orchestrator"], "train": {"source": [{"group_size": 8}, {"group_size": 4}]}}}
    with pytest.raises(FrontierError, match="its sources have the group sizes 4, 8"):
        rollouts("prime-rl", rows, mixed)


def test_prime_rl_reads_one_subset_of_an_evaluation() -> None:
    # Since 0.8 of all rollouts and of those without errors, for each agent; before, of the one there was.
    row = {"step": 1, "eval/math/all/solver/avg@4": 0.5, "eval/math/effective/solver/avg@4": 0.6,
           "eval/math/effective/solver/pass@4": 0.9, "eval/old/avg@4": 0.4}  # fmt: skip
    with TemporaryDirectory() as folder:
        log = Path(folder) / "metrics.jsonl"
        log.write_text(json.dumps(row) + "\n")
        given = {"questions": "16", "rollouts_per_problem": "4", "batch_rollouts": "16"}
        evals, notes = ingest("prime-rl", [str(log)], constants=given)
    assert evals["problem_set"].to_list() == ["math/solver", "old"]
    assert evals["avg_at_4"].to_list() == [0.6, 0.4]
    assert "left out, because not every evaluation has it: best_at_4" in notes


@pytest.mark.parametrize("framework", ["verl", "trl", "openrlhf", "prime-rl"])
def test_a_setting_that_no_adapter_knows_is_refused(framework: str) -> None:
    with pytest.raises(FrontierError, match=r"there is no setting wrold_size; .*world_size"):
        rollouts(framework, [{"step": 1, "loss": 1.0}], None, wrold_size="8")


@pytest.mark.parametrize("value", ["inf", "nan", "1e999", "0", "-3", "2.5", "many"])
def test_a_setting_that_is_not_a_count_is_refused(value: str) -> None:
    with pytest.raises(FrontierError, match="world_size is"):
        rollouts("trl", TRL_ROWS, TRL_CONFIG, world_size=value)
