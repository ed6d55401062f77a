"""Logs of any trainer as ``evals``: what tells runs apart, what settings say, and what is refused."""

import json
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from isocompute.budget import BudgetError
from isocompute.budget.contract import tables
from isocompute.budget.trainers.doctor import ingest, join_restarts, progress_of, reader_of
from isocompute.budget.trainers.logs.log import Log
from isocompute.budget.trainers.logs.sources import read_logs
from isocompute.budget.trainers.registry import trainer
from isocompute.budget.trainers.settings import configuration
from reading_logs import FIXTURES, OPENRLHF, PRIME_RL, QUESTIONS, TINKER, TRL, VERL, ingested, lines, rollouts

DOCS = FIXTURES.parents[1] / "docs" / "trl"


def rewards(path, by_step):
    return lines(path, [{"step": step, "eval_reward": reward} for step, reward in by_step.items()])


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(TRL))
    return path


def read(config, *sources, **given):
    return ingest("trl", [str(s) for s in sources], config=config, constants={**QUESTIONS, **given})


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("run.jsonl", '{"loss": 1}\n{"loss": 2}\n', "line 1 has no step"),
        ("run.csv", "loss,reward\n1,2\n", "has no column of steps"),
        ("run.csv", "Step,a - reward,b - reward\n1,2,3\n", "mixes the runs a, b"),
        ("trainer_state.json", "[]", "is not the trainer_state.json"),
        ("run.jsonl", '{"step": 1, "loss": 2}\n', "holds no metric of verl"),
    ],
)
def test_a_file_that_is_not_a_log_is_one_clear_error(name, content, message):
    with pytest.raises(BudgetError, match=message):
        ingested("verl", content, VERL, file=name)


TWO = {"a": {2: 0.1, 4: 0.2}, "b": {2: 0.5, 4: 0.6}}


def in_files(folder):
    return [rewards(folder / f"{name}.jsonl", by_step) for name, by_step in TWO.items()]


def in_one_table(folder):
    rows = [{"run_id": name, "step": step, "eval_reward": TWO[name][step]} for step in (2, 4) for name in TWO]
    return [lines(folder / "all.jsonl", rows)]


def in_trainer_states(folder):
    # The newest file is not the furthest one once a folder has been copied.
    for name, last in (("a", 4), ("a", 2), ("b", 4)):
        history = [{"step": step, "eval_reward": reward} for step, reward in TWO[name].items() if step <= last]
        path = folder / name / f"checkpoint-{last}" / "trainer_state.json"
        lines(path, [{"global_step": last, "log_history": history}])
    return [folder]


@pytest.mark.parametrize("written", [in_files, in_one_table, in_trainer_states])
def test_two_runs_of_one_configured_seed_are_not_one_curve(written, tmp_path, config):
    sources = written(tmp_path / "logs")
    with pytest.raises(BudgetError, match=r"\ba\b.* and .*\bb\b.*one seed, 42"):
        read(config, *sources)
    evals = read(config, *sources, seed="auto")[0].sort("seed", "step")
    assert evals.select("seed", "avg_at_4").rows() == [(0, 0.1), (0, 0.2), (1, 0.5), (1, 0.6)]


def logged(*attempts):
    return [{"step": step, "eval_reward": reward} for by_step in attempts for step, reward in by_step.items()]


def test_a_file_that_interleaves_two_runs_is_refused():
    with pytest.raises(BudgetError, match="step 2 after step 2"):
        ingested("trl", logged({2: 0.1}, {2: 0.5}, {4: 0.2}, {4: 0.6}), TRL)


