"""OpenRLHF's logs, against simulations of how it generates."""

import ast
import importlib.util
import math
import random
import sys
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import settings as profile
from hypothesis import strategies as st
from isocompute.budget import BudgetError
from isocompute.budget.trainers.registry import read
from isocompute.budget.trainers.settings import Parallelism
from reading_logs import ingested, needed, rollouts, run_of, settings, words

quick = profile(max_examples=20, deadline=None)
seeds = st.integers(0, 10**6)
N, BATCH = 8, 16
RATE = "train/dynamic_filtering_pass_rate"
NESTED = settings(
    "rollout.n_samples_per_prompt=8 rollout.batch_size=16 train.batch_size=64 train.max_epochs=1 "
    "eval.n_samples_per_prompt=4 algo.dynamic_filtering_enable=true"
)
OFF = {**NESTED, "algo.dynamic_filtering_enable": False}
FLAT = settings(
    "n_samples_per_prompt=8 rollout_batch_size=16 train_batch_size=64 max_epochs=1 eval_n_samples_per_prompt=4 "
    "dynamic_filtering=true"
)


def openrlhf_run(seed, passing, *, problems=math.inf, episodes=1, steps=math.inf, counted=N):
    """Prompts are replaced until a batch has passed; the last batch of an episode is trained on as it is.

    Args:
        counted: Responses to a prompt that the pass rate counts: all of them, or (earlier) one.
    """
    rng, made, rows, truth = random.Random(seed), 0, [], []
    for _ in range(episodes):
        left = problems
        while left and len(truth) < steps:
            taken = accepted = 0
            while left and accepted < BATCH:
                taken, left = taken + 1, left - 1
                accepted += rng.random() < passing
            made += taken * N
            if not accepted:
                return rows, truth
            rate = {RATE: 100 * counted * accepted / taken} if passing < 1 else {}
            rows += [{"train/global_step": len(truth) + 1, **rate}, evaluated(len(truth) + 1)]
            truth.append(made)
    return rows, truth


def evaluated(step):
    return {"eval/global_step": step, "eval/eval_math_pass1": 0.5, "eval/eval_math_pass4": 0.8}


@pytest.mark.slow
@quick
@given(seeds, st.floats(0.05, 0.95))
def test_openrlhf_counts_the_prompts_that_filtering_replaced(seed, passing):
    rows, truth = openrlhf_run(seed, passing, steps=4)
    evals, notes = ingested("openrlhf", rows, NESTED)
    # Two optimizer steps on each batch.
    assert evals.select("step", "rollouts", "avg_at_4", "best_at_4").rows() == [
        (2 * k, made, 0.5, 0.8) for k, made in enumerate(truth, 1)
    ]
    assert any("dynamic filtering" in note for note in notes)
    assert rollouts("openrlhf", rows, FLAT, pass_rate_of="responses") == truth
    rows, truth = openrlhf_run(seed, passing, steps=4, counted=1)
    assert rollouts("openrlhf", rows, FLAT, pass_rate_of="prompts") == truth


def test_openrlhf_asks_what_its_pass_rate_is_of_and_where_filtering_left_none():
    # 80 % of the prompts, or 10 % of them with eight responses each: the log does not say.
    rows, _ = openrlhf_run(0, 0.8, steps=2, counted=1)
    with pytest.raises(BudgetError, match="pass_rate_of=responses"):
        rollouts("openrlhf", rows, FLAT)
    rows, truth = openrlhf_run(0, 0.8, steps=2)
    assert rollouts("openrlhf", rows, FLAT) == truth
    bare = [{k: v for k, v in row.items() if "filtering" not in k} for row in rows]
    with pytest.raises(BudgetError, match="--set rollouts_per_step="):
        rollouts("openrlhf", bare, NESTED)
    assert rollouts("openrlhf", bare, OFF) == [128, 256]


def test_the_number_of_problems_follows_from_the_responses_of_an_evaluation():
    row = {**evaluated(1), "eval/eval_num_samples": 120.0}
    assert ingested("openrlhf", [row], OFF, questions=None)[0]["questions"].to_list() == [30]


DEVICES = [1, 2, 4, 8, 16, 24]


@pytest.fixture
def openrlhf(monkeypatch):
    """OpenRLHF's own parser and validation, without the training that its module begins with."""
    needed("openrlhf.utils.config", session="ISOCOMPUTE_TRAINERS_NEWER")
    package = Path(importlib.util.find_spec("openrlhf").submodule_search_locations[0])
    source = package / "cli" / "train_ppo_ray.py"
    tree = ast.parse(source.read_text("utf-8"))
    plain = [n for n in tree.body if isinstance(n, ast.Import) and n.names[0].name in {"argparse", "os"}]
    plain += [n for n in tree.body if isinstance(n, ast.ImportFrom) and n.module == "datetime"]
    main = next(n for n in tree.body if isinstance(n, ast.If))
    *checks, last = main.body
    assert ast.unparse(last) == "train(args)"
    code = compile(ast.Module([*plain, *checks], type_ignores=[]), str(source), "exec")

    def check(arguments):
        monkeypatch.setattr(sys, "argv", ["train_ppo_ray", *arguments])
        names = {}
        exec(code, names)
        return names["args"]

    return check


