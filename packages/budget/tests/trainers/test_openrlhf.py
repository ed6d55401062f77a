"""OpenRLHF's logs, against simulations of how it generates."""

import ast
import importlib.util
import json
import random
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import assume, given
from hypothesis import settings as profile
from hypothesis import strategies as st
from isocompute.budget import BudgetError
from isocompute.budget.trainers.evals import ingest
from isocompute.budget.trainers.registry import read
from isocompute.budget.trainers.settings import Parallelism
from reading_logs import ingested, needed, rollouts, run_of, settings, words

quick = profile(max_examples=40, deadline=None)


def openrlhf_run(seed, steps, *, n, batch, passing, responses):
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


NESTED = settings(
    "rollout.n_samples_per_prompt=8 rollout.batch_size=16 train.batch_size=64 train.max_epochs=1 "
    "eval.n_samples_per_prompt=4 algo.dynamic_filtering_enable=true"
)
FLAT = settings(
    "n_samples_per_prompt=8 rollout_batch_size=16 train_batch_size=64 max_epochs=1 eval_n_samples_per_prompt=4 "
    "dynamic_filtering=true"
)


@pytest.mark.slow
@quick
@given(seed=st.integers(0, 10**6), passing=st.floats(0.05, 0.95))
def test_openrlhf_counts_the_prompts_that_filtering_replaced(seed, passing):
    rows, truth = openrlhf_run(seed, 4, n=8, batch=16, passing=passing, responses=True)
    assert rollouts("openrlhf", rows, NESTED) == truth
    assert rollouts("openrlhf", rows, FLAT, pass_rate_of="responses") == truth
    rows, truth = openrlhf_run(seed, 4, n=8, batch=16, passing=passing, responses=False)
    assert rollouts("openrlhf", rows, FLAT, pass_rate_of="prompts") == truth


def test_openrlhf_asks_what_its_pass_rate_is_of():
    # 80 % of the prompts, or 10 % of them with eight responses each: the log does not say.
    rows, _ = openrlhf_run(0, 2, n=8, batch=16, passing=0.8, responses=False)
    with pytest.raises(BudgetError, match="pass_rate_of=responses"):
        rollouts("openrlhf", rows, FLAT)
    rows, truth = openrlhf_run(0, 2, n=8, batch=16, passing=0.8, responses=True)
    assert rollouts("openrlhf", rows, FLAT) == truth


def test_openrlhf_asks_where_filtering_left_no_rate():
    rows, _ = openrlhf_run(0, 2, n=8, batch=16, passing=0.8, responses=True)
    bare = [{k: v for k, v in row.items() if "filtering" not in k} for row in rows]
    with pytest.raises(BudgetError, match="--set rollouts_per_step="):
        rollouts("openrlhf", bare, NESTED)
    off = {**NESTED, "algo.dynamic_filtering_enable": False}
    assert rollouts("openrlhf", bare, off) == [128, 256]


def test_openrlhf_divides_by_what_dynamic_filtering_kept(tmp_path):
    log = (
        "train/global_step,train/dynamic_filtering_pass_rate,train/response_length,"
        "eval/eval_math_pass1,eval/eval_math_pass4\n0,,,0.2,0.5\n1,400,100,,\n2,200,100,0.3,0.6\n"
    )
    evals, notes = ingested(tmp_path, "openrlhf", log, NESTED, file="wandb.csv")
    # 400 responses per 100 prompts: half of the prompts passed, with eight responses each.
    assert evals["rollouts"].to_list() == [0, 128 * 2 + 128 * 4]
    assert evals["step"].to_list() == [0, 4]
    assert evals["avg_at_4"].to_list() == [0.2, 0.3]
    assert evals["best_at_4"].to_list() == [0.5, 0.6]
    assert any("dynamic filtering" in note for note in notes)


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


def episodes(seed, problems, episodes, *, n, batch, passing):
    """Batches of an episode until its prompts are used up, whose last one is trained on as it is."""
    rng = random.Random(seed)
    made, rows, truth = 0, [], []
    for _ in range(episodes):
        left = problems
        while left:
            taken = accepted = 0
            while left and accepted < batch:
                taken, left = taken + 1, left - 1
                accepted += rng.random() < passing
            made += taken * n
            if not accepted:
                return rows, truth
            rate = {"train/dynamic_filtering_pass_rate": 100 * n * accepted / taken} if passing < 1 else {}
            step = len(truth) + 1
            rows += [{"train/global_step": step, **rate}, {"eval/global_step": step, "eval/eval_math_pass1": 0.5}]
            truth.append(made)
    return rows, truth


