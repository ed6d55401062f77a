"""A command that logs as a trainer does, held to a budget by its log."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from isocompute.budget import History
from isocompute.budget.cli import main
from training import BATCH, arguments, command

pytestmark = pytest.mark.slow("commands that are followed, and killed")


def rollouts(folder):
    """Used, and lost."""
    totals = History.read(folder / "run.ledger").totals()
    return totals.used.rollouts, totals.lost_training.rollouts


def started(folder, *args, **options):
    """``run`` in a process of its own."""
    program = [sys.executable, "-m", "isocompute.budget.cli", *arguments(folder, *args, **options)]
    return subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def wait_for(condition):
    for _ in range(600):
        if condition():
            return
        time.sleep(0.05)
    raise AssertionError("nothing happened for half a minute")


def test_a_command_is_ended_before_the_step_that_would_exceed_the_budget(tmp_path, capsys):
    assert main(arguments(tmp_path, 100, hangs=5)) == 3
    out, err = capsys.readouterr()
    assert "ended at its budget after step 4 (SIGINT; the command ended with" in out
    assert "step 5 would take the run from 32 to 40 rollouts, and the budget is 32" in out
    assert "paid 32 of 32 rollouts (100.0%): 32 used and 0 lost" in out
    assert "the command is ended: step 5 would" in err
    history = History.read(tmp_path / "run.ledger")
    assert history.table().select("step", "cohort", "rollouts").rows() == [(s, "trained", BATCH) for s in range(1, 5)]
    assert history.totals().used.response_tokens > 4 * 10 * BATCH
    assert history.device_seconds > 0
    assert history.resumed_from == (0,)


@pytest.mark.parametrize(("options", "status"), [({}, 0), ({"status": 7}, 7), ({"dies": 3}, 137)])
def test_a_command_that_ends_by_itself_ends_with_its_own_status(tmp_path, capsys, options, status):
    assert main(arguments(tmp_path, 4, **options)) == status
    steps = options.get("dies", 4)
    assert f"the command ended by itself after step {steps}, with" in capsys.readouterr().out
    assert rollouts(tmp_path) == (steps * BATCH, 0)


def test_a_run_that_was_killed_goes_on_with_its_ledger_after_the_step_that_its_log_shows(tmp_path, capsys):
    limit = ("--rollouts", str(10 * BATCH))
    assert main(arguments(tmp_path, 100, *limit, dies=5, saves=3)) == 137
    assert main(arguments(tmp_path, 100, *limit, dies=7, saves=3)) == 137
    assert rollouts(tmp_path) == (7 * BATCH, 2 * BATCH)
    assert main(arguments(tmp_path, 100, *limit, hangs=8, saves=3)) == 3
    assert "(24 of them lost) to 88 rollouts paid for" in capsys.readouterr().out
    history = History.read(tmp_path / "run.ledger")
    assert history.resumed_from == (0, 3, 6)
    assert rollouts(tmp_path) == (7 * BATCH, 3 * BATCH)
    assert history.table()["rollouts"].to_list() == [BATCH] * 7


def test_a_command_that_starts_its_trainer_again_pays_for_what_is_generated_again(tmp_path):
    words = arguments(tmp_path, 100, "--rollouts", str(9 * BATCH))
    twice = [shlex.join(command(tmp_path / "log", 100, saves=3, **o)) for o in ({"dies": 5}, {"hangs": 8})]
    # The log must be seen before and after.
    script = f"{twice[0]}; sleep 2; {twice[1]}"
    assert main([*words[: words.index("--")], "--", "sh", "-c", script]) == 3
    assert rollouts(tmp_path) == (7 * BATCH, 2 * BATCH)
    assert History.read(tmp_path / "run.ledger").resumed_from == (0, 3)


def test_nothing_is_started_where_no_step_fits_any_more(tmp_path, capsys):
    assert main(arguments(tmp_path, 100, hangs=5, saves=1)) == 3
    before = (tmp_path / "run.ledger").read_bytes()
    assert main(arguments(tmp_path, 100, hangs=5, saves=1)) == 2
    assert "not even the next step fits, so nothing is started: step 5 would take" in capsys.readouterr().err
    assert (tmp_path / "run.ledger").read_bytes() == before


@pytest.mark.parametrize(
    ("ignored", "sent"),
    [(["SIGINT"], "SIGINT, then SIGTERM"), (["SIGINT", "SIGTERM"], "SIGINT, then SIGTERM, then SIGKILL")],
)
def test_a_command_that_ignores_a_signal_is_sent_the_next(tmp_path, capsys, ignored, sent):
    assert main(arguments(tmp_path, 100, "--grace", "0.3", hangs=5, ignored=ignored)) == 3
    assert f"({sent}; the command ended with {sent.split()[-1]})" in capsys.readouterr().out
    assert rollouts(tmp_path) == (4 * BATCH, 0)


@pytest.mark.parametrize("options", [{"hangs": 5}, {"status": 0}])
def test_what_a_command_left_running_is_ended_with_it(tmp_path, options):
    steps = 100 if "hangs" in options else 3
    assert main(arguments(tmp_path, steps, "--grace", "1", forks=True, **options)) == (3 if "hangs" in options else 0)
    child = int((tmp_path / "child").read_text())

    def ended():
        try:
            return Path(f"/proc/{child}/stat").read_text().split()[2] == "Z"
        except FileNotFoundError:
            return True

    if Path("/proc/self/stat").exists():
        wait_for(ended)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_reach_the_command_and_the_ledger_is_closed(tmp_path, number):
    run = started(tmp_path, 100, hangs=3)
    # Its second step has been logged.
    wait_for((tmp_path / "hangs").exists)
    wait_for(lambda: History.read(tmp_path / "run.ledger").last_step == 2)
    run.send_signal(number)
    out, err = run.communicate(timeout=60)
    # Python ends with 130 or by the signal itself after SIGINT.
    assert run.returncode in ({143} if number is signal.SIGTERM else {1, 130}), err
    assert "the command ended by itself after step 2" in out
    assert rollouts(tmp_path) == (2 * BATCH, 0)
    assert History.read(tmp_path / "run.ledger").device_seconds > 0


def test_steps_that_were_logged_after_the_follower_was_killed_are_charged_later(tmp_path, capsys):
    run = started(tmp_path, 100, "--rollouts", str(20 * BATCH), hangs=3)
    wait_for((tmp_path / "hangs").exists)
    wait_for(lambda: History.read(tmp_path / "run.ledger").last_step == 2)
    run.kill()
    run.wait()
    os.killpg(int((tmp_path / "pid").read_text()), signal.SIGKILL)
    run.communicate()
    with (tmp_path / "log" / "log.jsonl").open("a") as stream:
        for step in (3, 4):
            metrics = {"training/global_step": step, "response_length/mean": 3.0 + step}
            stream.write(json.dumps({"step": step, "data": metrics}) + "\n")
    (tmp_path / "checkpoint.json").write_text(json.dumps({"step": 3}))
    assert main(arguments(tmp_path, 5, "--rollouts", str(20 * BATCH))) == 0
    assert "steps 3 to 4 are in the log and in no charge" in capsys.readouterr().err
    history = History.read(tmp_path / "run.ledger")
    assert (rollouts(tmp_path), history.resumed_from) == ((5 * BATCH, BATCH), (0, 2, 3))


def test_device_time_is_wall_time_of_the_command_times_devices(tmp_path, capsys):
    flags = ("--device-hours", str(2 / 3600), "--devices", "4", "--silence", "0.2")
    assert main(arguments(tmp_path, 100, *flags, hangs=2)) == 3
    out, err = capsys.readouterr()
    assert "ended at its budget" in out
    # More than the 2 of the limit where this machine has other work.
    assert re.search(r"the run has taken \d+ device-seconds before step \d+, and the budget is 2\b", out)
    # A command that logs nothing is warned about and goes on.
    assert "nothing new was logged for 0.2 seconds, and nothing is counted: " in err
    assert History.read(tmp_path / "run.ledger").device_seconds >= 2


def test_a_log_that_lags_is_said_to(tmp_path, capsys):
    assert main(arguments(tmp_path, 100, "--rollouts", str(8 * BATCH), every=3, hangs=10)) == 3
    out, err = capsys.readouterr()
    assert "the log has an entry every 3 steps, so that the command may generate for as many" in err
    assert "from 72 to 80 rollouts, and the budget is 64" in out
    table = History.read(tmp_path / "run.ledger").table()
    assert table.select("step", "rollouts").rows() == [(step, BATCH) for step in range(1, 10)]


def without(words, option):
    place = words.index(option)
    return [*words[:place], *words[place + 2 :]]


NEEDED = ("actor_rollout_ref.rollout.n", "actor_rollout_ref.actor.ppo_mini_batch_size", "data.train_batch_size")


@pytest.mark.parametrize("known", [False, True])
def test_a_log_that_cannot_be_counted_ends_the_command_once_for_all_that_is_missing(tmp_path, capsys, known):
    words = without(arguments(tmp_path, 100, *(["--trainer", "verl"] if known else []), hangs=3), "--config")
    assert main(words) == 2
    first, *_, last = err = capsys.readouterr().err.splitlines()
    assert any("the command is ended, since what it generates cannot be counted" in line for line in err)
    assert last.startswith("error: ")
    assert all(f"--set {name}=VALUE" in last for name in NEEDED)
    # Before it is started, where --trainer says whose log it will be.
    assert ("is ended, since" not in first) == known
    assert all(f"--set {name}=VALUE" in first for name in NEEDED)
    assert rollouts(tmp_path) == (0, 0)


def test_a_misspelt_setting_is_refused_before_anything_is_started(tmp_path, capsys):
    wrong = ["--set", "data.train_batch_sise=4", "--set", "rollouts_per_setp=4"]
    assert main(arguments(tmp_path, 100, "--trainer", "verl", *wrong, hangs=3)) == 2
    err = capsys.readouterr().err
    assert "data.train_batch_size" in err
    assert "rollouts_per_step" in err
    assert not (tmp_path / "pid").exists()


def test_a_run_that_goes_on_needs_its_ledger(tmp_path, capsys):
    assert main(arguments(tmp_path, 100, dies=3, saves=3)) == 137
    (tmp_path / "run.ledger").unlink()
    assert main(arguments(tmp_path, 100, hangs=5)) == 2
    assert "goes on after step 3: give the ledger of that run" in capsys.readouterr().err


def test_a_log_that_cannot_be_read_is_refused_before_anything_is_started(tmp_path, capsys):
    words = arguments(tmp_path, 100)
    at = words.index("--rollouts")
    (tmp_path / "log").mkdir()
    (tmp_path / "log" / "log.jsonl").write_text('{"step": 1}\nnot JSON\n{"step": 2}\n')
    words[words.index("--log") + 1] += "/log.jsonl"
    assert main([*words[:at], "--trainer", "verl", *words[at:]]) == 2
    assert "line 2 is not JSON" in capsys.readouterr().err
