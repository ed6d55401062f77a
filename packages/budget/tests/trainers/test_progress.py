"""What a run generated, step by step: at evaluations it is what the ``evals`` table says."""

import json

import pytest
from isocompute.budget.trainers.evals import ingest, plain, progress_of
from isocompute.budget.trainers.logs.sources import read_logs
from isocompute.budget.trainers.registry import trainer
from isocompute.budget.trainers.settings import load
from reading_logs import FIXTURES, QUESTIONS

DOCS = FIXTURES.parents[1] / "docs" / "trl"
OPENRLHF = {
    "rollout.n_samples_per_prompt": 4,
    "rollout.batch_size": 8,
    "train.batch_size": 32,
    "train.max_epochs": 1,
    "eval.n_samples_per_prompt": 2,
    "algo.dynamic_filtering_enable": True,
}
PRIME = {"orchestrator.batch_size": 32, "orchestrator.group_size": 4, "max_steps": 10}


def progress(name, source, shared, given=None):
    (log,) = read_logs(str(source), trainer(name).logs.layout)
    return progress_of(trainer(name), log, shared, given or {})[0]


def written(folder, rows):
    path = folder / "log.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


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
    found = progress(name, source, plain(load(config)) if config else {}, given)
    at = {point.step: (point.rollouts, point.tokens) for point in found.points}
    compared = [row for row in evals.iter_rows(named=True) if row["step"] in at]
    assert compared
    assert all(at[row["step"]] == (row["rollouts"], row["tokens"]) for row in compared)


def test_filtered_prompts_of_openrlhf_are_in_its_progress(tmp_path):
    rows = [
        {"train/global_step": s, "train/dynamic_filtering_pass_rate": 200.0, "train/response_length": 5.0}
        for s in (1, 2, 3)
    ]
    found = progress("openrlhf", written(tmp_path, rows), OPENRLHF)
    # Half of the prompts passed: 200 responses of the 400 of 100 prompts.
    assert [point.rollouts for point in found.points] == [64, 128, 192]
    assert (found.plain, dict(found.more), found.following) == (96, {"refill": 96}, 64)


def test_every_rollout_of_prime_rl_is_in_its_progress(tmp_path):
    rows = [{"step": s, "progress/rollouts": 32 + 4 * s, "progress/tokens": 320} for s in (1, 2, 3)]
    found = progress("prime-rl", written(tmp_path, rows), PRIME)
    assert [(point.step, point.rollouts) for point in found.points] == [(1, 36), (2, 76), (3, 120)]
    assert (found.plain, dict(found.more), found.following) == (96, {"refill": 24}, 44)


def test_the_batch_that_trl_generates_next_follows_its_schedule(tmp_path):
    settings = {
        "num_generations": 2,
        "per_device_train_batch_size": 4,
        "gradient_accumulation_steps": 1,
        "steps_per_generation": 1,
        "generation_batch_size": 4,
        "num_iterations": 2,
        "max_steps": 20,
    }
    for steps, following in ((1, 0), (2, 4), (3, 0)):
        rows = [
            {"step": s, "loss": 0.1, **({"completions/mean_length": 3.0} if s % 2 else {})} for s in range(1, steps + 1)
        ]
        given = {"problems": "100"}
        assert progress("trl", written(tmp_path, rows), settings, given).following == following
