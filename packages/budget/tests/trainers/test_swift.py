"""ms-swift's logs, against a simulation of TRL's trainer that writes its log file."""

import json
import random
import sqlite3
from pathlib import Path
from tempfile import TemporaryDirectory

import polars as pl
import pytest
from hypothesis import given
from hypothesis import settings as profile
from hypothesis import strategies as st
from isocompute.budget import BudgetError
from isocompute.budget.cli import main
from isocompute.budget.trainers.evals import ingest
from isocompute.budget.trainers.registry import read
from reading_logs import lines

quick = profile(max_examples=40, deadline=None)
SIZES = {"rlhf_type": "grpo", "num_generations": 4, "per_device_train_batch_size": 2, "global_world_size": 2, "seed": 7}


def run_of(folder, seed, *, steps, accumulated, kept, **other):
    """A run: each generation batch serves ``kept`` micro-steps, and every optimizer step takes ``accumulated``.

    Returns:
        The log, the settings beside it, and the rollouts and tokens after each step.
    """
    rng, batch = random.Random(seed), 4 * kept
    settings = {
        **SIZES,
        "gradient_accumulation_steps": accumulated,
        "steps_per_generation": kept,
        "max_steps": steps,
        "num_generations_eval": 2,
        "per_device_eval_batch_size": 2,
        **other,
    }
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
    log = lines(folder / "logging.jsonl", rows)
    (folder / "args.json").write_text(json.dumps(settings))
    return log, folder / "args.json", truth


@quick
@given(
    seed=st.integers(0, 10**6), steps=st.integers(1, 6), accumulated=st.sampled_from([1, 2, 4]), kept=st.integers(1, 4)
)
def test_the_number_before_the_slash_is_the_step_and_the_batches_are_trls(**sizes):
    with TemporaryDirectory() as folder:
        log, config, truth = run_of(Path(folder), **sizes)
        evals, _ = ingest("swift", [str(log)], config=config)
        assert evals["step"].to_list() == list(range(1, sizes["steps"] + 1))
        assert evals["rollouts"].to_list() == [rollouts for rollouts, _ in truth]
        assert evals["tokens"].to_list() == pytest.approx([tokens for _, tokens in truth], abs=1)
        assert evals["seed"].unique().to_list() == [7]


def test_what_resampling_generated_is_asked_for(tmp_path):
    log, config, _ = run_of(tmp_path, 0, steps=3, accumulated=2, kept=2, dynamic_sample=True)
    with pytest.raises(BudgetError, match="--set rollouts_per_step="):
        ingest("swift", [str(log)], config=config)
    evals, _ = ingest("swift", [str(log)], config=config, constants={"rollouts_per_step": "20"})
    assert evals["rollouts"].to_list() == [20, 40, 60]


def test_a_run_that_trl_logged_is_known_by_its_settings(tmp_path, capsys):
    log, config, truth = run_of(tmp_path / "run", 0, steps=3, accumulated=2, kept=2)
    rows = [json.loads(line) for line in log.read_text().splitlines()]
    for row in rows:
        row["global_step"] = int(row.pop("global_step/max_steps").split("/")[0])
        del row["memory(GiB)"], row["train_speed(s/it)"]
    log.unlink()
    lines(tmp_path / "run" / "other.jsonl", rows)
    given = ["--config", str(config), "--set", "world_size=2"]
    assert main(["doctor", str(tmp_path / "run"), "--out", str(tmp_path / "a"), *given]) == 0
    assert ": TRL\n" in capsys.readouterr().out
    # What tells is the configuration that a log holds.
    with sqlite3.connect(tmp_path / "p.db") as database:
        database.execute("CREATE TABLE metrics (id INTEGER PRIMARY KEY, run_id TEXT, run_name TEXT, metrics TEXT)")
        database.execute("CREATE TABLE configs (id INTEGER PRIMARY KEY, run_id TEXT, config TEXT)")
        database.execute("INSERT INTO configs (run_id, config) VALUES ('a', ?)", [config.read_text()])
        for row in rows:
            database.execute("INSERT INTO metrics (run_id, run_name, metrics) VALUES ('a', 'r', ?)", [json.dumps(row)])
    assert main(["doctor", str(tmp_path / "p.db"), "--out", str(tmp_path / "b")]) == 0
    assert ": ms-swift\n" in capsys.readouterr().out
    assert pl.read_parquet(tmp_path / "b" / "evals.parquet")["rollouts"].to_list() == [r for r, _ in truth]


def test_the_rewards_of_training_are_offered_where_there_is_no_evaluation(tmp_path, capsys):
    log, config, truth = run_of(tmp_path / "run", 0, steps=4, accumulated=2, kept=2)
    lines(log, [row for row in map(json.loads, log.read_text().splitlines()) if "loss" in row])
    lines(tmp_path / "run" / "completions.jsonl", [{"prompt": "a", "step": 1, "reward": 1.0}])
    assert main(["doctor", str(tmp_path / "run"), "--config", str(config), "--out", str(tmp_path / "out")]) == 0
    assert "TRAINING REWARD" in capsys.readouterr().out
    evals = pl.read_parquet(tmp_path / "out" / "evals.parquet")
    assert evals["rollouts"].to_list() == [rollouts for rollouts, _ in truth]


def test_micro_batches_are_one_unless_they_are_set():
    found = read("swift", {"num_generations": 4, "gradient_accumulation_steps": 8, "max_steps": 5}, world_size=2)
    assert (found.problems_per_batch, found.rollouts_per_problem) == (4, 4)
    launched = read("swift", {"num_generations": 4, "gradient_accumulation_steps": 8, "NPROC_PER_NODE": 4, "NNODES": 2})
    assert launched.world_size == 8


def test_the_megatron_trainer_is_named(tmp_path):
    log = lines(tmp_path / "logging.jsonl", [{"iteration": "1/9", "train_speed(s/it)": 2.0, "eval_reward": 0.5}])
    config = lines(tmp_path / "args.json", [{"rlhf_type": "grpo", "num_generations": 4, "train_iters": 9}])
    with pytest.raises(BudgetError, match="Megatron"):
        ingest("swift", [str(log)], config=config)
