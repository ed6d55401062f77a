"""Settings in files and on command lines."""

import json

import pytest
from isocompute.budget import Allocation, BudgetError
from isocompute.budget.cli import main
from isocompute.budget.trainers.registry import TRAINERS, convert, read
from isocompute.budget.trainers.settings import RunPlan, flags, load

SCRIPT = """#!/bin/bash
# data.train_batch_size=1
export CUDA_VISIBLE_DEVICES=0,1
python3 -m verl.trainer.main_ppo \\
    data.train_batch_size=64 \\
    actor_rollout_ref.rollout.n=8 +trainer.nnodes=1 \\
    actor_rollout_ref.actor.ppo_mini_batch_size=64 \\
    trainer.n_gpus_per_node=$GPUS trainer.total_training_steps=100 "$@"
"""


def test_a_launch_script_is_read_for_its_flags(tmp_path):
    path = tmp_path / "run.sh"
    path.write_text(SCRIPT)
    found = read("verl", load(path), problems=6400)
    assert found.allocation.rollouts == 64 * 8 * 100
    assert "trainer.n_gpus_per_node is $GPUS" in found.unknown[0]


def test_every_kind_of_file_holds_the_same_settings(tmp_path):
    settings = {"data.train_batch_size": 64, "trainer.nnodes": 1, "trainer.val": False}
    (tmp_path / "a.json").write_text(
        json.dumps({"data": {"train_batch_size": 64}, "trainer": {"nnodes": 1, "val": False}})
    )
    (tmp_path / "a.yaml").write_text("data:\n  train_batch_size: 64\ntrainer: {nnodes: 1, val: false}\n")
    (tmp_path / "a.toml").write_text("[data]\ntrain_batch_size = 64\n[trainer]\nnnodes = 1\nval = false\n")
    (tmp_path / "a.sh").write_text("data.train_batch_size=64 trainer.nnodes=1 trainer.val=False")
    for suffix in ("json", "yaml", "toml", "sh"):
        assert load(tmp_path / f"a.{suffix}") == settings


def test_flags_of_every_style_are_understood():
    words = "run @ rl.toml --max-steps 20 --trainer.lr=3e-6 --clean --nodes 4 4 ++a.b=null x=[1,2] -- left over"
    said = {"max_steps": 20, "trainer.lr": 3e-6, "clean": True, "nodes": [4, 4], "a.b": None, "x": [1, 2]}
    assert flags(words.split()) == said


def test_references_are_followed_and_circles_left_alone(tmp_path):
    path = tmp_path / "a.yaml"
    path.write_text("a: {b: '${c.d}', e: '${e.f}'}\nc: {d: 5}\nx: '${y}'\ny: '${x}'\n")
    assert load(path) == {"a.b": 5, "a.e": "${e.f}", "c.d": 5, "x": "${x}", "y": "${x}"}


def test_flags_override_the_file(tmp_path, capsys):
    (tmp_path / "a.json").write_text(json.dumps({"max_steps": 7, "num_generations": 8}))
    arguments = ["convert", "--from", "trl", "--world-size", "1", str(tmp_path / "a.json"), "--", "--max_steps", "9"]
    assert main(arguments) == 0
    assert "update steps          9\n" in capsys.readouterr().out


def test_settings_without_end_are_refused():
    endless, wide, deep = {}, {"max_steps": 5}, {"max_steps": 5}
    endless["a"] = [endless]
    for _ in range(20):
        wide = {"a": wide, "b": wide}
    for _ in range(5_000):
        deep = {"a": deep}
    for settings, said in ((endless, "contains itself"), (deep, "100 deep"), (wide, "100,000 keys")):
        with pytest.raises(BudgetError, match=f"the settings: .*{said}"):
            read("trl", settings)


@pytest.mark.parametrize("name", TRAINERS)
def test_a_misspelt_setting_is_named_with_the_one_that_it_stands_for(name):
    allocation = Allocation(problems_per_batch=32, rollouts_per_problem=8, update_steps=20)
    written = convert(name, RunPlan(allocation=allocation, world_size=4, learning_rate=1e-6)).settings
    ignored = read(name, written).ignored
    matter = [key for key in written if key not in ignored]
    assert len(matter) >= 4
    for key in matter:
        section, dot, own = key.rpartition(".")
        # A letter less; two that changed places; a section left out, unless an older release has the name without.
        slips = [own[:-2] + own[-1], own[:-3] + own[-2] + own[-3] + own[-1]] if len(own) > 4 else []
        for wrong in [*(section + dot + slip for slip in slips), *([own] if section else [])]:
            found = read(name, {**{k: v for k, v in written.items() if k != key}, wrong: written[key]})
            if wrong != own or wrong in found.ignored:
                assert any(remark.startswith(f"{wrong} ") and key in remark for remark in found.inconsistent)


def test_settings_that_are_ignored_are_counted_and_are_no_remark(capsys):
    settings = "--num_generations=8 --per_device_train_batch_size=8 --gradient_accumulation_steps=1 --max_steps=9"
    more = ["--learning_rate=1e-6", "--beta=0", "--eval_steps=5", "--per_device_eval_batch_size=2", "--model=none"]
    asked = ["convert", "--from", "trl", "--world-size", "1", "--strict", "--", *settings.split(), *more]
    assert main(asked) == 0
    out = capsys.readouterr().out
    assert "4 settings" in out
    assert "learning_rate" in out
    assert "did you mean" not in out
    assert main([*asked, "--num_generation=4"]) == 0
    assert "5 settings" in capsys.readouterr().out