@pytest.mark.parametrize("world", DEVICES)
@pytest.mark.parametrize("spread", [Parallelism(), Parallelism(tensor=2), Parallelism(context=2)])
def test_openrlhf_takes_the_settings(openrlhf, world, spread):
    run = run_of(48, 4, 5, world_size=world * spread.devices, parallelism=spread, learning_rate=2e-6)
    args = openrlhf([*words("openrlhf", run), "--reward.remote_url", "x", "--vllm.num_engines", "1"])
    assert args.rollout.batch_size * args.rollout.n_samples_per_prompt == args.train.batch_size == 192
    assert args.data.max_samples * args.train.num_episodes == 48 * 5
    assert args.actor.num_nodes * args.actor.num_gpus_per_node == world * spread.devices
    assert (args.ref.num_nodes, args.ref.num_gpus_per_node) == (args.actor.num_nodes, args.actor.num_gpus_per_node)
    assert args.ds.tensor_parallel_size * args.ds.ring_attn_size == spread.devices
    assert args.actor.adam.lr == 2e-6


def test_openrlhfs_defaults_are_those_that_reading_takes(openrlhf):
    args = openrlhf(["--reward.remote_url", "x", "--actor.model_name_or_path", "m"])
    found = read("openrlhf", {}, problems=10_240)
    assert found.problems_generated == args.rollout.batch_size
    assert found.rollouts_per_problem == args.rollout.n_samples_per_prompt
    assert found.update_steps == found.generations * args.rollout.batch_size // args.train.batch_size
    assert found.world_size == args.actor.num_nodes * args.actor.num_gpus_per_node


@quick
@given(seeds, st.integers(8, 80), st.integers(1, 3), st.floats(0.3, 1.0))
def test_a_short_last_batch_is_counted_where_the_prompts_are_known(seed, problems, times, passing):
    rows, truth = openrlhf_run(seed, passing, problems=problems, episodes=times)
    if truth:
        assert rollouts("openrlhf", rows, NESTED if passing < 1 else OFF, problems=str(problems)) == truth


def within_the_error(evals, truth):
    """How far each count is from the truth, which is no more than its error."""
    off = [abs(a - b) for a, b in zip(evals["rollouts"], truth, strict=True)]
    assert all(a <= b for a, b in zip(off, evals["rollouts_error"], strict=True))
    return off


@quick
@given(seeds, st.integers(20, 80), st.floats(0.3, 0.95))
def test_a_short_last_batch_is_within_the_error_where_its_pass_rate_shows_it(seed, problems, passing):
    rows, truth = openrlhf_run(seed, passing, problems=problems)
    if not rows:
        return
    evals, notes = ingested("openrlhf", rows, NESTED)
    assert any("problems=NUMBER" in note for note in notes)
    accepted = rows[-2][RATE] / 800 * (truth[-1] - (truth[-2] if truth[1:] else 0)) / 8
    shown = (16 * 800 / rows[-2][RATE]) % 1
    if accepted > 15.5 or 1e-6 < shown < 1 - 1e-6:
        # No full batch has this pass rate.
        assert within_the_error(evals, truth)[:-1] == [0] * (len(truth) - 1)


@quick
@given(seeds, st.integers(3, 60), st.integers(1, 4))
def test_a_short_last_batch_is_within_the_error_where_nothing_shows_it(seed, problems, times):
    rows, truth = openrlhf_run(seed, 1, problems=problems, episodes=times)
    within_the_error(ingested("openrlhf", rows, {**OFF, "train.num_episodes": times})[0], truth)


@quick
@given(left=st.integers(2, 15), likely=st.integers(16, 24), times=st.integers(2, 4))
def test_what_an_episodes_end_dropped_is_counted_where_the_prompts_are_known(left, likely, times):
    # Each episode fills one batch; the prompts that are left fill none, since one of them is filtered. As many prompts
    # may have been a short batch of this pass rate, too.
    assume(all(abs(accepted * likely / 16 - left) > 0.01 for accepted in range(1, left + 1)))
    problems, rate = likely + left, {RATE: 100 * 8 * 16 / likely}
    rows = [row for step in range(1, times + 1) for row in ({"train/global_step": step, **rate}, evaluated(step))]
    truth = [8 * (problems * (step - 1) + likely) for step in range(1, times + 1)]
    assert rollouts("openrlhf", rows, NESTED, problems=str(problems)) == truth
