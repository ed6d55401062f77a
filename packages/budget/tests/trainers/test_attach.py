"""Real TRL runs with a budget attached: the ledger is what their sampler made, and no limit is passed.

ISOCOMPUTE_ATTACHED_RUNS=50 asks for more of them: a fifth with two processes, a fifth killed and resumed.
"""

import json
import os
import random
import subprocess
import sys
import textwrap
from dataclasses import asdict
from pathlib import Path

import pytest
from isocompute.budget import BudgetError, History, LedgerError
from isocompute.budget.trl import Passes, attach
from reading_logs import settings

pytestmark = pytest.mark.slow("runs of TRL")

RUNS = int(os.environ.get("ISOCOMPUTE_ATTACHED_RUNS", "5"))
SEED = int(os.environ.get("ISOCOMPUTE_ATTACHED_SEED", "0"))

STOPPING = Path(__file__).parents[4] / "docs" / "stopping.md"

ARGS = settings(
    "num_generations=2 per_device_train_batch_size=4 gradient_accumulation_steps=2 num_iterations=2 logging_steps=100 "
    "max_completion_length=4 max_steps=20 eval_strategy=steps eval_steps=100 per_device_eval_batch_size=4 "
    "mask_truncated_completions=true"
)
"""A batch of 8 rollouts for two optimizer steps."""


