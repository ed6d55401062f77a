"""veRL's logs, against simulations of how it generates and logs that its tracker wrote (fixtures/make.py)."""

import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import settings as profile
from hypothesis import strategies as st
from isocompute.budget import BudgetError
from isocompute.budget.trainers.doctor import ingest, progress_of
from isocompute.budget.trainers.logs.log import Log
from isocompute.budget.trainers.registry import convert, read, trainer
from isocompute.budget.trainers.settings import Parallelism
from reading_logs import FIXTURES, QUESTIONS, asked, ingested, lines, needed, rollouts, run_of, settings

whole = st.integers(1, 4)
quick = profile(max_examples=20, deadline=None)


VERL = settings(
    "data.train_batch_size=8 data.gen_batch_size=12 actor_rollout_ref.rollout.n=4 "
    "actor_rollout_ref.actor.ppo_mini_batch_size=8 algorithm.adv_estimator=grpo algorithm.filter_groups.enable=true"
)
UNFILTERED = {"algorithm.filter_groups.enable": False}
WHOLE = {**VERL, **UNFILTERED, "data.gen_batch_size": 8}
ASYNCHRONOUS = {"fully_async/count/stale_trajectory_processed": 1.0}


def verl_row(step, data):
    evaluated = {"val-core/m/acc/mean@4": 0.5} if step % 2 == 0 else {}
    return {"step": step, "data": {**data, **evaluated}}


def verl_run(one_step, seed, steps, per_prompt):
    """Rows of a run evaluated before training and every other step, and the rollouts made by then."""
    rng = random.Random(seed)
    made, rows, truth = 0, [verl_row(0, {})], [0]
    for step in range(1, steps + 1):
        prompts, logged = one_step(rng)
        made += prompts * per_prompt
        rows.append(verl_row(step, {"training/global_step": step, "response_length/mean": 9.0, **logged}))
        truth += [made] if step % 2 == 0 else []
    return rows, truth


def resampled(rng):
    """DAPO: whole generation batches until enough groups have a spread of rewards; what is over is dropped."""
    batches = kept = 0
    while kept < 8:
        batches += 1
        kept += sum(rng.random() < 0.5 for _ in range(12))
    return 12 * batches, {"train/num_gen_batches": batches}


def evicted(rng):
    """The V1 trainer: k evicted groups are refilled, and what is left over is discarded; zeros are not logged."""
    counts = {
        "training/filter_groups/evicted_samples": rng.randint(0, 5),
        "training/filter_groups/discarded_surplus_samples": rng.randint(0, 5),
        "training/off_policy/evicted_samples": rng.randint(0, 2),
        "training/rollout_failure/evicted_samples": rng.randint(0, 1),
    }
    return 8 + sum(counts.values()), {key: count for key, count in counts.items() if count}


@pytest.mark.slow
@quick
@given(seed=st.integers(0, 10**6), steps=st.integers(2, 12), remax=st.booleans())
def test_verl_counts_the_batches_that_dynamic_sampling_generated(seed, steps, remax):
    # ReMax samples one more response to each prompt, greedily, as its baseline.
    rows, truth = verl_run(resampled, seed, steps, per_prompt=5 if remax else 4)
    estimator = {"algorithm.adv_estimator": "remax"} if remax else {}
    assert rollouts("verl", rows, {**VERL, "trainer.use_v1": False, **estimator}) == truth


@quick
@given(seed=st.integers(0, 10**6), steps=st.integers(3, 12))
def test_verl_counts_evicted_prompts_with_all_their_responses(seed, steps):
    rows, truth = verl_run(evicted, seed, steps, per_prompt=4)
    if any("filter_groups" in key for row in rows for key in row["data"]):
        assert rollouts("verl", rows, {**VERL, "data.gen_batch_size": 8}) == truth


