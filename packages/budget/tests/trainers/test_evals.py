"""Logs of any trainer as ``evals``: what tells runs apart, what settings say, and what is refused.

Whatever a log holds, it is a table or one clear error.
"""

import json
import re
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from isocompute.budget import BudgetError
from isocompute.budget.contract import tables
from isocompute.budget.trainers.evals import ingest, join_restarts, plain, progress_of, reader_of
from isocompute.budget.trainers.logs.log import Log
from isocompute.budget.trainers.logs.sources import read_logs
from isocompute.budget.trainers.registry import trainer
from isocompute.budget.trainers.settings import load
from reading_logs import FIXTURES, OPENRLHF, PRIME_RL, QUESTIONS, TRL, VERL, ingested, lines, rollouts

DOCS = FIXTURES.parents[1] / "docs" / "trl"


def rewards(path, by_step):
    return lines(path, [{"step": step, "eval_reward": reward} for step, reward in by_step.items()])


def append(path, by_step):
    before = path.read_text()
    path.write_text(before + rewards(path, by_step).read_text())


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
        ("run.jsonl", '{"step": 1\n{"step": 2}\n', "line 1 is not JSON"),
        ("run.csv", "loss,reward\n1,2\n", "has no column of steps"),
        ("run.csv", "Step,a - reward,b - reward\n1,2,3\n", "mixes the runs a, b"),
        ("run.csv", "step,a - loss,a - loss\n2,0.1,0.5\n", "'a - loss' twice"),
        ("trainer_state.json", "[]", "is not the trainer_state.json"),
        ("run.jsonl", '{"step": 1, "loss": 2}\n', "holds no evaluation"),
    ],
)
def test_a_file_that_is_not_a_log_is_one_clear_error(name, content, message, tmp_path):
    with pytest.raises(BudgetError, match=message):
        ingested(tmp_path, "verl", content, VERL, file=name)


@pytest.mark.parametrize("trainer", ["verl", "trl", "openrlhf", "prime-rl"])
def test_a_setting_that_no_trainer_knows_is_refused(trainer):
    with pytest.raises(BudgetError, match="wrold_size"):
        rollouts(trainer, [{"step": 1, "loss": 1.0}], None, wrold_size="8")


def test_two_runs_of_one_configured_seed_are_not_one_curve(tmp_path, config):
    a = rewards(tmp_path / "logs" / "a.jsonl", {2: 0.1, 4: 0.2})
    b = rewards(tmp_path / "logs" / "b.jsonl", {2: 0.5, 4: 0.6})
    with pytest.raises(BudgetError, match=r"a.jsonl and .*seed, 42"):
        read(config, a, b)
    evals, _ = read(config, a, b, seed="auto")
    assert evals.sort("seed", "step")["seed"].to_list() == [0, 0, 1, 1]
    assert evals.sort("seed", "step")["avg_at_4"].to_list() == [0.1, 0.2, 0.5, 0.6]
    with pytest.raises(BudgetError, match=r"a.jsonl, b.jsonl"):
        read(config, tmp_path / "logs")


def test_one_file_of_several_runs_is_read_run_by_run(tmp_path, config):
    path = tmp_path / "all.csv"
    path.write_text("run_id,step,eval_reward\nx,2,0.1\ny,2,0.5\nx,4,0.2\ny,4,0.6\n")
    evals, _ = read(config, path, seed="auto")
    assert evals.sort("seed", "step")["avg_at_4"].to_list() == [0.1, 0.2, 0.5, 0.6]
    with pytest.raises(BudgetError, match=r"\(x\) and .*\(y\) have one"):
        read(config, path)


def test_a_file_that_interleaves_two_runs_is_refused(tmp_path, config):
    path = rewards(tmp_path / "log.jsonl", {2: 0.1})
    for more in ({2: 0.5}, {4: 0.2}, {4: 0.6}):
        append(path, more)
    with pytest.raises(BudgetError, match="step 2 after step 2"):
        read(config, path)


