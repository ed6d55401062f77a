"""TRL's logs, against simulations of how it generates and logs that it wrote (fixtures/make.py)."""

import json
import random
import shutil
from operator import mul
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import settings as profile
from hypothesis import strategies as st
from isocompute.budget import BudgetError
from isocompute.budget.trainers.doctor import ingest, rows_of
from isocompute.budget.trainers.logs.log import Log
from isocompute.budget.trainers.registry import convert, trainer
from isocompute.budget.trainers.settings import MissingSettingError
from reading_logs import FIXTURES, QUESTIONS, TRL, ingested, rollouts, run_of, settings
from trl_runs import grpo

whole = st.integers(1, 4)
quick = profile(max_examples=20, deadline=None)


def trl_run(per_device, world, accumulation, per_generation, iterations, steps):
    """TRL's loop: a batch is generated before every per_generation × iterations micro-batches."""
    micro, made, rows, truth = 0, 0, [], []
    for step in range(1, steps + 1):
        for _ in range(accumulation):
            if micro % (per_generation * iterations) == 0:
                made += per_device * world * per_generation
            micro += 1
        generated = {"completions/mean_length": 7.0} if made > (truth[-1] if truth else 0) else {}
        rows.append({"step": step, "loss": 0.1, "eval_reward": 0.5, **generated})
        truth.append(made)
    return rows, truth


@pytest.mark.parametrize(
    ("batches", "said"), [((2, 2, 2), (32, 64, 96)), ((2, 3, 2), (32, 72, 104)), ((2, 2, 3), (32, 64, 104))]
)
def test_tokens_show_a_start_from_a_checkpoint_that_nothing_else_does(batches, said):
    # A batch of 16 every other step, an entry every fourth: what began anew made three batches between two entries.
    config = {**TRL, "per_device_train_batch_size": 4, "steps_per_generation": 4}
    rows, total = [], 0
    for step, made in zip((4, 8, 12), batches, strict=True):
        total += made * 16 * 15
        logged = {"loss": 0.1, "completions/mean_length": 5.0, "num_tokens": total, "eval_reward": 0.5}
        rows.append({"step": step, **logged})
    evals, _ = ingested("trl", rows, config)
    # Half of a batch off, where the tokens may be unlikely ones, and two more starts may have left no trace.
    assert tuple(evals["rollouts"]) == said
    truth = [16 * sum(batches[: k + 1]) for k in range(3)]
    off = [abs(found - made) for found, made in zip(evals["rollouts"], truth, strict=True)]
    assert all(a <= b for a, b in zip(off, evals["rollouts_error"], strict=True))


@pytest.mark.slow
@quick
@given(st.tuples(whole, st.sampled_from([1, 2, 8]), whole, whole, whole, st.integers(1, 12)))
def test_trl_counts_every_process(sizes):
    completions, world, accumulation, per_generation, iterations, steps = sizes
    rows, truth = trl_run(2 * completions, world, accumulation, per_generation, iterations, steps)
    # What TRL dumps of its configuration, without the two sizes in older versions; the world size is a property.
    older = settings(
        f"num_generations=2 per_device_train_batch_size={2 * completions} num_iterations={iterations} "
        f"gradient_accumulation_steps={accumulation} per_device_eval_batch_size=8"
    )
    sizes = {"steps_per_generation": per_generation, "generation_batch_size": 2 * completions * world * per_generation}
    assert rollouts("trl", rows, {**older, **sizes}, problems="1000000") == truth
    said = {"problems": "1000000", "world_size": str(world), "steps_per_generation": str(per_generation)}
    assert rollouts("trl", rows, older, **said) == truth


TRL_ROWS, _ = trl_run(8, 8, 2, 2, 1, 4)
TRL_CONFIG = {k: v for k, v in TRL.items() if k not in ("steps_per_generation", "generation_batch_size")}


@pytest.mark.parametrize("known", [{}, {"steps_per_generation": 2}, {"generation_batch_size": 128}])
def test_trl_asks_for_a_world_size_that_does_not_follow(known):
    with pytest.raises(BudgetError, match="--set world_size="):
        rollouts("trl", TRL_ROWS, {**TRL_CONFIG, **known})