@pytest.mark.parametrize(
    ("prompts", "logged", "changed", "said"),
    [
        (8, {}, {}, r"step 1 .*rollouts_per_step="),
        (12, {}, UNFILTERED, r"gen_batch_size is 12, .*8"),
        (8, ASYNCHRONOUS, {"data.gen_batch_size": 8, **UNFILTERED}, r"asynchronous.*_per_step="),
    ],
)
def test_verl_asks_for_what_its_log_leaves_open(prompts, logged, changed, said):
    rows, _ = verl_run(lambda _: (prompts, logged), 0, 4, 4)
    with pytest.raises(BudgetError, match=said):
        rollouts("verl", rows, {**VERL, **changed})
    assert rollouts("verl", rows, {**VERL, **changed}, rollouts_per_step="96") == [0, 192, 384]


def test_verl_counts_prompts_and_marks_what_is_biased():
    verl = FIXTURES / "verl"
    evals, notes = ingest("verl", [str(verl / "run.jsonl")], config=verl / "config.json", constants=QUESTIONS)
    assert evals["rollouts"].to_list() == [0, 2 * 64, 4 * 64]
    # Two updates for each logged step: mini-batches of half a batch.
    assert evals["step"].to_list() == [0, 4, 8]
    assert evals["tokens"].to_list() == [0, 64 * (11 + 12), 64 * (11 + 12 + 13 + 14)]
    assert evals["problem_set"].unique().to_list() == ["gsm8k"]
    # The accuracy, not the reward of the same name.
    assert evals["avg_at_4"].to_list() == pytest.approx([0.3, 0.34, 0.38])
    assert evals["problems_per_batch"].unique().to_list() == [8]
    assert {"best_at_4_biased", "worst_at_4_biased"} <= set(evals.columns)
    assert "best_at_4" not in evals.columns
    assert any("best_at_k_biased" in note for note in notes)


def shipped(name):
    """One of veRL's configurations."""
    verl = needed("verl")
    omegaconf = needed("omegaconf")
    document = Path(verl.__file__).parent / "trainer" / "config" / name
    config = omegaconf.OmegaConf.load(document)
    # As on veRL's command line: a key that it does not have is an error.
    omegaconf.OmegaConf.set_struct(config, True)
    return config


SPREAD = [(1, 1, 1)] * 4 + [(2, 1, 1), (4, 2, 1), (1, 4, 1), (1, 1, 2), (2, 1, 2), (1, 2, 2)]


def random_run(number):
    """A run on one of many layouts, which its devices share evenly."""
    rng = random.Random(number)
    while True:
        spread = Parallelism(**dict(zip(("tensor", "pipeline", "context"), rng.choice(SPREAD), strict=True)))
        world = spread.devices * rng.choice([1, 2, 3, 4, 8])
        problems, n = rng.choice([1, 3, 8, 12, 32, 96, 256]), rng.choice([1, 2, 5, 8, 16, 64])
        if problems * n % world == 0:
            rate = rng.choice([None, 1e-6])
            return run_of(problems, n, rng.randint(1, 999), world_size=world, parallelism=spread, learning_rate=rate)


def taken(run):
    """VeRL's configuration with the settings of a run, which its own check accepts; and what is to be read of it."""
    needed("verl")
    from omegaconf import OmegaConf

    settings = dict(convert("verl", run).settings)
    engine = settings.pop("model_engine", "dp")
    config = shipped("_generated_ppo_trainer.yaml" if engine == "dp" else f"_generated_ppo_{engine}_trainer.yaml")
    for key, value in settings.items():
        assert OmegaConf.select(config, key, throw_on_missing=False, default="absent") != "absent", key
        OmegaConf.update(config, key, value)
    validate(config)
    return config, {key: OmegaConf.select(config, key) for key in (*settings, "actor_rollout_ref.actor.strategy")}


@pytest.mark.parametrize("number", range(30))
def test_verl_takes_random_settings_and_they_read_back(number):
    run = random_run(number)
    found = read("verl", taken(run)[1])
    assert (found.allocation, found.generated) == (run.allocation, run.allocation.rollouts)
    assert (found.world_size, found.data_parallel) == (run.world_size, run.data_parallel)
    assert (found.unknown, found.inconsistent) == ((), ())


def validate(config):
    """Put a configuration to veRL's own check."""
    needed("verl.workers.config")
    from verl.utils.config import validate_config

    validate_config(config, use_reference_policy=True, use_critic=False)