def test_of_a_run_that_went_back_to_a_checkpoint_the_later_attempt_counts():
    attempts = [{2: 0.1, 4: 0.2, 6: 0.3, 8: 0.4}, {6: 0.35, 8: 0.45}]
    evals, notes = ingested("trl", logged(*attempts), TRL)
    assert evals["avg_at_4"].to_list() == [0.1, 0.2, 0.35, 0.45]
    assert any("went back to step 6" in note for note in notes)
    # Killed again before it came as far: what the first attempt did beyond was lost.
    attempts.append({4: 0.25})
    assert ingested("trl", logged(*attempts), TRL)[0]["avg_at_4"].to_list() == [0.1, 0.25]
    attempts.append({4: 0.3, 6: 0.4})
    assert ingested("trl", logged(*attempts), TRL)[0]["avg_at_4"].to_list() == [0.1, 0.3, 0.4]


def test_what_logs_and_configuration_say_differently_is_refused(tmp_path, config):
    state = tmp_path / "trainer_state.json"
    state.write_text(json.dumps({"log_history": [{"step": 1, "eval_reward": 0.5}], "train_batch_size": 4}))
    with pytest.raises(BudgetError, match=r"is 4 in .*state and 8 in"):
        read(config, state)
    assert read(config, state, per_device_train_batch_size="8")[0]["rollouts"].to_list() == [16]
    events = FIXTURES / "trl" / "events"
    config.write_text(json.dumps({"num_generations": 8}))
    with pytest.raises(BudgetError, match=r"num_generations is 4 .*8"):
        read(config, events)
    evals, _ = ingest("trl", [str(events)], constants=QUESTIONS)
    assert evals["rollouts"].to_list() == [32, 64, 96]
    (single,) = events.iterdir()
    assert ingest("trl", [str(single)], constants=QUESTIONS)[0].equals(evals)


def starts(*of):
    """The steps and the restarts of each run that is found in the logs of several starts."""
    logs = [
        Log(name=f"log {k}", rows=[(step, {"eval_reward": 0.1 * k + step / 99}) for step in steps], config=config)
        for k, (steps, config) in enumerate(of)
    ]
    return [([step for step, _ in log.rows], log.restarts) for log in join_restarts(logs, reader_of(trainer("trl")))]


@pytest.mark.parametrize(("first", "whole"), [(11, True), (12, True), (13, True), (14, False), (6, True), (2, False)])
def test_a_start_that_goes_on_where_another_had_come_to_is_the_same_run(first, whole):
    # Every second step is logged, up to 10: after a checkpoint at 11 the first entry is that of 13.
    runs = starts((range(2, 12, 2), TRL), (range(first, 20, 2), TRL))
    assert len(runs) == (1 if whole else 2)
    if whole:
        assert runs == [([*range(2, min(first, 11), 2), *range(first, 20, 2)], (first,))]


def test_a_start_goes_on_only_with_a_run_of_its_own_settings():
    assert len(starts((range(2, 12, 2), TRL), (range(12, 20, 2), {**TRL, "num_iterations": 2}))) == 2
    # Where a run was written to is no setting of it; a log without any may be of another run.
    assert len(starts((range(2, 12, 2), TRL), (range(12, 20, 2), {**TRL, "output_dir": "b"}))) == 1
    assert len(starts((range(2, 12, 2), {}), (range(12, 20, 2), {}))) == 2


VERL_ROW = '{"step": 2, "val-core/m/acc/mean@4": 0.5}\n'
OPENRLHF_ROW = {"eval/global_step": 2, "eval/eval_m_pass1": 0.5}


def test_a_configuration_may_be_what_wandb_keeps():
    kept = {key: {"desc": None, "value": value} for key, value in VERL.items()}
    assert rollouts("verl", VERL_ROW, kept) == [64]


def test_a_default_that_a_configuration_leaves_out_is_noted():
    _, notes = ingested("verl", VERL_ROW, VERL)
    assert "actor_rollout_ref.actor.ppo_epochs is not set; the default of 1 is assumed" in notes
    # Without a configuration there is nothing that could have left it out.
    with pytest.raises(BudgetError, match=r"ppo_epochs is not known"):
        rollouts("verl", VERL_ROW, **{k: str(v) for k, v in VERL.items()})


