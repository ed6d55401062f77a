"""Whatever a log holds, it is a table or one clear error."""

import json
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from isocompute.budget import BudgetError
from isocompute.budget.contract import tables
from isocompute.budget.trainers.evals import ingest

pytestmark = pytest.mark.slow("random logs")

CONFIG = {
    "num_generations": 4,
    "num_generations_eval": 4,
    "per_device_train_batch_size": 8,
    "gradient_accumulation_steps": 2,
    "steps_per_generation": 2,
    "generation_batch_size": 16,
    "num_iterations": 1,
    "data": {"train_batch_size": 8},
    "actor_rollout_ref": {"rollout": {"n": 4}, "actor": {"ppo_mini_batch_size": 8}},
    "rollout": {"n_samples_per_prompt": 4, "batch_size": 8},
    "train": {"batch_size": 32},
    "eval": {"n_samples_per_prompt": 4},
    "group_size": 4,
    "batch_size": 32,
}
NAMES = (
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
    "progress/rollouts",
    "progress/tokens",
)

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
log_rows = st.lists(row, min_size=1, max_size=6, unique_by=lambda found: found["step"])
cells = st.lists(st.tuples(st.integers(0, 5), st.sampled_from(NAMES), odd), max_size=2)
frameworks = st.sampled_from(["verl", "trl", "openrlhf", "prime-rl"])
often = settings(max_examples=240, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def checked(trainer, name, content):
    with TemporaryDirectory() as folder:
        log, config = Path(folder) / name, Path(folder) / "config.json"
        log.write_text(content)
        config.write_text(json.dumps(CONFIG))
        # Any other exception is a failure.
        with suppress(BudgetError, tables.TableError):
            given = {"questions": "9", "rollouts_per_step": "32"}
            evals, _ = ingest(trainer, [str(log)], config=config, constants=given)
            assert tables.check(evals, "evals", where="memory").equals(evals)


@often
@given(trainer=frameworks, rows=log_rows, cells=cells, torn=st.booleans(), table=st.booleans())
def test_logs_of_anything_are_a_table_or_a_clear_error(trainer, rows, cells, torn, table):
    rows.sort(key=lambda found: found["step"])
    for index, name, value in cells:
        rows[index % len(rows)][name] = value
    if table:
        header = sorted({name for found in rows for name in found})
        lines = [",".join(str(found.get(name, "")) for name in header) for found in rows]
        checked(trainer, "log.csv", "\n".join([",".join(header), *lines]) + "\n")
    else:
        checked(trainer, "log.jsonl", "".join(json.dumps(found) + "\n" for found in rows) + '{"step": 9, "eva' * torn)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("rollouts_per_step", "9007199254740991"),
        ("seed", "1e30"),
        ("seed", "one"),
        ("seed", "0.5"),
        ("questions", "99999999999"),
    ],
)
def test_a_setting_beyond_all_counts_is_refused(name, value, tmp_path):
    log, config = tmp_path / "log.jsonl", tmp_path / "config.json"
    log.write_text('{"step": 1000000, "val-core/m/acc/mean@4": 0.5}\n')
    config.write_text(json.dumps(CONFIG))
    with pytest.raises((BudgetError, tables.TableError), match=r"(rollouts|seed|questions)"):
        ingest("verl", [str(log)], config=config, constants={"questions": "9", name: value})


@pytest.mark.parametrize(
    ("trainer", "metrics"),
    [
        ("verl", {"val-core/m/acc/mean@4": 0.5, "train/num_gen_batches": 1e300}),
        ("verl", {"val-core/m/acc/mean@4": 0.5, "train/num_gen_batches": -2}),
        ("verl", {"val-core/m/acc/mean@4": 0.5, "response_length/mean": -5.0}),
        ("trl", {"eval_reward": 0.5, "completions/mean_length": 1e300}),
        ("openrlhf", {"eval/eval_m_pass1": 0.5, "train/dynamic_filtering_pass_rate": 1e-300}),
        ("prime-rl", {"eval/m/avg@4": 0.5, "progress/tokens": -1e300, "progress/rollouts": 32}),
    ],
)
def test_a_count_that_cannot_be_is_refused(trainer, metrics, tmp_path):
    log, config = tmp_path / "log.jsonl", tmp_path / "config.json"
    log.write_text("".join(json.dumps({"step": step, **metrics}) + "\n" for step in (1, 2)))
    config.write_text(json.dumps(CONFIG))
    with pytest.raises(BudgetError, match=r"impossible|not a length"):
        ingest(trainer, [str(log)], config=config, constants={"questions": "9"})


@pytest.mark.parametrize(
    ("step", "epoch", "message"),
    [(10**9, None, "logs step 1,000,000,000, and no run has more"), (50_000, 1e-9, "epoch is 1e-09 after 50,000 ")],
)
def test_a_run_longer_than_any_is_refused_before_its_steps_are_walked_through(step, epoch, message, tmp_path):
    log, config = tmp_path / "log.jsonl", tmp_path / "config.json"
    row = {"eval_reward": 0.5, "completions/mean_length": 5.0} | ({} if epoch is None else {"epoch": epoch})
    log.write_text("".join(json.dumps({"step": s, **row}) + "\n" for s in (1, step)))
    config.write_text(json.dumps(CONFIG))
    with pytest.raises(BudgetError, match=message):
        ingest("trl", [str(log)], config=config, constants={"questions": "9"})