def test_of_a_run_that_went_back_to_a_checkpoint_the_later_attempt_counts(tmp_path, config):
    path = rewards(tmp_path / "log.jsonl", {2: 0.1, 4: 0.2, 6: 0.3, 8: 0.4})
    append(path, {6: 0.35, 8: 0.45})
    evals, notes = read(config, path)
    assert evals["avg_at_4"].to_list() == [0.1, 0.2, 0.35, 0.45]
    assert any("went back to step 6" in note for note in notes)
    # Killed again before it came as far: what the first attempt did beyond was lost.
    append(path, {4: 0.25})
    assert read(config, path)[0]["avg_at_4"].to_list() == [0.1, 0.25]
    append(path, {4: 0.3, 6: 0.4})
    assert read(config, path)[0]["avg_at_4"].to_list() == [0.1, 0.3, 0.4]


def test_a_folder_of_several_trainer_states_is_several_runs(tmp_path, config):
    # The newest file is not the furthest one once a folder has been copied.
    for checkpoint, by_step in (
        ("a/checkpoint-10", {5: 0.1, 10: 0.2}),
        ("a/checkpoint-5", {5: 0.1}),
        ("b/checkpoint-5", {5: 0.6}),
    ):
        path = tmp_path / "out" / checkpoint / "trainer_state.json"
        path.parent.mkdir(parents=True)
        history = [{"step": step, "eval_reward": reward} for step, reward in by_step.items()]
        path.write_text(json.dumps({"global_step": max(by_step), "log_history": history}))
    evals, _ = read(config, tmp_path / "out", seed="auto")
    assert evals.sort("seed", "step")["avg_at_4"].to_list() == [0.1, 0.2, 0.6]
    with pytest.raises(BudgetError, match="have one seed, 42"):
        read(config, tmp_path / "out")


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


@pytest.mark.slow
@pytest.mark.parametrize("name", ["config.json", "config.yaml", "config.toml"])
def test_a_configuration_that_cannot_be_read_is_named(name, tmp_path):
    log = rewards(tmp_path / "log.jsonl", {2: 0.1})
    for content in (b"\xff\xfe\x00", b"{[", b"- 1\n- 2\n", b"[" * 5_000):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(BudgetError, match=name):
            read(tmp_path / name, log)


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


def test_a_configuration_may_be_toml_or_what_wandb_keeps(tmp_path):
    toml = "".join(f"{key} = {value}\n" for key, value in VERL.items())
    assert ingested(tmp_path, "verl", VERL_ROW, toml, form="toml")[0]["rollouts"].to_list() == [64]
    kept = {key: {"desc": None, "value": value} for key, value in VERL.items()}
    assert ingested(tmp_path, "verl", VERL_ROW, kept)[0]["rollouts"].to_list() == [64]


def test_a_default_that_a_configuration_leaves_out_is_noted(tmp_path):
    _, notes = ingested(tmp_path, "verl", VERL_ROW, VERL)
    assert "actor_rollout_ref.actor.ppo_epochs is not set; the default of 1 is assumed" in notes
    # Without a configuration there is nothing that could have left it out.
    with pytest.raises(BudgetError, match=r"ppo_epochs is not known"):
        ingest("verl", [str(tmp_path / "log.jsonl")], constants={k: str(v) for k, v in VERL.items()})


def test_verls_v1_trainer_fetches_a_batch_in_pieces(tmp_path):
    pieces = {**VERL, "data.gen_batch_size": 2}
    evals, _ = ingested(tmp_path, "verl", VERL_ROW, {**pieces, "trainer.use_v1": True})
    assert evals["rollouts"].to_list() == [64]
    with pytest.raises(BudgetError, match=r"gen_batch_size is 2 .*8"):
        ingested(tmp_path, "verl", VERL_ROW, {**pieces, "trainer.use_v1": False})


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
def test_a_setting_that_cannot_be_is_named(config, row, given, message, tmp_path):
    with pytest.raises(BudgetError, match=message):
        ingested(tmp_path, "openrlhf", json.dumps({**OPENRLHF_ROW, **row}), {**OPENRLHF, **config}, **given)