@quick
@given(seed=st.integers(0, 10**6), problems=st.integers(8, 80), times=st.integers(1, 3), passing=st.floats(0.3, 1.0))
def test_a_short_last_batch_is_counted_where_the_prompts_are_known(seed, problems, times, passing):
    rows, truth = episodes(seed, problems, times, n=8, batch=16, passing=passing)
    known = {**NESTED, "algo.dynamic_filtering_enable": passing < 1}
    if truth:
        assert rollouts("openrlhf", rows, known, problems=str(problems)) == truth


@quick
@given(seed=st.integers(0, 10**6), problems=st.integers(20, 80), passing=st.floats(0.3, 0.95))
def test_a_short_last_batch_is_within_the_error_where_its_pass_rate_shows_it(seed, problems, passing):
    rows, truth = episodes(seed, problems, 1, n=8, batch=16, passing=passing)
    with TemporaryDirectory() as folder:
        log = "".join(json.dumps(row) + "\n" for row in rows)
        evals, notes = ingested(Path(folder), "openrlhf", log, NESTED) if rows else (None, [])
    if evals is None:
        return
    assert any("problems=NUMBER" in note for note in notes)
    accepted = rows[-2]["train/dynamic_filtering_pass_rate"] / 800 * (truth[-1] - (truth[-2] if truth[1:] else 0)) / 8
    shown = (16 * 800 / rows[-2]["train/dynamic_filtering_pass_rate"]) % 1
    if accepted < 15.5 and not 1e-6 < shown < 1 - 1e-6:
        # A full batch may have had this pass rate.
        return
    off = [abs(a - b) for a, b in zip(evals["rollouts"], truth, strict=True)]
    assert all(a <= b for a, b in zip(off, evals["rollouts_error"], strict=True))
    assert off[:-1] == [0] * (len(off) - 1)


def test_the_number_of_problems_follows_from_the_responses_of_an_evaluation(tmp_path):
    row = {"eval/global_step": 1, "eval/eval_math_pass1": 0.5, "eval/eval_num_samples": 120.0}
    off = {**NESTED, "algo.dynamic_filtering_enable": False}
    (tmp_path / "log.jsonl").write_text(json.dumps(row) + "\n")
    (tmp_path / "config.json").write_text(json.dumps(off))
    assert ingest("openrlhf", [str(tmp_path / "log.jsonl")], config=tmp_path / "config.json")[0]["questions"][0] == 30


@quick
@given(seed=st.integers(0, 10**6), problems=st.integers(3, 60), times=st.integers(1, 4))
def test_a_short_last_batch_is_within_the_error_where_nothing_shows_it(seed, problems, times):
    rows, truth = episodes(seed, problems, times, n=8, batch=16, passing=1)
    known = {**NESTED, "algo.dynamic_filtering_enable": False, "train.num_episodes": times}
    with TemporaryDirectory() as folder:
        log = "".join(json.dumps(row) + "\n" for row in rows)
        evals, _ = ingested(Path(folder), "openrlhf", log, known)
    off = [abs(a - b) for a, b in zip(evals["rollouts"], truth, strict=True)]
    assert all(a <= b for a, b in zip(off, evals["rollouts_error"], strict=True))


@quick
@given(left=st.integers(2, 15), likely=st.integers(16, 24), times=st.integers(2, 4))
def test_what_an_episodes_end_dropped_is_counted_where_the_prompts_are_known(left, likely, times):
    # Each episode fills one batch; the prompts that are left fill none, since one of them is filtered. As many prompts
    # may have been a short batch of this pass rate, too.
    assume(all(abs(accepted * likely / 16 - left) > 0.01 for accepted in range(1, left + 1)))
    problems, rate = likely + left, {"train/dynamic_filtering_pass_rate": 100 * 8 * 16 / likely}
    rows = [row for step in range(1, times + 1) for row in ({"train/global_step": step, **rate}, evaluated(step))]
    truth = [8 * (problems * (step - 1) + likely) for step in range(1, times + 1)]
    assert rollouts("openrlhf", rows, NESTED, problems=str(problems)) == truth


def evaluated(step):
    return {"eval/global_step": step, "eval/eval_math_pass1": 0.5}
