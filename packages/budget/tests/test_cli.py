import json
import socket
import subprocess
import sys
from datetime import datetime, timedelta

import pytest
from isocompute.budget import Counts, Ledger, Limits, Meter
from isocompute.budget.cli import main

PLAN = ["plan", "--rollouts", "1.6e6", "--max-batch", "16384", "--problems", "6000", "--max-epochs", "30"]


@pytest.mark.slow
def test_a_reader_that_stops_reading_gets_no_traceback():
    code = "import sys; from isocompute.budget.cli import main; sys.exit(main(sys.argv[1:]))"
    process = subprocess.Popen([sys.executable, "-c", code, *PLAN], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    process.stdout.close()
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait() == 0


def test_show_tells_time_and_money_and_when_and_where_attempts_began(tmp_path, capsys, monkeypatch):
    path, time = tmp_path / "a.ledger", {"device_seconds": 6_000, "money": 1_000, "price_per_device_hour": 360}
    for name, step in (("job-7", None), ("", 0)):
        monkeypatch.setenv("SLURM_JOB_ID", name)
        with Ledger.open(path, run_id="a\x1b[31m", resumed_from=step) as opened:
            Meter(opened, Limits(rollouts=48, **time)).charge(1, {"trained": Counts(rollouts=32)}, device_seconds=5_400)
    assert main(["show", str(path), "--attempts", "--json", str(tmp_path / "out.json")]) == 0
    out = capsys.readouterr().out
    assert out.startswith("run a\\x1b[31m, 2 attempts\n")
    assert "device-hours 3.00, of all attempts\n" in out
    assert "paid 64 of 48 rollouts (133.3%): 32 used and 32 lost, 16 over\n" in out
    assert "paid 10,800 of 6,000 device-seconds (180.0%), 4,800 over\n" in out
    assert "paid 1,080.00 of 1,000.00 in money (108.0%), 80.00 over\n" in out
    document = json.loads((tmp_path / "out.json").read_text())
    (found,), (row,) = document["ledgers"], document["rows"]
    assert (found["run_id"], found["device_hours"], document["by"]) == ("a\x1b[31m", 3.0, "cohort")
    assert (row["cohort"], row["rollouts"], row["lost_rollouts"], row["paid_rollouts"]) == ("trained", 32, 32, 64)
    assert [(a["resumed_from"], a["job"], a["host"]) for a in found["attempts"]] == [
        (0, job, socket.gethostname()) for job in ("job-7", None)
    ]
    for attempt in found["attempts"]:
        assert datetime.fromisoformat(attempt["began"]).utcoffset() == timedelta(0)
        assert attempt["began"] in out
        assert attempt["host"] in out


STRICT = ["convert", "--from", "verl", "--strict", "--problems", "6400", "--"]


def test_strict_reading_approves_of_settings_without_a_remark(tmp_path, capsys):
    split = "--rollouts-per-problem 8 --problems-per-batch 64 --update-steps 100 --world-size 8 --problems 6400"
    assert main(["convert", "--to", "verl", *split.split()]) == 0
    settings = [line for line in capsys.readouterr().out.splitlines() if not line.startswith("#")]
    assert main([*STRICT, *settings]) == 0
    for change, kind in (
        ("data.train_batch_size=3", "inconsistent"),
        ("data.train_batch_size=$B", "unknown"),
        ("algorithm.filter_groups.enable=true", "note"),
    ):
        capsys.readouterr()
        assert main([*STRICT, *settings, change]) == 1
        assert f"{kind}: " in capsys.readouterr().out
        assert main([word for word in (*STRICT, *settings, change) if word != "--strict"]) == 0


def test_convert_carries_the_learning_rate_from_the_batch_it_was_tuned_at(capsys):
    split = "convert --to trl --rollouts-per-problem 16 --problems-per-batch 16 --update-steps 10 --learning-rate 1e-6"
    for more, rate in (
        ("", "1e-06"),
        (" --learning-rate-anchor 1024", "5e-07"),
        (" --learning-rate-anchor 1024 --scaling linear", "2.5e-07"),
        (" --learning-rate-anchor 1024 --scaling constant", "1e-06"),
    ):
        assert main((split + more).split()) == 0
        assert f"--learning_rate {rate}\n" in capsys.readouterr().out


MODEL = "--model-parameters 7e9 --response-tokens 2000 --device h100 --world-size 8"


def test_time_and_money_are_estimated_where_the_model_is_known(tmp_path):
    path = tmp_path / "plan.json"
    more = "--anchor 1e-6 --anchor-batch 1024 --price 2.5"
    assert main([*PLAN, *MODEL.split(), *more.split(), "--json", str(path)]) == 0
    for cell in json.loads(path.read_text())["cells"]:
        low, likely, high = cell["seconds_per_step"]
        assert 0 < low < likely < high
        tokens = cell["batch_rollouts"] * 2000
        assert likely == pytest.approx((2 / 0.15 + 6 / 0.35) * 7e9 * tokens / 989e12 / 8)
        assert cell["device_hours"][1] == pytest.approx(likely * 8 * cell["update_steps"] / 3600)
        assert cell["cost"] == pytest.approx([2.5 * hours for hours in cell["device_hours"]])
        assert cell["learning_rate"] == pytest.approx(1e-6 * (cell["batch_rollouts"] / 1024) ** 0.5)


def test_more_that_is_known_narrows_the_estimate(tmp_path, capsys):
    path = tmp_path / "plan.json"
    more = "--layers 32 --width 4096 --prompt-tokens 300 --spread 0 --tokens-per-second 4000 --extra-forwards 1"
    sure = "--training-utilisation 0.4 --active-parameters 3.3B"
    assert main([*PLAN, *MODEL.split(), *more.split(), *sure.split(), "--json", str(path)]) == 0
    out = capsys.readouterr().out
    assert "assumed: a device generates 4,000 response tokens per second" in out
    assert "assumed: a token passes through 3,300,000,000 of the 7,000,000,000 parameters" in out
    assert "a head in float32" not in out
    assert all(len(set(cell["seconds_per_step"])) == 1 for cell in json.loads(path.read_text())["cells"])
    assert main([*PLAN, *MODEL.split(), *more.split(), "--vocabulary", "152000", "--float32-head"]) == 0
    assert "a head in float32 reaches" in capsys.readouterr().out


def test_one_split_needs_no_limit_on_its_batch(capsys):
    arguments = "plan --rollouts 2e4 --problems-per-batch 8 --rollouts-per-problem 4 --problems 100"
    assert main([*arguments.split(), "--anchor", "1e-3", "--anchor-batch", "128"]) == 0
    assert capsys.readouterr().out.splitlines()[3].split() == ["8", "4", "32", "625", "20,000", "0", "50.00", "0.0005"]
