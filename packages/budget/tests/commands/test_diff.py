"""Two configurations, and what to set so that they train the same."""

import json
import shlex

import pytest
from isocompute.budget import Allocation
from isocompute.budget.cli import main
from isocompute.budget.commands.diff import SAME, changes, differing, side, trainer_of
from isocompute.budget.trainers.registry import TRAINERS, convert
from isocompute.budget.trainers.settings import RunPlan, flags

TRL = "--num_generations 8 --per_device_train_batch_size 16 --gradient_accumulation_steps 4 --max_steps 500"
VERL = (
    "data.train_batch_size=1024 actor_rollout_ref.rollout.n=8 actor_rollout_ref.actor.ppo_mini_batch_size=256 "
    "trainer.nnodes=1 trainer.n_gpus_per_node=8 trainer.total_training_steps=100 trainer.total_epochs=100"
)


def read(name, settings, world=None):
    values = flags(shlex.split(settings)) if isinstance(settings, str) else settings
    return side("settings", TRAINERS[name], values, world, None)


def planned(name, problems, n, steps, world):
    allocation = Allocation(problems_per_batch=problems, rollouts_per_problem=n, update_steps=steps)
    made = convert(name, RunPlan(allocation=allocation, world_size=world, learning_rate=1e-6 * n))
    return read(name, made.settings, world)


@pytest.mark.parametrize("known", TRAINERS)
def test_a_trainer_is_told_what_to_set_to_train_as_any_other_and_no_more(known):
    b = planned(known, 32, 4, 50, 4)
    # How far sampling is ahead is a setting of its own.
    figures = ("n", "B_p", "C", "updates", "rate", "steps")
    for other in TRAINERS:
        a = planned(other, 48, 16, 125, 8)
        for made in changes(a, b):
            every = [{}, *({k: v for k, v in made.items() if k != name} for name in made), made]
            alike = [
                all(then.figures[name] == a.figures[name] for name in figures) and not then.batching.inconsistent
                for then in (b.having({**b.values, **some}) for some in every)
            ]
            assert alike == [False] * (len(every) - 1) + [True]


@pytest.mark.parametrize("known", TRAINERS)
def test_whose_settings_they_are_is_found_out(known):
    assert trainer_of(planned(known, 32, 4, 50, 1).values, "settings").name == known


def test_twice_the_devices_double_the_batch_of_trl_unless_one_of_two_settings_is_halved():
    a, b = read("trl", TRL, 8), read("trl", TRL, 16)
    assert differing(a, b, SAME) == ["B_p", "C"]
    assert changes(a, b) == [{"gradient_accumulation_steps": 2}, {"per_device_train_batch_size": 8}]


def test_twice_the_devices_change_nothing_that_verl_trains():
    b = read("verl", VERL.replace("n_gpus_per_node=8", "n_gpus_per_node=16"))
    a = read("verl", VERL)
    assert (a.figures["devices"], b.figures["devices"]) == (8, 16)
    assert not differing(a, b, (*SAME, "steps"))


def test_several_updates_of_a_batch_are_carried_over_with_their_staleness():
    a, b = read("verl", VERL), read("trl", TRL, 8)
    assert (a.figures["updates"], a.figures["staleness"], a.figures["C"]) == (4, 3, 2048)
    for made in changes(a, b):
        then = b.having({**b.values, **made})
        assert (then.batching.problems_generated, then.figures["B_p"], then.figures["staleness"]) == (1024, 256, 3)
    twice = read("verl", f"{VERL} actor_rollout_ref.actor.ppo_epochs=2")
    for made in changes(twice, b):
        then = b.having({**b.values, **made})
        assert (made["num_iterations"], then.figures["C"], then.figures["updates"]) == (2, 1024, 8)


def test_a_batch_in_pieces_of_one_policy_is_one_batch():
    pieces = read("trl", f"{TRL} --steps_per_generation 1", 8)
    assert not differing(read("trl", TRL, 8), pieces, SAME)


@pytest.mark.parametrize(
    ("settings", "known", "staleness"),
    [
        ("orchestrator.batch_size=128 max_steps=10 group_size=8", "prime-rl", 8),
        (f"{VERL} trainer.v1.trainer_mode=colocate_async trainer.v1.colocate_async.num_warmup_batches=2", "verl", 11),
        (f"{VERL} trainer.v1.trainer_mode=colocate_async", "verl", None),
        ("--rollout.batch_size 64 --train.batch_size 512 --rollout.n_samples_per_prompt 8", "openrlhf", 0),
        ("--rollout.batch_size 64 --train.async_enable --train.batch_size 64", "openrlhf", None),
        # What stands in whole configurations.
        (f"{VERL} trainer.v1.colocate_async.num_warmup_batches=2", "verl", 3),
        ("--train.async_queue_size 1 --rollout.batch_size 128", "openrlhf", 0),
    ],
)
def test_staleness_counts_updates_within_a_batch_and_batches_ahead(settings, known, staleness):
    assert read(known, settings).figures["staleness"] == staleness


