"""Configurations as loggers and people leave them, and what is refused in them."""

import json
from pathlib import Path
from typing import Any

import pytest
from isocompute.budget import BudgetError
from isocompute.budget.trainers.evals import ingest
from reading_logs import ingested

VERL: dict[str, Any] = {
    "data": {"train_batch_size": 8},
    "actor_rollout_ref": {"rollout": {"n": 4}, "actor": {"ppo_mini_batch_size": 8}},
}
OPENRLHF: dict[str, Any] = {
    "n_samples_per_prompt": 4,
    "rollout_batch_size": 8,
    "train_batch_size": 32,
    "max_epochs": 1,
    "eval_n_samples_per_prompt": 4,
}
VERL_ROW = {"step": 2, "val-core/m/acc/mean@4": 0.5}
OPENRLHF_ROW = {"eval/global_step": 2, "eval/eval_m_pass1": 0.5}


def read(folder, trainer, row, config, **options):
    return ingested(folder, trainer, json.dumps(row) + "\n", config, **options)


def test_a_configuration_may_be_toml_or_what_wandb_keeps(tmp_path):
    toml = "[data]\ntrain_batch_size = 8\n[actor_rollout_ref.rollout]\nn = 4\n[actor_rollout_ref.actor]\n"
    evals, _ = read(tmp_path, "verl", VERL_ROW, f"{toml}ppo_mini_batch_size = 8\n", form="toml")
    assert evals["rollouts"].to_list() == [64]
    kept = {key: {"desc": None, "value": value} for key, value in VERL.items()}
    evals, _ = read(tmp_path, "verl", VERL_ROW, kept)
    assert evals["rollouts"].to_list() == [64]


def test_a_default_that_a_configuration_leaves_out_is_noted(tmp_path):
    _, notes = read(tmp_path, "verl", VERL_ROW, VERL)
    assert "actor_rollout_ref.actor.ppo_epochs is not set; the default of 1 is assumed" in notes
    # Without a configuration there is nothing that could have left it out.
    given = {
        "actor_rollout_ref.rollout.n": "4",
        "data.train_batch_size": "8",
        "actor_rollout_ref.actor.ppo_mini_batch_size": "8",
    }
    with pytest.raises(BudgetError, match=r"ppo_epochs is not known"):
        ingest("verl", [str(tmp_path / "log.jsonl")], constants={"questions": "16", **given})


def test_verls_v1_trainer_fetches_a_batch_in_pieces(tmp_path):
    pieces = {**VERL, "data": {"train_batch_size": 8, "gen_batch_size": 2}}
    evals, _ = read(tmp_path, "verl", VERL_ROW, {**pieces, "trainer": {"use_v1": True}})
    assert evals["rollouts"].to_list() == [64]
    with pytest.raises(BudgetError, match=r"gen_batch_size is 2 .*8"):
        read(tmp_path, "verl", VERL_ROW, {**pieces, "trainer": {"use_v1": False}})


@pytest.mark.parametrize(
    ("config", "given", "message"),
    [
        ({"vllm_generate_batch_size": 32}, {}, "32 prompts are generated at once for batches of 8"),
        ({"dynamic_filtering": "perhaps"}, {}, "dynamic_filtering is 'perhaps'; it must be true or false"),
        ({}, {"n_samples_per_prompt": "2.5"}, "n_samples_per_prompt is 2.5; it must be a whole number of at least 1"),
        ({"rollout_batch_size": None}, {}, "rollout.batch_size is not known"),
        ({"rollout_batch_size": True}, {}, "rollout_batch_size is True; it must be a whole number of at least 1"),
    ],
)
def test_a_setting_that_cannot_be_is_named(config, given, message, tmp_path):
    with pytest.raises(BudgetError, match=message):
        read(tmp_path, "openrlhf", OPENRLHF_ROW, {**OPENRLHF, **config}, **given)


@pytest.mark.parametrize(
    ("rate", "said", "message"),
    [
        (80.0, "groups", "pass_rate_of is 'groups'; it must be prompts or responses"),
        (320.0, "prompts", "is 320, which is not a percentage of prompts"),
    ],
)
def test_a_pass_rate_that_cannot_be_is_named(rate, said, message, tmp_path):
    row = {**OPENRLHF_ROW, "train/dynamic_filtering_pass_rate": rate}
    with pytest.raises(BudgetError, match=message):
        read(tmp_path, "openrlhf", row, OPENRLHF, pass_rate_of=said)
    # One response a prompt: the two are the same.
    single = {**OPENRLHF, "n_samples_per_prompt": 1, "train_batch_size": 8}
    row = {**OPENRLHF_ROW, "eval/global_step": 1, "train/dynamic_filtering_pass_rate": 50.0}
    assert read(tmp_path, "openrlhf", row, single)[0]["rollouts"].to_list() == [16]


def test_logs_and_file_that_differ_are_refused(tmp_path):
    events = Path(__file__).parents[1] / "fixtures" / "trl" / "events"
    (tmp_path / "config.json").write_text(json.dumps({"num_generations": 8}))
    with pytest.raises(BudgetError, match=r"num_generations is 4 .*8"):
        ingest("trl", [str(events)], config=tmp_path / "config.json", constants={"questions": "16"})
    evals, _ = ingest("trl", [str(events)], constants={"questions": "16"})
    assert evals["rollouts"].to_list() == [32, 64, 96]
    (single,) = events.iterdir()
    assert ingest("trl", [str(single)], constants={"questions": "16"})[0].equals(evals)