@pytest.mark.parametrize("spread", [Parallelism(context=2), Parallelism(tensor=2, context=2)])
def test_a_batch_that_does_not_divide_is_refused_by_verl_as_well(spread):
    config, flat = taken(run_of(16, 4, 10, world_size=8, parallelism=spread))
    config.data.train_batch_size = 15
    config.actor_rollout_ref.rollout.n = 1
    with pytest.raises(AssertionError, match="must be divisible"):
        validate(config)
    smaller = {"data.train_batch_size": 15, "actor_rollout_ref.rollout.n": 1}
    told = read("verl", flat | smaller).inconsistent
    assert any("cannot be split evenly" in remark or "not divide" in remark for remark in told)


def test_verls_own_configuration_reads_back():
    stock = shipped("_generated_ppo_trainer.yaml")
    from omegaconf import OmegaConf

    asked = "data.train_batch_size actor_rollout_ref.rollout.n trainer.total_epochs trainer.nnodes"
    flat = {key: OmegaConf.select(stock, key) for key in asked.split()}
    found = read("verl", flat, problems=10 * flat["data.train_batch_size"])
    assert found.generations == 10 * flat["trainer.total_epochs"]
    assert found.update_steps == 4 * found.generations


def test_a_setting_whose_default_is_none_is_assumed_and_said():
    rows, truth = verl_run(lambda _: (8, {}), 0, 4, 4)
    known = {**WHOLE, "actor_rollout_ref.actor.ppo_epochs": 1, "data.gen_batch_size": None}
    given = {key: str(value).lower() for key, value in known.items() if value is not None}
    for config in (known, {k: v for k, v in known.items() if v is not None}):
        assert rollouts("verl", rows, config) == truth
    # Without a configuration, too.
    assert rollouts("verl", rows, **given) == truth
    rows, _ = verl_run(resampled, 0, 4, 4)
    with pytest.raises(BudgetError, match=r"gen_batch_size is not known"):
        rollouts("verl", rows, **given | {"algorithm.filter_groups.enable": "true"})


def test_tokens_that_tools_wrote_are_not_the_models():
    tools = ({"num_turns/mean": 2.5}, {"num_turns/mean": 2.0, "tool_call_counts/mean": 0.5})
    for more, tokens in (({"num_turns/mean": 2.0}, 900 * 32), *((called, 0) for called in tools)):
        row = {"step": 1, "training/global_step": 1, "response_length/mean": 900.0, "val-core/m/acc/mean@1": 0.24}
        evals, notes = ingested("verl", [{**row, **more}], WHOLE)
        assert evals["tokens"].to_list() == [tokens]
        assert any("what tools wrote" in note for note in notes) == (tokens == 0)


@pytest.mark.parametrize(
    ("rates", "rate"),
    [((1e-7, 1e-6, 1e-6, 5e-7), 1e-6), ((4e-6, 3e-6, 2e-6, 1e-6), None), ((0.0, 0.0, 0.0, 0.0), None)],
)
def test_the_rate_of_a_log_is_the_highest_that_it_kept(rates, rate):
    rows, _ = verl_run(lambda _: (8, {}), 0, 4, 4)
    for row, logged in zip(rows[1:], rates, strict=True):
        row["data"]["actor/lr"] = logged
    evals, notes = ingested("verl", rows, WHOLE)
    assert set(evals["learning_rate"]) == {rate}
    assert any("actor/lr" in note for note in notes) == (rate is not None)


def test_n_and_the_batch_are_held_to_the_tokens_of_a_log(tmp_path):
    n, batch = "actor_rollout_ref.rollout.n", "data.train_batch_size"
    tokens = {"perf/total_num_tokens": 8 * 4 * (9.0 + 5.0), "prompt_length/mean": 5.0}
    rows, truth = verl_run(lambda _: (8, tokens), 0, 4, 4)
    assert rollouts("verl", rows, WHOLE) == truth
    with pytest.raises(BudgetError, match=rf"on 32 responses .* set {n}=4 or {batch}=2 or rollouts_per_step"):
        rollouts("verl", rows, WHOLE | {n: 16})
    log = Log(name="a run", rows=[(row["step"], row["data"]) for row in rows])
    with pytest.raises(BudgetError, match=rf"set {n}=2 or {batch}=8"):
        progress_of(trainer("verl"), log, WHOLE | {batch: 16, "data.gen_batch_size": 16}, {})
    assert rollouts("verl", rows, WHOLE | {n: 16}, rollouts_per_step="32") == truth
    # What is tried for n hides nothing else that is missing.
    told = {**QUESTIONS, **WHOLE, "actor_rollout_ref.actor.ppo_epochs": 1}
    assert {n, batch, "questions"} <= asked(lines(tmp_path / "run.jsonl", rows), told)[1]


