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
                meter.charge(step, {"trained": Counts(rollouts=32, prompt_tokens=320, response_tokens=480)})
    return path


def table_of(out):
    return {line.split()[0]: line.split()[1:] for line in out.splitlines() if line}


def fails(arguments, capsys):
    assert main([str(a) for a in arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    return err


def test_show_prints_canonical_and_lost_as_paid(ledger, capsys):
    assert main(["show", str(ledger)]) == 0
    out = capsys.readouterr().out
    assert "run a, 2 attempts" in out
    assert "paid 1,920 of 1,000 response tokens (192.0%): 1,440 used and 480 lost, 920 over" in out
    assert table_of(out)["trained"] == ["96", "32", "128", "960", "320", "1,280", "1,440", "480", "1,920"]


def test_a_damaged_ledger_leaves_earlier_figures_alone(ledger, tmp_path, capsys):
    out = tmp_path / "out.json"
    out.write_text("kept")
    ledger.write_bytes(ledger.read_bytes()[:-9_000])
    assert "is damaged" in fails(["show", ledger, "--json", out], capsys)
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


def test_a_table_of_mlflow_without_it_says_what_to_install(ledger, tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "mlflow", None)
    err = fails(["show", "mlflow:sweep"], capsys)
    assert 'pip install "isocompute-budget[mlflow]"' in err


def test_show_tells_of_device_time_and_money(tmp_path, capsys):
    with Ledger.open(tmp_path / "a.ledger", run_id="a") as opened:
        meter = Meter(opened, Limits(rollouts=64, device_seconds=100, money=10, price_per_device_hour=360))
        meter.charge(1, {"trained": Counts(rollouts=32)}, device_seconds=125)
    assert main(["show", str(tmp_path / "a.ledger")]) == 0
    out = capsys.readouterr().out
    assert "paid 32 of 64 rollouts (50.0%): 32 used and 0 lost\n" in out
    assert "paid 125 of 100 device-seconds (125.0%), 25 over\n" in out
    assert "paid 12.50 of 10.00 in money (125.0%), 2.50 over\n" in out


def test_show_tells_device_hours_and_writes_its_figures(tmp_path, capsys):
    path = tmp_path / "a.ledger"
    for attempt in (0, 0):
        with Ledger.open(path, run_id="a\x1b[31m", resumed_from=attempt) as opened:
            opened.charge(1, {"trained": Counts(rollouts=32, response_tokens=64)}, device_seconds=5_400)
    assert main(["show", str(path), "--json", str(tmp_path / "out.json")]) == 0
    out = capsys.readouterr().out
    assert out.startswith("run a\\x1b[31m, 2 attempts\ndevice-hours 3.00, of all attempts\n\n")
    document = json.loads((tmp_path / "out.json").read_text())
    (found,) = document["ledgers"]
    assert (found["run_id"], len(found["attempts"]), found["device_hours"]) == ("a\x1b[31m", 2, 3.0)
    assert (found["limits"], document["by"]) == (None, "cohort")
    (row,) = document["rows"]
    assert (row["cohort"], row["rollouts"], row["lost_rollouts"], row["paid_rollouts"]) == ("trained", 32, 32, 64)


def test_show_tells_when_and_where_attempts_began(tmp_path, capsys, monkeypatch):
    path = tmp_path / "a.ledger"
    for name, step in (("job-7", None), ("", 2)):
        monkeypatch.setenv("SLURM_JOB_ID", name)
        with Ledger.open(path, run_id="a", resumed_from=step) as opened:
            opened.charge(3, {"trained": Counts(rollouts=32)})
    assert main(["show", str(path), "--attempts", "--json", str(tmp_path / "out.json")]) == 0
    out = capsys.readouterr().out
    first, second = json.loads((tmp_path / "out.json").read_text())["ledgers"][0]["attempts"]
    assert (first["resumed_from"], first["job"]) == (0, "job-7")
    assert (second["resumed_from"], second["job"], second["host"]) == (2, None, socket.gethostname())
    for attempt in (first, second):
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


@pytest.mark.slow
def test_metering_a_run_loads_nothing_heavy(tmp_path):
    code = (
        "import sys; from isocompute.budget import *\n"
        f"meter = Meter(Ledger.open({str(tmp_path / 'a')!r}, run_id='a'), Limits(rollouts=8))\n"
        "meter.admit(1, 8); meter.charge(1, {'trained': Counts(rollouts=8)}); print(*sys.modules)"
    )
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"polars", "numpy", "torch", "ray", "mlflow"} & set(loaded)