def test_the_command_writes_what_it_compares(tmp_path):
    out = tmp_path / "diff.json"
    more = f"--world-size 8 --gpus 2x --problems 8000 --strict --json {shlex.quote(str(out))}"
    assert main(shlex.split(f"diff {more} -- {TRL} --learning_rate 1e-6")) == 1
    document = json.loads(out.read_text())
    assert document["different"] == ["B_p", "C"]
    assert document["set_in_B"] == [{"gradient_accumulation_steps": 2}, {"per_device_train_batch_size": 8}]
    assert (document["A"]["epochs"], document["B"]["epochs"]) == (4, 8)


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        (f"--world-size 8 -- {TRL} --learning_rat 1e-6", "in both: learning_rat is no setting"),
        (f"-- {VERL.replace('rollout.n=', 'rollout.m=')}", "rollout.m is no setting that veRL's"),
    ],
)
def test_a_setting_that_looks_misspelt_is_named_in_both_or_in_one(capsys, settings, told):
    assert main(shlex.split(f"diff --gpus 2x {settings}")) == 0
    assert told in capsys.readouterr().out


def test_a_micro_batch_that_no_longer_divides_is_not_to_be_left_alone(capsys):
    micro = "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=256"
    more = "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=8"
    assert main(shlex.split(f"diff --gpus 2x -- {VERL} {micro} {more}")) == 0
    out = capsys.readouterr().out
    assert "leave alone, since they change memory and speed only: log_prob_micro_batch_size_per_gpu\n" in out
    assert "(256 prompts × 8 / 16); 128 would\n" in out


def test_a_rate_that_is_not_set_is_that_of_the_trainer_where_it_has_one(capsys):
    silent = read("trl", TRL, 8)
    assert not differing(silent, read("verl", f"{VERL} actor_rollout_ref.actor.optim.lr=1e-6"), ["rate"])
    assert differing(silent, read("trl", f"{TRL} --learning_rate 2e-6", 8), SAME) == ["rate"]
    # ms-swift's goes by what is tuned.
    assert read("swift", TRL, 8).figures["rate"] is None
    assert main(shlex.split(f"diff --world-size 8 --set learning_rate=1e-6 --strict -- {TRL}")) == 0
    assert "1e-06 (default)    1e-06\n" in capsys.readouterr().out


def test_two_files_are_compared_and_settings_that_are_not_are_named_where_they_differ(tmp_path, capsys):
    a, b = tmp_path / "a.sh", tmp_path / "b.sh"
    a.write_text(f"accelerate launch --num_processes 8 train.py {TRL.replace('16', '32')}\n")
    b.write_text(f"python -m verl.trainer.main_ppo {VERL.replace('256', '1024').replace('1024', '128')}\n")
    assert main(["diff", str(a), f"verl:{b}", "--strict"]) == 0
    assert "B trains as A does, for another number of steps" in capsys.readouterr().out
    a.write_text(a.read_text().strip() + " --bf16 true\n")
    b.write_text(a.read_text().strip() + " --beta 0.04\n")
    assert main(["diff", str(a), str(b), "--strict"]) == 0
    assert "not compared, and different: beta (None → 0.04)\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("diff run.sh", "there is one configuration"),
        ("diff run.sh run.sh run.sh", "compares two files"),
        ("diff run.sh run.sh -- --num_generations 4", "compares two files"),
        ("diff run.sh --gpus 0.5x", "--gpus is '0.5x'; it must be a number of devices such as 16, also for fewer"),
        ("diff run.sh --gpus 2x", "how many devices train now is not known"),
        ("diff other.sh --gpus 2x", "no setting of a trainer that is known"),
        ("diff none.sh --gpus 2x", "none.sh: cannot be read"),
        ("diff run.sh --set num_generation=16", "steps of TRL follow from it: did you mean num_generations?"),
        ("diff run.sh --gpus 2x --world-size -8", "--world-size is -8"),
        ("diff run.sh --gpus 2x --problems 0", "--problems is 0"),
        ("diff trl:other.sh --gpus 2x", "no setting of TRL"),
        ("diff --trainer tinker --gpus 2 -- group_size=4", "devices are the service's"),
        ("signal", "signal wants one of"),
        ("signal --pass-rate 1.5", "the pass rate is 1.5"),
        ("signal --pass-rate 30%", "the pass rate is 30%; it must be a share such as 0.3"),
        ("signal --pass-rate 0.5 --n 1", "group sizes must be from 2"),
        ("signal --histogram run.sh", "the first row must name the columns"),
        ("signal --histogram rates.csv", "row 3: a pass rate of 0.3 of 8 samples"),
        ("signal steps.csv", "steps.csv: n is not known"),
        ("signal steps.csv --set n=x", "n is x, and a group has 2 or more"),
        ("signal nowhere", "nowhere: no run of a trainer"),
        ("signal --pass-rates rates.csv", "lacks the columns"),
    ],
)
def test_a_wrong_command_is_one_sentence(tmp_path, monkeypatch, capsys, line, told):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.sh").write_text(f"trl grpo {TRL}\n")
    (tmp_path / "other.sh").write_text("echo --nothing 1\n")
    (tmp_path / "rates.csv").write_text("pass_rate,problems,samples\n0.25,3,8\n0.3,3,8\n")
    (tmp_path / "steps.csv").write_text("step,reward\n1,0.5\n2,0.6\n")
    assert main(shlex.split(line)) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert told in err
    assert err.count("\n") == 1