def test_a_variable_of_the_evaluation_can_be_named():
    row = {f"val-aux/m/{kind}/mean@4": rate for kind, rate in (("acc", 0.5), ("reward", 0.25), ("strict", 0.75))}
    for said, rate in (({}, 0.5), ({"metric": "reward"}, 0.25), ({"metric": "strict"}, 0.75)):
        assert ingested("verl", [{"step": 0, **row}], WHOLE, **said)[0]["avg_at_4"].to_list() == [rate]


@quick
@given(
    sizes=st.tuples(whole, whole, whole, whole, whole),
    stale=st.floats(0, 1),
    ahead=st.lists(st.floats(0, 1), min_size=2, max_size=8),
    logged=st.data(),
)
def test_steps_of_a_fully_asynchronous_run_are_versions_of_the_parameters(sizes, stale, ahead, logged):
    mini, fetches, batches, n, epochs = sizes
    each = mini * fetches * batches
    rows, truth = [], []
    for version, share in enumerate(ahead, 1):
        made = version * each + int(share * (1 + stale) * each)
        # It is counted before the last fetch was whole, from the start of the process, and not in every row.
        count = logged.draw(st.integers(made - mini * batches, made) | st.integers(0, each) | st.none())
        data = {"training/global_step": version * fetches, "response_length/mean": 9.0}
        data |= {} if count is None else {"fully_async/count/total_generated_samples": max(count, 0)}
        if version == len(ahead) or logged.draw(st.booleans()):
            rows.append({"step": version, "data": {**data, "val-core/m/acc/mean@4": 0.5}})
            truth.append((version * fetches * batches * epochs, made * n))
    actor = "actor_rollout_ref.actor"
    config = settings(
        f"data.train_batch_size=0 data.gen_batch_size=1 actor_rollout_ref.rollout.n={n} trainer.nnodes=1 "
        f"{actor}.ppo_mini_batch_size={mini} {actor}.ppo_epochs={epochs} async_training.require_batches={batches} "
        f"async_training.trigger_parameter_sync_step={fetches} async_training.staleness_threshold={stale!r}"
    )
    evals, _ = ingested("verl", rows, config, same_before="true")
    log = Log(name="a run", rows=[(row["step"], row["data"]) for row in rows])
    counts = progress_of(trainer("verl"), log, config, {})[0]
    assert (counts.plain, counts.points[-1].step) == (len(ahead) * each * n, truth[-1][0])
    assert evals["step"].to_list() == [step for step, _ in truth]
    assert evals["problems_per_batch"].unique().to_list() == [mini]
    off = [abs(found - made) for found, (_, made) in zip(evals["rollouts"], truth, strict=True)]
    assert all(a <= b for a, b in zip(off, evals["rollouts_error"], strict=True))
    said, _ = ingested("verl", rows, config, same_before="true", rollouts_per_step="7")
    assert set(said["rollouts_error"]) == {0}


def test_the_former_trainers_loader_ends_a_run_before_more_is_generated_than_was_said():
    said = "data.train_batch_size=8 data.gen_batch_size=3 actor_rollout_ref.rollout.n=4 trainer.total_epochs=2 "
    said += "actor_rollout_ref.actor.ppo_mini_batch_size=4 algorithm.filter_groups.enable=true trainer.use_v1=false"
    found = read("verl", settings(said), problems=20)
    # 6 loads of 3 prompts in an epoch, 3 of which may fill a batch of 8 for two steps.
    assert (found.problems_per_batch, found.update_steps) == (4, 8)
    assert any("fewer steps than planned" in note and f"{2 * 6 * 3 * 4} rollouts" in note for note in found.notes)
