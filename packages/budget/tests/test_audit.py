"""One run by its settings, its log and its ledger, and why they differ."""

import json

import pytest
from isocompute.budget import BudgetError, Counts, Ledger
from isocompute.budget.cli import main
from isocompute.budget.commands.audit import OF_LEDGER, Audit
from reading_logs import DOCS, VERL, lines, settings

TRL = settings(
    "num_generations=2 per_device_train_batch_size=4 gradient_accumulation_steps=1 max_steps=20 "
    "steps_per_generation=1 generation_batch_size=4 num_iterations=1"
)
VERL = {**VERL, "trainer.total_training_steps": 10}


def logged(folder, rows):
    return str(lines(folder / "log.jsonl", rows))


def trl_rows(steps, generates=lambda step: True, epoch=lambda step: step / 120):
    for step in range(1, steps + 1):
        made = {"completions/mean_length": 3.0, "num_tokens": 40.0 * step} if generates(step) else {}
        yield {"step": step, "loss": 0.1, "epoch": epoch(step), **made}


def verl_rows(steps, **more):
    for step in range(1, steps + 1):
        yield {"step": step, "data": {"training/global_step": step, "response_length/mean": 5.0, **more}}


def changes(found):
    """The differences, which add up to what the log says and what was paid."""
    of_log = sum(d.rollouts for d in found.differences if d.mechanism not in OF_LEDGER)
    assert found.planned + of_log == found.last.rollouts
    if found.history is not None:
        totals = found.history.totals()
        later = sum(d.rollouts for d in found.differences if d.mechanism in OF_LEDGER)
        assert found.last.rollouts + later == (totals.used + totals.lost_training).rollouts
    return {d.mechanism: d.rollouts for d in found.differences}


def test_a_run_that_did_what_its_settings_say_has_no_differences():
    found = Audit(str(DOCS / "n16"))
    assert changes(found) == {}
    assert (found.planned, found.last.rollouts) == (7_680, 7_680)
    assert found.evaluated > 0
    entries = json.loads((DOCS / "n16" / "trainer_state.json").read_text())["log_history"]
    shares = [entry["frac_reward_zero_std"] for entry in entries if "frac_reward_zero_std" in entry]
    assert found.without_signal == pytest.approx(sum(shares) / len(shares))


@pytest.mark.parametrize(
    ("changed", "steps", "generates", "found", "rollouts"),
    [
        # Ten steps of 4 are 40, in three passes 13; the fourth batch of 4 is used once.
        ({"num_iterations": 3}, 10, (1, 4, 7, 10), {"rounding": -1, "several passes": -26, "whole batches": 3}, 16),
        # Resumed after step 2, with a new batch in step 3 and in step 7.
        ({"num_iterations": 4}, 8, (1, 3, 7), {"several passes": -24, "resume": 4}, 12),
    ],
)
def test_passes_batches_that_are_not_used_up_and_resumes_are_named(
    tmp_path, changed, steps, generates, found, rollouts
):
    shared = {**TRL, **changed, "max_steps": steps}
    audited = Audit(logged(tmp_path, trl_rows(steps, generates.__contains__)), shared=shared)
    assert changes(audited) == found
    assert (audited.planned, audited.last.rollouts) == (4 * steps, rollouts)
    assert any(f"in each of the {changed['num_iterations']} passes" in d.sentence for d in audited.differences)


def test_short_epochs_are_named(tmp_path):
    shared = {**TRL, "gradient_accumulation_steps": 2, "max_steps": 4}
    # Three batches make an epoch of two steps, the second of which has one.
    epochs = {1: 2 / 3, 2: 1.0, 3: 5 / 3, 4: 2.0}
    rows = ({k: v for k, v in row.items() if k != "num_tokens"} for row in trl_rows(4, epoch=epochs.get))
    found = Audit(logged(tmp_path, rows), shared=shared)
    assert changes(found) == {"short epochs": -8}
    assert found.last.rollouts == 24


def test_refill_and_baselines_are_named(tmp_path):
    shared = {**VERL, "algorithm.adv_estimator": "remax", "trainer.use_v1": False}
    evicted = {"training/filter_groups/evicted_samples": 3}
    found = Audit(logged(tmp_path, verl_rows(10, **evicted)), shared=shared)
    # 11 prompts a step, with four responses and one more.
    assert changes(found) == {"remax baselines": 110, "refill": 120}
    assert found.last.rollouts == 550
    ahead = {"trainer.v1.trainer_mode": "separate_async", "trainer.v1.separate_async.num_warmup_batches": 2}
    notes = Audit(logged(tmp_path, verl_rows(10)), shared={**VERL, **ahead}).notes
    assert any(note.startswith("warm-up: 64 rollouts are started ahead of their step") for note in notes)


