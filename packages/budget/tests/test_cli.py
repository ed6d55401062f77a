import json
import socket
import subprocess
import sys
from datetime import datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from isocompute.budget import Counts, Ledger, Limits, Meter
from isocompute.budget.cli import main
from isocompute.budget.commands import text as text_module


@pytest.fixture
def ledger(tmp_path):
    """A run that was killed once and went over its token budget."""
    path = tmp_path / "a.ledger"
    for resumed_from, steps in ((0, (1, 2)), (1, (2, 3))):
        with Ledger.open(path, run_id="a", resumed_from=resumed_from) as opened:
            meter = Meter(opened, Limits(response_tokens=1_000))
            for step in steps:
                made = Counts(rollouts=32, prompt_tokens=320, response_tokens=480)
                meter.charge(step, {"trained": made}, device_seconds=2_700)
    return path


def table_of(out):
    return {line.split()[0]: line.split()[1:] for line in out.splitlines() if line}


def test_show_prints_canonical_and_lost_as_paid(ledger, capsys):
    assert main(["show", str(ledger)]) == 0
    out = capsys.readouterr().out
    assert out.startswith("run a, 2 attempts\n")
    assert "device-hours 3.00, of all attempts\n" in out
    assert "paid 1,920 of 1,000 response tokens (192.0%): 1,440 used and 480 lost, 920 over" in out
    assert table_of(out)["trained"] == ["96", "32", "128", "960", "320", "1,280", "1,440", "480", "1,920"]


def test_a_damaged_ledger_leaves_earlier_figures_alone(ledger, tmp_path, capsys):
    out = tmp_path / "out.json"
    out.write_text("kept")
    ledger.write_bytes(ledger.read_bytes()[:-9_000])
    assert main(["show", str(ledger), "--json", str(out)]) == 2
    assert "is damaged" in capsys.readouterr().err
    assert out.read_text() == "kept"


@pytest.mark.slow
def test_a_reader_that_stops_reading_gets_no_traceback(ledger):
    code = "import sys; from isocompute.budget.cli import main; sys.exit(main(sys.argv[1:]))"
    process = subprocess.Popen(
        [sys.executable, "-c", code, "show", str(ledger)], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    process.stdout.close()
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait() == 0


def test_a_table_of_mlflow_without_it_says_what_to_install(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "mlflow", None)
    assert main(["show", "mlflow:sweep"]) == 2
    assert 'pip install "isocompute-budget[mlflow]"' in capsys.readouterr().err


def test_show_tells_time_and_money_and_when_and_where_attempts_began(tmp_path, capsys, monkeypatch):
    path, limits = tmp_path / "a.ledger", {"device_seconds": 6_000, "money": 1_000, "price_per_device_hour": 360}
    for name, step in (("job-7", None), ("", 0)):
        monkeypatch.setenv("SLURM_JOB_ID", name)
        with Ledger.open(path, run_id="a\x1b[31m", resumed_from=step) as opened:
            Meter(opened, Limits(**limits)).charge(1, {"trained": Counts(rollouts=32)}, device_seconds=5_400)
    assert main(["show", str(path), "--attempts", "--json", str(tmp_path / "out.json")]) == 0
    out = capsys.readouterr().out
    assert out.startswith("run a\\x1b[31m, 2 attempts\n")
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


@given(st.integers(1, 10**6), st.sampled_from(["K", "M", "B"]))
def test_a_suffix_is_an_exact_factor(number, suffix):
    scale = {"K": 3, "M": 6, "B": 9}[suffix]
    assert text_module.parameters(f"{number}{suffix}") == number * 10**scale
    assert text_module.parameters(f"{number / 1000}{suffix}") == number * 10 ** (scale - 3)
    assert text_module.whole(f"{number}e{scale}") == number * 10**scale