def test_trl_counts_completions_over_micro_batches():
    trl = FIXTURES / "trl"
    evals, notes = ingest("trl", [str(trl / "trainer_state.json")], config=trl / "config.json", constants=QUESTIONS)
    assert evals["step"].to_list() == [2, 4, 6]
    # Two micro-batches of 8 completions a step: 16, of 4 problems.
    assert evals["rollouts"].to_list() == [32, 64, 96]
    assert evals["rollouts_per_problem"].unique().to_list() == [4]
    assert evals["problems_per_batch"].unique().to_list() == [4]
    assert evals["seed"].unique().to_list() == [3]
    logged = json.loads((trl / "trainer_state.json").read_text())["log_history"]
    assert evals["avg_at_2"].to_list() == [e["eval_reward"] for e in logged if "eval_reward" in e]
    lengths = [e["completions/mean_length"] for e in logged if "completions/mean_length" in e]
    assert evals["tokens"][-1] == pytest.approx(16 * sum(lengths), abs=1)
    assert "avg_at_2 is eval_rewards/right/mean" in notes
    assert evals["count_source"].unique().to_list() == ["log and formula"]
    assert evals["rollouts_error"].unique().to_list() == [0]


def test_trl_settings_that_the_log_contradicts_are_refused():
    state, config = ((FIXTURES / "trl" / name).read_text() for name in ("trainer_state.json", "config.json"))
    # One batch of 32 completions for four micro-batches, each used twice: a batch lasts four optimizer steps.
    sizes = {"generation_batch_size": 32, "steps_per_generation": 4, "num_iterations": 2}
    # The log says that every step generated.
    with pytest.raises(BudgetError, match="contradicts"):
        ingested("trl", state, {**json.loads(config), **sizes}, file="trainer_state.json")


def test_trl_asks_for_what_a_trainer_state_does_not_hold(tmp_path):
    state = shutil.copy(FIXTURES / "trl" / "trainer_state.json", str(tmp_path))
    with pytest.raises(BudgetError, match="--set num_generations="):
        ingest("trl", [state])
    # How many problems were evaluated follows from how long that took, and how many a second.
    assert ingest("trl", [state], config=FIXTURES / "trl" / "config.json")[0]["questions"].unique().to_list() == [16]


CASES = [(8, 4, 5, 1, None), (32, 64, 500, 8, 16), (3, 6, 7, 1, None), (12, 8, 100, 6, 4), (64, 16, 2, 64, None)]


@pytest.mark.parametrize("case", CASES)
def test_trl_takes_the_settings_for_the_same_batches(trl, tmp_path, monkeypatch, case):
    run = run_of(*case[:3], world_size=case[3], micro_batch=case[4])
    # The number of processes is the launcher's; its own class says what it makes of the rest.
    monkeypatch.setattr(trl.GRPOConfig, "world_size", property(lambda self: run.world_size))
    config = trl.GRPOConfig(
        output_dir=str(tmp_path), use_cpu=True, bf16=False, report_to=[], **convert("trl", run).settings
    )
    a = run.allocation
    assert config.generation_batch_size == a.batch_rollouts
    assert config.generation_batch_size // config.num_generations == a.problems_per_batch
    assert config.steps_per_generation * config.num_iterations == config.gradient_accumulation_steps
    assert config.max_steps == a.update_steps


@pytest.mark.parametrize("case", [(3, 4, 3, 1, 2), (2, 3, 2, 1, None)])
def test_a_trl_run_generates_exactly_the_rollouts_of_the_allocation(trl, tmp_path, case):
    run = run_of(*case[:3], world_size=case[3], micro_batch=case[4])
    seen = []

    def reward(prompts, completions, **_):
        seen.append(list(prompts))
        return [float(len(c) % 2) for c in completions]

    args = {"save_strategy": "no", "logging_steps": 1, "max_completion_length": 4, **convert("trl", run).settings}
    trainer = grpo(tmp_path, args, problems=16, rewards=[reward])
    trainer.train()
    a = run.allocation
    assert sum(map(len, seen)) == a.rollouts
    assert trainer.state.global_step == a.update_steps
    assert len(seen) == a.update_steps
    for prompts in seen:
        assert len(set(prompts)) == a.problems_per_batch
        assert all(prompts.count(prompt) == a.rollouts_per_problem for prompt in prompts)