def check(found, case, path, world=1):
    """The ledger is what was sampled, the limit holds, and nothing is missing at the end."""
    said = json.dumps({"case": case, "found": {k: v for k, v in found.items() if k != "log"}})
    if found["refused"]:
        assert "not even the next step fits" in found["refused"], said
    if not path.exists():
        assert found["truth"] == {"train": [0, 0, 0], "eval": [0, 0, 0]}, said
        return "refused"
    history = History.read(path)
    totals = history.totals()
    training = totals.used + totals.lost_training
    evaluation = totals.canonical["eval"] + totals.lost["eval"]
    for counts, mode in ((training, "train"), (evaluation, "eval")):
        assert [counts.rollouts, counts.prompt_tokens, counts.response_tokens] == found["truth"][mode], said
    args = case["chosen"]["args"]
    accumulation, batch = args["gradient_accumulation_steps"], found["batch"]
    every = batch // args["per_device_train_batch_size"] // world * args["num_iterations"]
    counted = training if case["counted"] == "paid" else totals.used
    if case["limit"] == "rollouts":
        assert counted.rollouts <= found["limit"], said
        if found["reason"]:
            assert counted.rollouts + batch * (accumulation // every + 1) > found["limit"], said
    elif case["limit"] == "response_tokens" and found["reason"]:
        most = batch * (accumulation // every + 1) * args["max_completion_length"]
        assert found["limit"] <= counted.response_tokens < found["limit"] + most, said
    elif found["reason"]:
        assert history.device_seconds >= found["limit"] * 3600, said
    check_steps(history, found, case, every, world, said)
    if found["refused"]:
        return "refused"
    last = found["steps"]
    assert found["saved"], said
    assert [entry for entry in found["log"] if "eval_loss" in entry][-1]["step"] == last, said
    if found["reason"]:
        entry = [entry for entry in found["log"] if "loss" in entry][-1]
        assert (entry["step"], entry["budget/paid"]) == (last, training.rollouts), said
    return "stopped" if found["reason"] else "finished"


def check_steps(history, found, case, every, world, said):
    """The canonical ledger has the same of every step, wherever the run was killed."""
    args, batch = case["chosen"]["args"], found["batch"]
    if batch % every:
        return
    epoch_passes = case["chosen"]["problems"] // (batch // args["num_generations"]) * every
    epoch_steps = -(-epoch_passes // args["gradient_accumulation_steps"])
    passes = Passes(
        accumulation=args["gradient_accumulation_steps"],
        every=every,
        epoch_passes=epoch_passes,
        epoch_steps=epoch_steps,
    )
    table = history.table()
    of_steps = dict(table.filter(table["cohort"] == "trained").select("step", "rollouts").iter_rows())
    last = history.last_step
    assert of_steps == {s: passes.of_step(s - 1) * batch // every for s in range(1, last + 1)}, said


def legal(count, folder, name, **options):
    """So many random cases that TRL takes, with what came of them."""
    from attached_runs import random_case, train
    from trl_runs import quiet

    number = found = 0
    while found < count:
        case = random_case(random.Random(f"{SEED} {name} {number}"), **options)
        place = folder / f"{name}-{number}"
        number += 1
        try:
            with quiet():
                of_case = train(case, place)
        except ValueError:
            continue
        if (of_case.steps or of_case.refused) and (of_case.resumed or not case.kills):
            found += 1
            yield asdict(case), asdict(of_case), place / "run.ledger"


@pytest.mark.parametrize(("name", "count"), [("plain", RUNS * 3 // 5), ("killed", max(1, RUNS // 5))])
def test_the_ledger_of_an_attached_run_is_what_its_sampler_made(trl, tmp_path, name, count):
    for case, found, path in legal(count, tmp_path, name, killed=name == "killed"):
        check(found, case, path)


def test_the_ledger_of_two_processes_is_what_both_sampled(trl, tmp_path):
    from attached_runs import random_case

    runs = max(1, RUNS // 5)
    # TRL refuses most layouts: batches of two processes are not split evenly.
    cases = [random_case(random.Random(f"{SEED} two {k}"), killed=k % 3 == 0, world=2) for k in range(10 * runs)]
    (tmp_path / "cases.json").write_text(json.dumps([asdict(case) for case in cases]))
    script = Path(__file__).with_name("attached_runs.py")
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", script]
    given = [tmp_path / "cases.json", tmp_path, tmp_path / "found.json", runs]
    done = subprocess.run([*map(str, launcher + given)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads((tmp_path / "found.json").read_text())
    outcomes = [
        check(of_case, asdict(case), tmp_path / str(number) / "run.ledger", world=2)
        for number, (case, of_case) in enumerate(zip(cases, found, strict=False))
        if of_case.get("steps") or of_case.get("refused")
    ]
    assert len(outcomes) == runs, [of_case.get("illegal") for of_case in found]


def test_a_limit_on_what_is_used_ends_a_run_after_the_same_step_however_often_it_was_killed(trl, tmp_path):
    from attached_runs import Case, train
    from trl_runs import quiet

    chosen = {"args": ARGS, "problems": 8, "eval_problems": 4}
    # Undisturbed, it ends after 5 steps as well.
    case = Case(limit="rollouts", batches=2.5, counted="used", kills=[1, 7], chosen=chosen)
    with quiet():
        found = train(case, tmp_path)
    check(asdict(found), asdict(case), tmp_path / "run.ledger")
    assert (found.steps, History.read(tmp_path / "run.ledger").totals().used.rollouts) == (5, 20)


def trainer_of(folder, **options):
    from trl_runs import grpo, problems_of

    args = {**ARGS, **options.pop("args", {})}
    if options.get("eval_dataset", "one") is None:
        args["eval_strategy"] = "no"
    return grpo(folder / "out", args, problems=8, **{"eval_dataset": problems_of(4, 100), **options})


def test_what_cannot_be_attached_is_named(trl, tmp_path):
    trainer = trainer_of(tmp_path)
    with pytest.raises(BudgetError, match="not to 'trainer'"):
        attach("trainer", tmp_path / "a.ledger", rollouts=10)
    with pytest.raises(BudgetError, match="no limit"):
        attach(trainer, tmp_path / "a.ledger")
    attach(trainer, tmp_path / "a.ledger", rollouts=1e6)
    with pytest.raises(BudgetError, match=r"already.*a\.ledger"):
        attach(trainer, tmp_path / "b.ledger", rollouts=10)
    assert not (tmp_path / "a.ledger").exists()


def test_a_run_whose_first_batch_does_not_fit_is_refused_and_its_ledger_untouched(trl, tmp_path):
    path = tmp_path / "run.ledger"
    trainer = trainer_of(tmp_path)
    attach(trainer, path, rollouts=7)
    with pytest.raises(BudgetError, match=r"from 0 to 8 .*is 7"):
        trainer.train()
    assert not path.exists()
    trainer = trainer_of(tmp_path)
    budget = attach(trainer, path, rollouts=8)
    trainer.train()
    assert budget.reason.startswith("step 3 would take the run from 8 to 16 rollouts")
    before = path.read_bytes()
    # Started again from nothing by mistake: what was paid stays canonical.
    trainer = trainer_of(tmp_path)
    attach(trainer, path, rollouts=8)
    with pytest.raises(BudgetError, match=r"from 8 \(8 .*to 16"):
        trainer.train()
    assert path.read_bytes() == before
    trainer = trainer_of(tmp_path)
    attach(trainer, tmp_path / "other.ledger", rollouts=100)
    with pytest.raises(LedgerError, match=r"from step 2, .* at step 0"):
        trainer.train(resume_from_checkpoint=str(tmp_path / "out" / "checkpoint-2"))


def test_a_run_without_an_evaluation_set_is_ended_without_one(trl, tmp_path):
    trainer = trainer_of(tmp_path, eval_dataset=None)
    budget = attach(trainer, tmp_path / "run.ledger", rollouts=8, run_id="mine")
    trainer.train()
    assert (trainer.state.global_step, budget.standing.paid.rollouts) == (2, 8)
    assert (tmp_path / "out" / "checkpoint-2").is_dir()
    assert History.read(tmp_path / "run.ledger").run_id == "mine"


def test_strategies_by_epoch_evaluate_and_save_once_at_the_stop(trl, tmp_path):
    trainer = trainer_of(
        tmp_path, args={"eval_strategy": "epoch", "save_strategy": "epoch", "max_steps": -1, "num_train_epochs": 9}
    )
    attach(trainer, tmp_path / "run.ledger", rollouts=8)
    trainer.train()
    assert [entry["step"] for entry in trainer.state.log_history if "eval_loss" in entry] == [2]
    assert (tmp_path / "out" / "checkpoint-2").is_dir()
    assert History.read(tmp_path / "run.ledger").totals().canonical["eval"].rollouts == 8


def test_an_evaluation_outside_of_training_is_charged_to_the_step_it_follows(trl, tmp_path):
    trainer = trainer_of(tmp_path, args={"eval_strategy": "no", "max_steps": 2})
    budget = attach(trainer, tmp_path / "run.ledger", rollouts=100, run_id="run")
    trainer.evaluate()
    trainer.train()
    trainer.evaluate()
    table = budget.path and History.read(budget.path).table()
    rows = table.filter(table["cohort"] == "eval").select("step", "rollouts").rows()
    assert rows == [(0, 8), (2, 8)]
    assert budget.reason == ""


def test_what_tools_wrote_is_prefill_and_no_response(trl, tmp_path):
    def roll_out(prompts, trainer):
        prompt_ids = [trainer.processing_class(prompt)["input_ids"] for prompt in prompts]
        completions = [[3, 4, 5, 1] for _ in prompts]
        return {
            "prompt_ids": prompt_ids,
            "completion_ids": completions,
            "logprobs": [[0.0] * 4 for _ in prompts],
            "env_mask": [[1, 0, 0, 1] for _ in prompts],
        }

    trainer = trainer_of(tmp_path, rollout_func=roll_out)
    budget = attach(trainer, tmp_path / "run.ledger", response_tokens=16)
    trainer.train()
    trained = History.read(budget.path).totals().canonical["trained"]
    seen = trainer.state.log_history[0]["num_tokens"]
    assert (trained.rollouts, trained.response_tokens, trained.prompt_tokens) == (8, 16, seen - 16 + 16)


@pytest.mark.skipif(not STOPPING.exists(), reason="the manual lies in the repository")
def test_the_run_of_the_manual_ends_as_it_says(trl, tmp_path, monkeypatch):
    text = STOPPING.read_text("utf-8")
    section = text[text.index("## Inside TRL") :]
    begin, end = section.index("    from datasets import Dataset"), section.index("It ends after step 12")
    monkeypatch.chdir(tmp_path)
    names = {}
    exec(compile(textwrap.dedent(section[begin:end]), str(STOPPING), "exec"), names)
    trainer = names["trainer"]
    assert trainer.state.global_step == 12
    reason = "step 13 would take the run from 96 to 104 rollouts, and the budget is 100"
    assert reason in section
    assert trainer._isocompute_budget.reason == reason
    assert (tmp_path / "run" / "checkpoint-12").is_dir()
    assert [entry["step"] for entry in trainer.state.log_history if "eval_loss" in entry] == [10, 12]
