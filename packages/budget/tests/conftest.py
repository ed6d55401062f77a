import sys
from pathlib import Path

import pytest
from isocompute.budget.ledger import store

# The helpers of these tests can be imported by name.
sys.path[:0] = [str(Path(__file__).parent / name) for name in ("trainers", "verl", "follow", "planning")]

# Signals, forks, pipes, limits of files: what these files do to a ledger can be done on POSIX only. What Windows must
# do is in test_windows.py.
POSIX = ("test_ledger", "test_store", "test_torture")
collect_ignore: list[str] = []
if sys.platform == "win32":
    collect_ignore += [*(f"ledger/{name}.py" for name in POSIX), "commands/test_misuse.py", "follow"]
    collect_ignore += ["trainers/test_damaged_logs.py"]


@pytest.fixture(autouse=True)
def unsynced(request, monkeypatch):
    """Ledgers that wait for no disk, but where that is asked for."""
    if request.path.stem != "test_store":
        monkeypatch.setattr(store, "SYNCHRONOUS", "OFF")


@pytest.fixture
def trl(monkeypatch):
    """TRL, which here asks no hub for anything and sees no GPU."""
    from reading_logs import needed

    for name, value in {"HF_HUB_OFFLINE": "1", "TRL_EXPERIMENTAL_SILENCE": "1", "CUDA_VISIBLE_DEVICES": ""}.items():
        monkeypatch.setenv(name, value)
    return needed("trl")


def pytest_addoption(parser):
    parser.addoption("--trl-runs", default="20", help="real TRL runs of test_trl_runs.py (default: %(default)s)")
    parser.addoption("--trl-seed", default="0", help="which random layouts (default: %(default)s)")
