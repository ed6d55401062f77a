"""Every command used wrongly: one sentence that says what is wrong, status 2, and no file left behind."""

import io
import os
import shlex
import signal
import subprocess
import sys

import pytest
from isocompute.budget import Counts, Ledger
from isocompute.budget.cli import main

pytestmark = pytest.mark.slow("hundreds of wrong commands")

SPLIT = "--rollouts-per-problem 4 --problems-per-batch 8 --update-steps 10"
BATCH = "--problems-per-batch 8 --rollouts-per-problem 4 --min-steps 1"
PLAN = "plan --rollouts 1e5 --max-batch 64"
COST = "plan --rollouts 1e5 --max-batch 64 --response-tokens 100 --model-parameters 7B --device h100"

FILES = {
    "circle.yaml": "a: &a {b: *a}",
    "day.yaml": "max_steps: 2026-01-01",
    "huge.yaml": "max_steps: 0x" + "f" * 5_000,
    "escape.json": '{"max_steps": "\\u001b[31mred"}',
    "list.json": "[1]",
    "train.py": "import trl  # --max_steps 5",
    "launch": "#!/usr/bin/env python3\nprint('--max_steps 5')",
    "open.sh": "trl grpo --max_steps '5",
    "open.toml": "a = [",
    "script.sh": "echo nothing",
    "a.csv": "run_id,step\na,1\n",
    "plain.ledger": "not a ledger",
}

WRONG = [
    # The command line itself.
    ("", "arguments are required: COMMAND"),
    ("show x $'\\x1b[31m' --bogus $'\\x1b[31m'", "\\x1b[31m"),
    (f"plan --rollouts 1e999999999 {BATCH}", "is not a whole number of at most"),
    (f"plan --rollouts 1e-999999999 {BATCH}", "'1e-999999999' is not a whole number"),
    (f"plan --rollouts 16 {BATCH}", "split with fewer than 1 step"),
    (f"plan --rollouts 64 {BATCH} --anchor 1e-3", "both --anchor and --anchor-batch"),
    ("plan --rollouts 1e5 --rollouts-per-problem 4", "give --max-batch, or values"),
    (f"{PLAN} --rollouts-per-problem 4,,8", "'' is not an amount"),
    ("signal --pass-rate 0.3 --n 4-8", "several are a list such as 4,8,16"),
    (f"{PLAN} --problems-per-batch 1,024", "'1,024' is a list"),
    (f"{PLAN} --response-tokens 1e400", "'1e400' is not a finite number"),
    (f"{PLAN} --min-steps 1e9", "no split of 100,000 rollouts can be run"),
    (f"{PLAN} --model-parameters 7B", "needs --response-tokens and --device"),
    (f"{PLAN} --json pipe", "pipe: cannot be written (it is a special file)"),
    (f"{PLAN} --json script.sh/plan.json", "there is no folder script.sh"),
    (f"{PLAN} --json nowhere/plan.json", "there is no folder nowhere"),
    (f"{COST} --model-parameters 7X", "'7X' is not an amount"),
    (f"{COST} --training-utilisation 0.1,0.2", "is not one share of the peak or three"),
    # convert
    ("convert --to verl --rollouts-per-problem 1e9 --problems-per-batch 1e9 --update-steps 1 --micro-batch 3", "would"),
    (f"convert --to verl {SPLIT} --learning-rate-anchor 64", "give --learning-rate as well"),
    (f"convert --from verl {SPLIT}", "goes with --to"),
    (f"convert --to verl {SPLIT} circle.yaml", "and no settings"),
    ("convert --from trl circle.yaml", "nested more than 100 deep, or contains itself"),
    ("convert --from trl day.yaml", "max_steps is datetime.date(2026, 1, 1); it must be a whole number"),
    ("convert --from trl huge.yaml", "max_steps is a whole number of 20,000 bits; it must be a whole number"),
    ("convert --from trl escape.json", "max_steps is '\\x1b[31mred'"),
    ("convert --from trl list.json", "its top level must be keys with values"),
    ("convert --from trl train.py", "settings are not read from .py files; give YAML"),
    ("convert --from trl launch", "is a Python program"),
    ("convert --from trl open.toml", "not TOML ("),
    ("convert --from trl open.sh", "not sh (No closing quotation)"),
    ("convert --from trl script.sh", "no settings were given"),
    ("convert --from trl none.yaml", "none.yaml: cannot be read (No such file or directory)"),
    ("show none.ledger", "none.ledger: "),
    ("show .", "plain.ledger: not a ledger"),
    ("audit nowhere", "nowhere: no run of a trainer that is known is logged there"),
    ("audit a.csv --trainer verl --ledger none.ledger", "a.csv: "),
    ("run --ledger new.ledger --log logs -- true", "there is no limit to hold the run to"),
    ("run --ledger new.ledger --log logs --rollouts 9 --silence 0 -- true", "--silence is 0.0"),
    ("run --ledger new.ledger --log logs --rollouts 9 --signal SIGN -- true", "must be the name of a signal"),
    ("run --ledger new.ledger --log logs --rollouts 9 -- no-such-program", "there is no such command"),
    ("run --ledger a.csv --log logs --rollouts 9 -- true", "a.csv: not a ledger"),
]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder to work in, with files that are not what they should be."""
    monkeypatch.chdir(tmp_path)
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    # Not a device of the system: whoever runs this as root would lose it to a fault.
    os.mkfifo(tmp_path / "pipe")
    for run_id in ("a", "other"):
        with Ledger.open(tmp_path / f"{run_id}.ledger", run_id=run_id) as ledger:
            ledger.charge(1, {"trained": Counts(rollouts=4)})
    return tmp_path


def run(line):
    """The status of a command, however it is told."""
    try:
        return main(shlex.split(line.replace("$'\\x1b[31m'", "\x1b[31m")))
    except SystemExit as error:
        return error.code


@pytest.mark.parametrize(("line", "told"), WRONG, ids=[line[:60] for line, _ in WRONG])
def test_a_wrong_command_is_one_sentence_and_leaves_no_file(folder, capsys, line, told):
    before = sorted(folder.rglob("*"))
    assert run(line) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    assert err.endswith("\n")
    assert err[:-1].isprintable()
    assert len(err) < 1_000
    assert "()" not in err
    assert told in err
    assert sorted(folder.rglob("*")) == before


SIGNAL = """
import os, signal, sys
from isocompute.budget.cli import main
# What started the tests may ignore it.
signal.signal(signal.SIGTERM, signal.SIG_DFL)
# The file is written and not yet in its place.
os.fsync = lambda handle: os.kill(os.getpid(), signal.SIGTERM)
sys.exit(main(["show", "a.ledger", "--json", "made.json"]))
"""


def test_a_command_that_is_ended_leaves_no_unfinished_file(folder):
    before = sorted(folder.rglob("*"))
    done = subprocess.run([sys.executable, "-c", SIGNAL], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (128 + signal.SIGTERM, "")
    assert sorted(folder.rglob("*")) == before


def test_a_locale_without_unicode_is_no_error(folder, monkeypatch):
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(sys, name, io.TextIOWrapper(io.BytesIO(), encoding="ascii"))
    assert run(f"convert --to trl {SPLIT}") == 0
    assert run("convert --from trl \u00fc.yaml") == 2
    sys.stderr.flush()
    assert b"\\xfc.yaml: cannot be read" in sys.stderr.buffer.getvalue()