def test_what_trl_generated_is_read_or_refused(trl, tmp_path, request):
    """``nox -s trainers -- --trl-runs 200`` is the long campaign."""
    from trl_runs import campaign, summary

    runs = int(request.config.getoption("--trl-runs", 20))
    outcomes = campaign(runs, tmp_path, int(request.config.getoption("--trl-seed", 0)))
    said = summary(outcomes)
    print(said)
    refused = sum(outcome.kind == "refused" for outcome in outcomes)
    assert not [outcome for outcome in outcomes if outcome.kind == "wrong"], said
    assert refused <= max(1, 0.05 * runs), said


def evaluated_run(rng, functions, logged_sum):
    """Rows of a run of several reward functions, evaluated every other step, as today's releases name its metrics."""
    rows = []
    for step in range(1, 7):
        rows.append({"step": step, "loss": 0.1, "num_tokens": 16 * 20 * step, "completions/mean_length": 7.0})
        if step % 2 == 0:
            means = {name: rng.randint(0, 64) / 64 for name in functions}
            each = {f"eval_rewards/{name}/mean": mean for name, mean in means.items()}
            took = {"eval_runtime": 2.0, "eval_samples_per_second": 8.0}
            rows.append({"step": step, **each, "eval_reward": logged_sum(list(means.values())), **took})
    return rows


def joined(rows):
    """Metrics by step."""
    steps = {}
    for row in rows:
        steps.setdefault(row["step"], {}).update({key: value for key, value in row.items() if key != "step"})
    return sorted(steps.items())


def test_a_mean_over_the_responses_that_were_scored_is_not_over_all_problems():
    # Each reward function returns None for the other's domain, so that the reward is the mean of both.
    log = Log(name="a run", rows=joined(evaluated_run(random.Random(0), ["math", "code"], fmean)))
    with pytest.raises(MissingSettingError, match="--set questions=") as asked:
        rows_of(trainer("trl"), log, TRL, {"metric": "math"})
    assert asked.value.name == "questions"
    found, _ = rows_of(trainer("trl"), log, TRL, {"metric": "math", "questions": "16"})
    assert {row["questions"] for row in found} == {16}


def test_metrics_as_releases_up_to_0_16_name_them_are_read_as_todays():
    rows = evaluated_run(random.Random(0), ["right", "style_reward"], sum)
    former = [
        {("completion_length" if "mean_length" in k else k.removesuffix("/mean")): v for k, v in row.items()}
        for row in rows
    ]
    named = {"metric": "right", "questions": "16"}
    tables = [ingested("trl", each, TRL, **named)[0] for each in (rows, former)]
    assert tables[0].drop("run_id").equals(tables[1].drop("run_id"))
    assert tables[1]["problem_set"].unique().to_list() == ["eval"]
    assert tables[1]["tokens"].to_list() == [7 * 16 * step for step in (2, 4, 6)]


def test_releases_of_which_no_token_count_says_what_a_batch_counts_are_refused():
    rows = [{"step": step, "loss": 0.1, "completion_length": 7.0, "eval_reward": 0.5} for step in (1, 2)]
    with pytest.raises(BudgetError, match="per_device_train_batch_size"):
        ingested("trl", rows, TRL)


@quick
@given(st.lists(st.integers(1, 9), min_size=2, max_size=4), st.booleans(), st.integers(0, 10**6))
def test_a_sum_without_weights_is_of_all_responses_as_one_with_them(weights, weighted, seed):
    weights = [weight / 10 for weight in weights]
    of = weights if weighted else [1.0] * len(weights)
    rows = evaluated_run(random.Random(seed), "abcd"[: len(weights)], lambda means: sum(map(mul, of, means)))
    log = Log(name="a run", rows=joined(rows))
    found, _ = rows_of(trainer("trl"), log, {**TRL, "reward_weights": weights}, {"metric": "a"})
    assert {row["questions"] for row in found} == {16}


@quick
@given(st.sets(st.integers(1, 3)), st.integers(0, 10**6))
def test_evaluations_without_a_value_of_the_metric_are_counted_and_said(without, seed):
    rows = evaluated_run(random.Random(seed), ["a"], sum)
    for row in rows:
        if "eval_reward" in row and row["step"] // 2 in without:
            del row["eval_rewards/a/mean"]
    if len(without) == 3:
        return
    found, notes = rows_of(trainer("trl"), Log(name="a run", rows=joined(rows)), TRL, {"questions": "16"})
    said = [note for note in notes if "eval_rewards/a/mean" in note and f"{len(without)} of 3" in note]
    assert (len(found), len(said)) == (3 - len(without), int(bool(without)))
