"""Signals: what runs saves its state, and a command that runs others waits for it."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from experiments.running import cluster

ROOT = Path(__file__).parents[2]
STAGE = """
import time
from pathlib import Path
from experiments.running import stopping

stopping.install()
try:
    with stopping.deferred() as signalled:
        Path("up").touch()
        while not signalled():
            time.sleep(0.05)
        time.sleep(1.5)
        Path("saved").touch()
except stopping.Stopped as stopped:
    raise SystemExit(stopped.exit_code)
"""
RUNNER = """
import signal, subprocess, sys
signal.signal(signal.SIGINT, signal.SIG_IGN)
sys.exit(subprocess.call(f"{sys.executable} stage.py experiments; exit $?", shell=True))
"""
COMMAND = """
import os, sys
from experiments.__main__ import call
from experiments.running import stopping

stopping.install()
try:
    call([sys.executable, "runner.py"], dict(os.environ))
except stopping.Stopped as stopped:
    print(stopped, flush=True)
    raise SystemExit(stopped.exit_code)
"""


@pytest.mark.slow
@pytest.mark.parametrize(("number", "to_all"), [(signal.SIGTERM, False), (signal.SIGINT, True)])
def test_a_signal_reaches_the_stage_once_which_saves_before_the_command_ends(
    tmp_path: Path, number: signal.Signals, to_all: bool
) -> None:
    """Sent to the command alone, as by ``kill``, or to all of its group, as by a terminal or a batch system."""
    for name, text in (("stage.py", STAGE), ("runner.py", RUNNER), ("command.py", COMMAND)):
        (tmp_path / name).write_text(text)
    process = subprocess.Popen(
        [sys.executable, "command.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    while not (tmp_path / "up").exists():
        assert process.poll() is None
        time.sleep(0.05)
    (os.killpg if to_all else os.kill)(process.pid, number)
    said = process.communicate()[0]
    assert process.returncode == 128 + number
    assert said == f"stopped by {number.name}\n"
    assert (tmp_path / "saved").exists()


def twice(seconds: float) -> None:
    """Send this process a signal, and another one later."""
    with cluster.deferred() as signalled:
        os.kill(os.getpid(), signal.SIGTERM)
        assert signalled() == signal.SIGTERM
        time.sleep(seconds)
        os.kill(os.getpid(), signal.SIGTERM)
        print("saved")


def test_a_second_signal_ends_at_once_unless_it_is_the_first_passed_on(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for seconds, saved in ((0.0, "saved\n"), (0.3, "")):
        monkeypatch.setattr(cluster, "SAME_SECONDS", 0.2 if seconds else 60.0)
        with pytest.raises(cluster.Stopped, match="stopped by SIGTERM"):
            twice(seconds)
        assert capsys.readouterr().out == saved


def test_handlers_are_what_they_were_before() -> None:
    before = [signal.getsignal(number) for number in cluster.SIGNALS]
    with cluster.deferred() as signalled:
        assert signalled() is None
    assert [signal.getsignal(number) for number in cluster.SIGNALS] == before