def ledger_of(path, steps, *, resumed_from=0, rollouts=32):
    with Ledger.open(path, run_id="run", resumed_from=resumed_from) as ledger:
        for step in steps:
            ledger.charge(step, {"trained": Counts(rollouts=rollouts)})


def test_lost_work_is_of_the_attempt_that_lost_it(tmp_path):
    path = tmp_path / "run.ledger"
    ledger_of(path, range(1, 8))
    ledger_of(path, range(5, 11), resumed_from=4)
    found = Audit(logged(tmp_path, verl_rows(10)), path, shared=VERL)
    assert changes(found) == {"lost work": 96}
    assert found.differences[0].sentence == (
        "attempt 1 lost what it generated of steps 5 to 7, since attempt 2 went on after step 4"
    )


def test_a_ledger_that_ends_earlier_or_later_than_the_log_is_named(tmp_path):
    short, long, other = tmp_path / "a.ledger", tmp_path / "b.ledger", tmp_path / "c.ledger"
    ledger_of(short, range(1, 9))
    ledger_of(long, range(1, 13))
    ledger_of(other, range(1, 11), rollouts=33)
    source = logged(tmp_path, verl_rows(10))
    assert changes(Audit(source, short, shared=VERL)) == {"uncharged steps": -64}
    assert changes(Audit(source, long, shared=VERL)) == {"unlogged steps": 64}
    assert changes(Audit(source, other, shared=VERL)) == {"not explained": 10}
    ledger_of(tmp_path / "empty.ledger", [])
    assert changes(Audit(source, tmp_path / "empty.ledger", shared=VERL)) == {"uncharged steps": -320}


def test_a_ledger_whose_attempt_ended_ahead_is_explained(tmp_path):
    path = tmp_path / "run.ledger"
    shared = {**TRL, "num_iterations": 4, "max_steps": 6}
    with Ledger.open(path, run_id="run") as ledger:
        for step in (1, 5):
            ledger.charge(step, {"trained": Counts(rollouts=4)}, shares=(1,) * 4)
        ledger.end(6)
    found = Audit(logged(tmp_path, trl_rows(6, lambda step: step in (1, 5))), path, shared=shared)
    assert "lost work" not in changes(found)
    assert "not explained" not in changes(found)


def test_the_command_prints_a_table_and_a_line_for_each_difference(tmp_path, capsys):
    path, config = tmp_path / "run.ledger", tmp_path / "verl.json"
    ledger_of(path, range(1, 8))
    ledger_of(path, range(5, 10), resumed_from=4)
    with Ledger.open(path, run_id="run", resumed_from="last") as ledger:
        ledger.charge(9, {"eval": Counts(rollouts=100), "failed": Counts(rollouts=5)})
    config.write_text(json.dumps(VERL))
    source = logged(tmp_path, verl_rows(9))
    arguments = ["audit", source, "--ledger", str(path), "--config", str(config), "--json", str(tmp_path / "a.json")]
    assert main(arguments) == 0
    out = capsys.readouterr().out
    assert ["update", "steps", "10", "9", "9"] in map(str.split, out.splitlines())
    assert "+5 failed: responses failed and were generated again" in out
    assert "-32 steps not taken: the settings allow 10 update steps, and the log ends after 9" in out
    assert "389 rollouts were paid for training, by the ledger" in out
    assert "+100 evaluations: they are paid for" in out
    assert "lost in restarts: 24.7% of the 389 rollouts paid for" in out
    written = json.loads((tmp_path / "a.json").read_text())
    assert written["figures"]["rollouts for training"] == {"settings": 320, "log": 288, "ledger": 293}
    assert [d["mechanism"] for d in written["differences"]] == ["steps not taken", "lost work", "failed"]


def test_what_cannot_be_audited_is_refused(tmp_path):
    with pytest.raises(BudgetError, match="no run"):
        Audit(str(tmp_path))
    with pytest.raises(BudgetError, match="holds 2 runs"):
        Audit(str(DOCS))
    with pytest.raises(BudgetError, match=r"rollout\.n"):
        Audit(logged(tmp_path, verl_rows(3)))