def test_verls_v1_trainer_fetches_a_batch_in_pieces():
    pieces = {**VERL, "data.gen_batch_size": 2}
    assert rollouts("verl", VERL_ROW, {**pieces, "trainer.use_v1": True}) == [64]
    with pytest.raises(BudgetError, match=r"gen_batch_size is 2, .*8"):
        rollouts("verl", VERL_ROW, {**pieces, "trainer.use_v1": False})


RATE = "train/dynamic_filtering_pass_rate"


@pytest.mark.parametrize(
    ("config", "row", "given", "message"),
    [
        ({"rollout.vllm_generate_batch_size": 32}, {}, {}, "32 prompts are generated at once for batches of 8"),
        ({"dynamic_filtering": "perhaps"}, {}, {}, "dynamic_filtering is 'perhaps'; it must be true or false"),
        ({"rollout.batch_size": None}, {}, {}, "rollout.batch_size is not known"),
        ({"rollout.batch_size": True}, {}, {}, "rollout.batch_size is True; it must be a whole number of at least 1"),
        ({}, {RATE: 80.0}, {"pass_rate_of": "groups"}, "pass_rate_of is 'groups'; it must be prompts or responses"),
        ({}, {RATE: 320.0}, {"pass_rate_of": "prompts"}, "is 320, which is not a percentage of prompts"),
    ],
)
def test_a_setting_that_cannot_be_is_named(config, row, given, message):
    with pytest.raises(BudgetError, match=message):
        ingested("openrlhf", [{**OPENRLHF_ROW, **row}], {**OPENRLHF, **config}, **given)


ALL = {**TRL, **VERL, **OPENRLHF, **PRIME_RL}


@pytest.mark.parametrize(
    ("name", "value"),
    [("rollouts_per_step", "9007199254740991"), ("seed", "1e30"), ("seed", "one"), ("questions", "99999999999")],
)
def test_a_setting_beyond_all_counts_is_refused(name, value):
    log = '{"step": 1000000, "val-core/m/acc/mean@4": 0.5}\n'
    with pytest.raises((BudgetError, tables.TableError), match=r"(rollouts|seed|questions)"):
        ingested("verl", log, VERL, **{name: value})


PRIME_ROW = {"eval/m/avg@4": 0.5, "eval/m/pass@1": 0.5}
LENGTH = {"eval_reward": 0.5, "completions/mean_length": 5.0}


@pytest.mark.parametrize(
    ("trainer", "steps", "metrics", "message"),
    [
        ("verl", (1, 2), {"val-core/m/acc/mean@4": 0.5, "train/num_gen_batches": 1e300}, "impossible"),
        ("verl", (1, 2), {"val-core/m/acc/mean@4": 0.5, "train/num_gen_batches": -2}, "impossible"),
        ("verl", (1, 2), {"val-core/m/acc/mean@4": 0.5, "response_length/mean": -5.0}, "not a length"),
        ("trl", (1, 2), {"eval_reward": 0.5, "completions/mean_length": 1e300}, "not a length"),
        ("openrlhf", (1, 2), {"eval/eval_m_pass1": 0.5, RATE: 1e-300}, "impossible"),
        ("prime-rl", (1, 2), {**PRIME_ROW, "progress/tokens": -1e300, "progress/rollouts": 32}, "impossible"),
        # Refused before its steps are walked through.
        ("trl", (1, 10**9), LENGTH, "logs step 1,000,000,000, and no run has more"),
        ("trl", (1, 50_000), {**LENGTH, "epoch": 1e-9}, "epoch is 1e-09 after 50,000 "),
    ],
)
def test_a_count_that_cannot_be_is_refused(trainer, steps, metrics, message):
    with pytest.raises(BudgetError, match=message):
        ingested(trainer, [{"step": step, **metrics} for step in steps], ALL)


def progress(name, source, shared, given=None):
    (log,) = read_logs(str(source), trainer(name).logs.layout)
    return progress_of(trainer(name), log, shared, given or {})[0]


