"""``nox -s soak``: a sweep whose cluster dies under it, where each cell is finished once, or listed as failed.

The driver, the cluster of several nodes and an MLflow server that hangs are real; workers are stubs without an engine.
"""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from ray.cluster_utils import Cluster

from .made import environment

pytestmark = pytest.mark.slow("Ray")

CELLS = int(os.environ.get("ISOCOMPUTE_SOAK_CELLS", "0"))
LONG = CELLS > 100
NODE = {"num_cpus": 2, "object_store_memory": 80 * 2**20}
NAME = "n={} Bp=2 lr=0.003 base seed={}"
FAILS, KILLS = (NAME.format(2, 1), NAME.format(8, 1)), (NAME.format(4, 2),)
"""Cells that raise an error, and one that kills its worker, whenever they are begun."""
DEADLINE = 3600.0 if LONG else 240.0


class Server:
    """An MLflow server on one port and one database, started and killed at will."""

    def __init__(self, folder: Path) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.uri = f"http://127.0.0.1:{self.port}"
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = ["mlflow", "server", "--backend-store-uri", f"sqlite:///{self._folder}/mlflow.db", "--workers", "1"]
        command += ["--artifacts-destination", str(self._folder / "artifacts"), "--port", str(self.port)]
        self._process = subprocess.Popen(
            [sys.executable, "-m", *command],
            env={**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        while True:
            assert self._process.poll() is None
            try:
                urllib.request.urlopen(f"{self.uri}/health", timeout=1)
                return
            except (urllib.error.URLError, OSError):
                time.sleep(0.2)

    def signal(self, number: int) -> None:
        if self._process and self._process.poll() is None:
            os.killpg(self._process.pid, number)

    def kill(self) -> None:
        self.signal(signal.SIGCONT)
        self.signal(signal.SIGKILL)
        if self._process:
            self._process.wait()


@pytest.fixture
def nodes(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """A head that holds no worker, and one node."""
    # Sockets have short paths, and other clusters of this machine are not joined.
    folder = tempfile.mkdtemp(prefix="soak", dir="/tmp")
    monkeypatch.setenv("RAY_TMPDIR", folder)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("RAY_memory_monitor_refresh_ms", "100")
    head = {"num_cpus": 0, "object_store_memory": 80 * 2**20, "include_dashboard": False}
    made = Cluster(initialize_head=True, head_node_args=head)
    made.add_node(**NODE)
    yield made
    made.shutdown()
    shutil.rmtree(folder, ignore_errors=True)


class Campaign:
    """A driver in a folder, and what its workers noted."""

    def __init__(self, folder: Path, cluster: Cluster, store: str) -> None:
        self.folder, self.said = folder, folder / "said"
        own = {"RAY_ADDRESS": cluster.address, "MLFLOW_TRACKING_URI": store, "PYTHONUNBUFFERED": "1"}
        self._environment = environment(**own)
        (folder / "work").mkdir()
        self.faults(deaths=0.1, step_seconds=0.02 if LONG else 0.15)

    def faults(self, *, deaths: float, step_seconds: float) -> None:
        """Set how many attempts end with the death of their worker, and how long a step takes."""
        plain = {"deaths": deaths, "fails": FAILS, "kills": KILLS, "step_seconds": step_seconds}
        aside = self.folder / "faults.writing"
        aside.write_text(json.dumps(plain))
        aside.rename(self.folder / "faults.json")

    def begin(self) -> subprocess.Popen[bytes]:
        """Start the driver."""
        seconds = 0.5 if LONG else 0.1
        sweep = f"from experiments.tests.soak.stub import main; raise SystemExit(main({CELLS}, 4, {seconds}))"
        command = [sys.executable, "-c", sweep]
        with self.said.open("ab") as stream:
            return subprocess.Popen(command, cwd=self.folder, env=self._environment, stdout=stream, stderr=stream)

    def finished(self) -> Counter[str]:
        """How often each cell was finished."""
        lines = (line.split() for line in self.noted())
        return Counter(words[1] for words in lines if words[0] == "finished")

    def noted(self) -> list[str]:
        """What workers noted, in order."""
        path = self.folder / "work" / "attempts"
        return path.read_text().splitlines() if path.exists() else []

    def until(self, true: Callable[[], bool], process: subprocess.Popen[bytes]) -> None:
        """Wait while the driver goes on."""
        began = time.monotonic()
        while not true():
            assert process.poll() is None, self.said.read_text()[-4000:]
            assert time.monotonic() - began < DEADLINE, self.said.read_text()[-4000:]
            time.sleep(0.1)

    def past(self, share: float) -> Callable[[], bool]:
        """Whether a share of the cells is finished."""
        return lambda: len(self.finished()) >= share * CELLS


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server | None]:
    """An MLflow server, where the campaign is long; else there is a file."""
    if not LONG:
        yield None
        return
    made = Server(tmp_path)
    made.start()
    yield made
    made.kill()


@pytest.mark.skipif(not CELLS, reason="nox -s soak; the death of one worker is in test_schedule.py")
def test_each_cell_is_finished_once_or_listed_whatever_dies(
    tmp_path: Path, nodes: Cluster, server: Server | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    campaign = Campaign(tmp_path, nodes, server.uri if server else f"sqlite:///{tmp_path}/mlflow.db")
    # Four workers, and room for two: the cluster grows.
    driver = campaign.begin()
    campaign.until(campaign.past(0.05), driver)
    joined = nodes.add_node(**NODE)
    campaign.until(lambda: any(joined.node_id in line for line in campaign.noted()), driver)

    # The disk is full for a while: cells fail, and the others go on.
    (tmp_path / "full").touch()
    campaign.until(lambda: "File too large" in campaign.said.read_text(), driver)
    (tmp_path / "full").unlink()

    if server:
        server.signal(signal.SIGSTOP)
    campaign.until(campaign.past(0.25), driver)
    nodes.remove_node(joined, allow_graceful=False)
    campaign.until(campaign.past(0.4), driver)
    stopped = stopped_by_a_signal(campaign, driver)
    driver = campaign.begin()
    if server:
        server.signal(signal.SIGCONT)

    # A node on which another program has taken the memory.
    monkeypatch.setenv("RAY_memory_usage_threshold", "0.01")
    full = nodes.add_node(**NODE)
    monkeypatch.delenv("RAY_memory_usage_threshold")
    campaign.until(lambda: "ran out of memory" in campaign.said.read_text(), driver)
    nodes.remove_node(full, allow_graceful=False)
    campaign.faults(deaths=0.05, step_seconds=0.01)

    assert driver.wait(DEADLINE) == 2, campaign.said.read_text()[-4000:]
    said = campaign.said.read_text()
    assert "Traceback" not in said
    assert "RAY_memory_usage_threshold" in said
    listed_or_finished_once(campaign, said, stopped)
    seconds = sum(float(each) for each in re.findall(r"driver: ([\d.]+) s of processor time", said))
    print(f"{CELLS} cells: the driver took {seconds:.1f} s of processor time in {said.count('driver: ')} runs")


def stopped_by_a_signal(campaign: Campaign, driver: subprocess.Popen[bytes]) -> list[str]:
    """Ask the driver to end; returns the cells that saved their state."""
    before = campaign.said.stat().st_size
    driver.send_signal(signal.SIGTERM)
    assert driver.wait(120) == 128 + signal.SIGTERM
    said = campaign.said.read_bytes()[before:].decode()
    assert "stopped by SIGTERM: the same command continues" in said
    assert "Traceback" not in said
    return [line.split()[1] for line in campaign.noted() if line.startswith("stopped")]


def listed_or_finished_once(campaign: Campaign, said: str, stopped: list[str]) -> None:
    """Look at every cell, after the last run of the driver."""
    listed = said[said.index("error: soak:") :]
    # A cell that failed for want of disk was begun again by the second command.
    assert f"error: soak: {len(FAILS) + len(KILLS)} of {CELLS} cells failed" in listed
    for name in FAILS:
        assert f"\n  {name}: this cell cannot be trained\n" in listed
    for name in KILLS:
        assert f"\n  {name}: its worker died 6 times" in listed
    done = {path.parent.name for path in campaign.folder.glob("work/cells/*/done.json")}
    assert len(done) == CELLS - len(FAILS) - len(KILLS)
    # A worker may be killed before it notes that it has finished one.
    finished = campaign.finished()
    assert set(finished.values()) == {1}
    assert set(finished) <= done
    assert set(stopped) <= done
    begun = Counter(line.split()[1] for line in campaign.noted() if line.startswith("start "))
    assert len(begun) == CELLS // 4
