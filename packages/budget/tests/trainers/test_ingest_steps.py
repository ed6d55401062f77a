"""Which column of a log counts the trainer's steps: W&B's own counts calls of its logger."""

import json

import pytest
from isocompute.budget import BudgetError
from reading_logs import ingested

TRL = {
    "num_generations": 4,
    "num_generations_eval": 4,
    "per_device_train_batch_size": 8,
    "gradient_accumulation_steps": 2,
    "steps_per_generation": 2,
    "generation_batch_size": 16,
    "num_iterations": 1,
    "world_size": 1,
    "seed": 0,
}
VERL = {
    "data": {"train_batch_size": 16},
    "actor_rollout_ref": {"rollout": {"n": 4}, "actor": {"ppo_mini_batch_size": 16}},
}
OPENRLHF = {
    "rollout": {"n_samples_per_prompt": 4, "batch_size": 8},
    "train": {"batch_size": 32, "max_epochs": 1},
    "eval": {"n_samples_per_prompt": 4},
}


def counted(folder, trainer, config, log, *, name="log.csv", **given):
    return ingested(folder, trainer, log, config, file=name, **given)[0]["rollouts"].to_list()


# Logged every ten steps, and evaluated every twenty: W&B counts the calls.
EVERY_TEN = """_step,train/global_step,train/reward,eval/reward
0,10,0.1,
1,20,0.2,
2,20,,0.3
3,30,0.4,
4,40,0.5,
5,40,,0.6
"""


def test_the_trainers_step_goes_before_wandbs_count_of_log_calls(tmp_path):
    assert counted(tmp_path, "trl", TRL, EVERY_TEN) == [20 * 16, 40 * 16]


def test_the_trainers_step_is_found_in_lines_of_history(tmp_path):
    lines = [{"_step": k, "train/global_step": 10 * (k + 1), "eval/reward": 0.1 * k} for k in range(3)]
    log = "".join(json.dumps(line) + "\n" for line in lines)
    assert counted(tmp_path, "trl", TRL, log, name="log.jsonl") == [160, 320, 480]


@pytest.mark.parametrize("column", ["_step", "Step"])
@pytest.mark.parametrize(
    ("trainer", "config", "metric"),
    [
        ("trl", TRL, "eval/reward"),
        ("openrlhf", OPENRLHF, "eval/eval_math_pass1"),
        ("prime-rl", {"group_size": 4, "batch_size": 32}, "eval/math/avg@4"),
    ],
)
def test_wandbs_count_alone_is_asked_about(trainer, config, metric, column, tmp_path):
    log = f"{column},{metric}\n0,0.1\n1,0.2\n"
    with pytest.raises(BudgetError, match=rf"only by {column}, .*step_column="):
        counted(tmp_path, trainer, config, log)
    line = json.dumps({column: 1, metric: 0.5}) + "\n"
    with pytest.raises(BudgetError, match=rf"only by {column}, .*step_column="):
        counted(tmp_path, trainer, config, line, name="log.jsonl")


def test_the_column_of_steps_can_be_named(tmp_path):
    log = "Step,optimizer steps,eval/reward\n0,5,0.1\n1,10,0.2\n"
    assert counted(tmp_path, "trl", TRL, log, step_column="optimizer steps") == [80, 160]
    # Whoever says so is believed.
    assert counted(tmp_path, "trl", TRL, log, step_column="Step") == [0, 16]
    with pytest.raises(BudgetError, match="no column 'steps'"):
        counted(tmp_path, "trl", TRL, log, step_column="steps")


def test_verl_hands_wandb_its_own_step(tmp_path):
    # The row of the evaluation before training has no training/global_step.
    log = "_step,training/global_step,val-core/m/acc/mean@4\n0,,0.1\n5,5,0.2\n10,10,0.3\n"
    assert counted(tmp_path, "verl", VERL, log) == [0, 5 * 64, 10 * 64]


def test_openrlhf_counts_evaluations_in_a_column_of_their_own(tmp_path):
    log = (
        "Step,train/global_step,eval/global_step,train/response_length,eval/eval_math_pass1\n"
        "0,10,,5,\n1,20,,5,\n2,,20,,0.3\n3,30,,5,\n4,40,,5,\n5,,40,,0.4\n"
    )
    assert counted(tmp_path, "openrlhf", OPENRLHF, log) == [20 * 32, 40 * 32]


def test_prime_rl_logs_its_step_as_a_metric(tmp_path):
    # W&B's export has both: Step counts calls, of which an evaluation is one more.
    log = "Step,step,progress/rollouts,eval/math/avg@4\n0,1,,0.1\n1,1,40,\n2,2,50,\n3,3,,0.3\n4,3,60,\n"
    assert counted(tmp_path, "prime-rl", {"group_size": 4, "batch_size": 32}, log) == [0, 90]


@pytest.mark.parametrize(
    ("cell", "message"),
    [
        ("", "row 2 has no train/global_step"),
        ("ten", "row 2 has the train/global_step 'ten', which is not a whole number"),
        ("10.5", "row 2 has the train/global_step 10.5, which is not a whole number"),
        ("-1", "row 2 has the train/global_step -1"),
        ("inf", "row 2 has the train/global_step inf, which is not a whole number"),
    ],
)
def test_a_cell_that_is_not_a_step_names_its_row(cell, message, tmp_path):
    with pytest.raises(BudgetError, match=message):
        counted(tmp_path, "trl", TRL, f"train/global_step,eval/reward\n5,0.1\n{cell},0.2\n")


def test_a_row_without_a_step_that_holds_nothing_needed_is_passed_by(tmp_path):
    # Tables of completions, system metrics and the like are rows of their own.
    log = "_step,train/global_step,system/gpu,eval/reward\n0,5,,0.1\n1,,80,\n2,10,,0.2\n"
    assert counted(tmp_path, "trl", TRL, log) == [80, 160]


def test_a_column_of_steps_is_of_tables_alone(tmp_path):
    state = {"log_history": [{"step": 2, "eval_reward": 0.5}]}
    with pytest.raises(BudgetError, match="no column 'Step'"):
        counted(tmp_path, "trl", TRL, json.dumps(state), name="trainer_state.json", step_column="Step")
    with pytest.raises(BudgetError, match="no line has 'Step'"):
        counted(tmp_path, "trl", TRL, '{"step": 2, "eval_reward": 0.5}\n', name="log.jsonl", step_column="Step")
    lines = '{"Step": 2, "eval_reward": 0.5}\n{"Step": 4, "eval_reward": 0.6}\n'
    assert counted(tmp_path, "trl", TRL, lines, name="log.jsonl", step_column="Step") == [32, 64]