@pytest.mark.parametrize(
    ("name", "source", "config"),
    [
        ("trl", DOCS / "n4" / "trainer_state.json", None),
        ("trl", FIXTURES / "wandb" / "run.wandb", None),
        ("verl", FIXTURES / "verl" / "run.jsonl", FIXTURES / "verl" / "config.json"),
    ],
)
def test_progress_is_that_of_the_evaluations(name, source, config):
    given = {} if config is None else QUESTIONS
    evals, _ = ingest(name, [str(source)], config=config, constants=given)
    counts = progress(name, source, configuration(config), given)
    at = {point.step: (point.rollouts, point.tokens) for point in counts.points}
    compared = [row for row in evals.iter_rows(named=True) if row["step"] in at]
    assert compared
    assert all(at[row["step"]] == (row["rollouts"], row["tokens"]) for row in compared)


def test_replaced_groups_are_in_the_progress(tmp_path):
    # Half of the prompts passed: 200 responses of the 400 of 100 prompts.
    rows = [{"train/global_step": s, RATE: 200.0, "train/response_length": 5.0} for s in (1, 2, 3)]
    counts = progress("openrlhf", lines(tmp_path / "log.jsonl", rows), {**OPENRLHF, "dynamic_filtering": True})
    assert [point.rollouts for point in counts.points] == [64, 128, 192]
    assert (counts.plain, dict(counts.more), counts.following) == (96, {"refill": 96}, 64)
    rows = [{"step": s, "progress/rollouts": 32 + 4 * s, "progress/tokens": 320} for s in (1, 2, 3)]
    counts = progress("prime-rl", lines(tmp_path / "log.jsonl", rows), PRIME_RL)
    assert [(point.step, point.rollouts) for point in counts.points] == [(1, 36), (2, 76), (3, 120)]
    assert (counts.plain, dict(counts.more), counts.following) == (96, {"refill": 24}, 44)
    rows = [{"step": s, "env/all/total_episodes": 32, "env/all/total_ac_tokens": 320} for s in (0, 1)]
    counts = progress("tinker", lines(tmp_path / "log.jsonl", rows), {**TINKER, "num_substeps": 2})
    assert [(point.step, point.rollouts) for point in counts.points] == [(2, 32), (4, 64)]


def test_the_batch_that_trl_generates_next_follows_its_schedule(tmp_path):
    made = {"completions/mean_length": 3.0}
    for steps, following in ((1, 0), (2, 16), (3, 0)):
        rows = [{"step": s, "loss": 0.1, **(made if s % 2 else {})} for s in range(1, steps + 1)]
        twice = {**TRL, "num_iterations": 2}
        log = lines(tmp_path / "log.jsonl", rows)
        assert progress("trl", log, twice, {"problems": "100"}).following == following


@settings(max_examples=15, deadline=None)
@given(st.dictionaries(st.sampled_from(["a", "openai/gsm8k", "b/c/d", "e"]), st.integers(1, 60), min_size=1), st.data())
def test_each_problem_set_has_a_number_of_problems_of_its_own(questions, data):
    row = {f"val-core/{name}/acc/mean@4": data.draw(st.integers(0, 4 * q)) / (4 * q) for name, q in questions.items()}
    given = {f"questions.{name}": str(number) for name, number in questions.items()}

    def say(questions=None, **said):
        return ingested("verl", [{"step": 1, **row}], VERL, questions=questions, **said)[0]

    assert dict(say(**given).select("problem_set", "questions").iter_rows()) == questions
    alone = next(iter(questions))
    if len(questions) == 1:
        assert say(str(questions[alone])).drop("run_id").equals(say(**given).drop("run_id"))
    else:
        with pytest.raises(BudgetError, match=r"one number for the problem sets .*questions\."):
            say(str(questions[alone]))
        with pytest.raises(BudgetError, match=rf"questions\.{re.escape(alone)} is not known"):
            say(**{**given, f"questions.{alone}": None})
    with pytest.raises(BudgetError, match=r"no setting questions\.else"):
        say(**given, **{"questions.else": "30"})