NAMES = [
    "step",
    "_step",
    "Step",
    "train/global_step",
    "eval/global_step",
    "training/global_step",
    "data",
    "run_id",
    "eval_reward",
    "eval/reward",
    "completions/mean_length",
    "val-core/m/acc/mean@4",
    "train/num_gen_batches",
    "training/filter_groups/evicted_samples",
    "eval/eval_m_pass1",
    "train/dynamic_filtering_pass_rate",
    "eval/m/avg@4",
    "eval/m/pass@1",
    "progress/rollouts",
    "progress/tokens",
]
odd = st.one_of(
    st.sampled_from(["", "x", "nan", "inf", "-1", "1e300", "true", "0.5", "2026-01-01"]),
    st.none(),
    st.booleans(),
    st.text(max_size=3),
    st.just(10**400),
    st.floats(),
    st.integers(-2, 10**20),
    st.lists(st.integers(), max_size=2),
    st.dictionaries(st.sampled_from(NAMES), st.floats(0, 1)),
)
shares = {name: st.sampled_from([0.25, 0.5, 1.0]) for name in NAMES[8:]}
row = st.fixed_dictionaries({"step": st.integers(1, 6)}, optional=shares)
# Rows that could have been logged, sorted by their step, of which some cells then hold anything.
log_rows = st.lists(row, min_size=1, max_size=6, unique_by=lambda logged: logged["step"])
cells = st.lists(st.tuples(st.integers(0, 5), st.sampled_from(NAMES), odd), max_size=2)
quick = settings(max_examples=40, deadline=None)
ALL = {**TRL, **VERL, **OPENRLHF, **PRIME_RL}


@pytest.mark.slow
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from(["verl", "trl", "openrlhf", "prime-rl"]), log_rows, cells, st.booleans(), st.booleans())
def test_logs_of_anything_are_a_table_or_a_clear_error(trainer, rows, cells, torn, table):
    rows.sort(key=lambda logged: logged["step"])
    for index, name, value in cells:
        rows[index % len(rows)][name] = value
    if table:
        header = sorted({name for logged in rows for name in logged})
        csv = [",".join(str(logged.get(name, "")) for name in header) for logged in rows]
        content = "\n".join([",".join(header), *csv]) + "\n"
    else:
        content = "".join(json.dumps(logged) + "\n" for logged in rows) + '{"step": 9, "eva' * torn
    # Any other exception is a failure.
    with TemporaryDirectory() as folder, suppress(BudgetError, tables.TableError):
        file = "log.csv" if table else "log.jsonl"
        known = {} if trainer == "trl" else {"rollouts_per_step": "32"}
        evals, _ = ingested(Path(folder), trainer, content, ALL, file=file, **known)
        assert tables.check(evals, "evals", where="memory").equals(evals)


@pytest.mark.parametrize(
    ("name", "value"),
    [("rollouts_per_step", "9007199254740991"), ("seed", "1e30"), ("seed", "one"), ("questions", "99999999999")],
)
def test_a_setting_beyond_all_counts_is_refused(name, value, tmp_path):
    log = '{"step": 1000000, "val-core/m/acc/mean@4": 0.5}\n'
    with pytest.raises((BudgetError, tables.TableError), match=r"(rollouts|seed|questions)"):
        ingested(tmp_path, "verl", log, VERL, **{name: value})


LENGTH = {"eval_reward": 0.5, "completions/mean_length": 5.0}


