"""Whose a log is: each is that of the trainer that left it, and no other trainer takes it for its own."""

import pytest
from isocompute.budget import BudgetError
from isocompute.budget.trainers.doctor import Given, examine
from isocompute.budget.trainers.logs.sources import read_logs
from isocompute.budget.trainers.registry import TRAINERS
from isocompute.budget.trainers.search import log_sources
from reading_logs import FIXTURES, lines, logged_run

SWIFT = {"completions/mean_length": 2.0, "reward": 0.5, "rewards/right/mean": 0.5, "loss": 0.1, "memory(GiB)": 1.0}
LOGS = {
    "trl": list(logged_run()),
    "swift": [{"global_step/max_steps": f"{step}/9", "train_speed(iter/s)": 0.1, **SWIFT} for step in (1, 2)],
    "verl": [{"step": 1, "training/global_step": 1, "response_length/mean": 5.0, "val-core/m/acc/mean@4": 0.5}],
    "openrlhf": [
        {"train/global_step": 1, "train/response_length": 5.0, "train/reward": 0.5, "train/return": 0.5},
        {"eval/global_step": 1, "eval/eval_math_pass1": 0.5, "eval/eval_math_pass4": 0.8},
    ],
    "prime-rl": [
        {"step": 1, "progress/rollouts": 8, "progress/tokens": 80, "reward/all/mean": 0.5},
        {"step": 2, "eval/math/avg@4": 0.5, "eval/math/pass@4": 0.8, "eval/math/completion_len/mean": 7.0},
    ],
    "skyrl": [
        {"_step": 0, "eval/math/avg_score": 0.5, "eval/math/pass_at_4": 0.8, "eval/all/generate/avg_num_tokens": 5.0},
        {"_step": 1, "trainer/global_step": 1, "reward/avg_pass_at_4": 0.5, "generate/avg_num_tokens": 5.0},
    ],
    "tinker": [
        {"step": 0, "progress/batch": 0, "optim/lr": 1e-5, "test/env/all/reward/total": 0.5},
        {"step": 1, "env/all/total_episodes": 8, "env/all/total_ac_tokens": 80, "env/all/reward/total": 0.5},
    ],
    "slime": [
        {"eval/step": 0, "eval/aime": 0.5, "eval/aime-pass@4": 0.8, "eval/aime-truncated_ratio": 0.1},
        {"rollout/step": 0, "rollout/response_len/mean": 5.0, "rollout/truncated_ratio": 0.1},
        {"train/step": 0, "train/loss": 0.1, "train/grad_norm": 1.0},
    ],
}


def claimed(source):
    """The trainers in whose layout a log can be read, and whose marks it has."""
    found = set()
    for name, known in TRAINERS.items():
        if known.logs is None:
            continue
        try:
            logs = [log for one in log_sources(str(source))[0] for log in read_logs(one, known.logs.layout)]
        except BudgetError:
            continue
        keys = {key for log in logs for key in (*log.config, *(k for _, metrics in log.rows for k in metrics))}
        found |= {name} if any(map(known.logs.marks.match, keys)) else set()
    return found


@pytest.mark.parametrize("name", [name for name, known in TRAINERS.items() if known.logs])
def test_a_log_is_of_one_trainer(tmp_path, name):
    log = lines(tmp_path / "log.jsonl", LOGS[name])
    # ms-swift logs what TRL does, in a file without TRL's steps.
    assert claimed(log) == {name}
    assert [patient.trainer.name for patient in examine([str(tmp_path)], Given()).patients] == [name]


@pytest.mark.parametrize(
    ("source", "name"), [("trl/events", "trl"), ("trl", "trl"), ("wandb", "trl"), ("verl/run.jsonl", "verl")]
)
def test_a_recorded_log_is_of_one_trainer(source, name):
    assert claimed(FIXTURES / source) == {name}
