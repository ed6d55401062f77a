import sys
from pathlib import Path

from hypothesis import settings

# The helpers of these tests can be imported by name.
sys.path[:0] = [str(Path(__file__).parent / name) for name in ("trainers", "verl", "follow")]

# Signals, forks, pipes, limits of files: what these files do to a ledger can be done on POSIX only. What Windows must
# do is in test_windows.py.
POSIX = ("test_ledger", "test_repair", "test_torture", "test_writer")
collect_ignore: list[str] = []
if sys.platform == "win32":
    collect_ignore += [*(f"ledger/{name}.py" for name in POSIX), "commands/test_misuse.py", "follow"]
    collect_ignore += ["trainers/test_damaged_logs.py"]

settings.register_profile("unhurried", deadline=None)
settings.load_profile("unhurried")


def pytest_addoption(parser):
    parser.addoption("--trl-runs", default="20", help="real TRL runs of test_trl_runs.py (default: %(default)s)")
    parser.addoption("--trl-seed", default="0", help="which random layouts (default: %(default)s)")