@pytest.mark.parametrize(
    ("trainer", "steps", "metrics", "message"),
    [
        ("verl", (1, 2), {"val-core/m/acc/mean@4": 0.5, "train/num_gen_batches": 1e300}, "impossible"),
        ("verl", (1, 2), {"val-core/m/acc/mean@4": 0.5, "train/num_gen_batches": -2}, "impossible"),
        ("verl", (1, 2), {"val-core/m/acc/mean@4": 0.5, "response_length/mean": -5.0}, "not a length"),
        ("trl", (1, 2), {"eval_reward": 0.5, "completions/mean_length": 1e300}, "not a length"),
        ("openrlhf", (1, 2), {"eval/eval_m_pass1": 0.5, RATE: 1e-300}, "impossible"),
        (
            "prime-rl",
            (1, 2),
            {"eval/m/avg@4": 0.5, "eval/m/pass@1": 0.5, "progress/tokens": -1e300, "progress/rollouts": 32},
            "impossible",
        ),
        # Refused before its steps are walked through.
        ("trl", (1, 10**9), LENGTH, "logs step 1,000,000,000, and no run has more"),
        ("trl", (1, 50_000), {**LENGTH, "epoch": 1e-9}, "epoch is 1e-09 after 50,000 "),
    ],
)
def test_a_count_that_cannot_be_is_refused(trainer, steps, metrics, message, tmp_path):
    log = "".join(json.dumps({"step": step, **metrics}) + "\n" for step in steps)
    with pytest.raises(BudgetError, match=message):
        ingested(tmp_path, trainer, log, ALL)


def progress(name, source, shared, given=None):
    (log,) = read_logs(str(source), trainer(name).logs.layout)
    return progress_of(trainer(name), log, shared, given or {})[0]


@pytest.mark.parametrize(
    ("name", "source", "config"),
    [
        ("trl", DOCS / "n4", None),
        ("trl", FIXTURES / "wandb" / "run.wandb", None),
        ("verl", FIXTURES / "verl" / "run.jsonl", FIXTURES / "verl" / "config.json"),
    ],
)
def test_progress_is_that_of_the_evaluations(name, source, config):
    given = {} if config is None else QUESTIONS
    evals, _ = ingest(name, [str(source)], config=config, constants=given)
    counts = progress(name, source, plain(load(config)) if config else {}, given)
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


def test_the_batch_that_trl_generates_next_follows_its_schedule(tmp_path):
    made = {"completions/mean_length": 3.0}
    for steps, following in ((1, 0), (2, 16), (3, 0)):
        rows = [{"step": s, "loss": 0.1, **(made if s % 2 else {})} for s in range(1, steps + 1)]
        twice = {**TRL, "num_iterations": 2}
        log = lines(tmp_path / "log.jsonl", rows)
        assert progress("trl", log, twice, {"problems": "100"}).following == following


@quick
@given(st.dictionaries(st.sampled_from(["a", "openai/gsm8k", "b/c/d", "e"]), st.integers(1, 60), min_size=1), st.data())
def test_each_problem_set_has_a_number_of_problems_of_its_own(questions, data):
    metrics = {
        f"val-core/{name}/acc/mean@4": data.draw(st.integers(0, 4 * q)) / (4 * q) for name, q in questions.items()
    }
    given = {f"questions.{name}": str(number) for name, number in questions.items()}
    with TemporaryDirectory() as folder:
        path = lines(Path(folder) / "log.jsonl", [{"step": 1, **metrics}])
        (Path(folder) / "config.json").write_text(json.dumps(VERL))
        say = lambda **said: ingest("verl", [str(path)], config=Path(folder) / "config.json", constants=said)[0]  # noqa: E731
        evals = say(**given)
        assert dict(evals.select("problem_set", "questions").iter_rows()) == questions
        alone = next(iter(questions))
        if len(questions) == 1:
            assert say(questions=str(questions[alone])).drop("run_id").equals(evals.drop("run_id"))
        else:
            with pytest.raises(BudgetError, match=r"one number for the problem sets .*questions\."):
                say(questions=str(questions[alone]))
            with pytest.raises(BudgetError, match=rf"questions\.{re.escape(alone)} is not known"):
                say(**{k: v for k, v in given.items() if k != f"questions.{alone}"})
        with pytest.raises(BudgetError, match=r"no setting questions\.else"):
            say(**given, **{"questions.else": "30"})
