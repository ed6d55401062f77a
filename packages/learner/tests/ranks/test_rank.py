"""One rank by itself."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow("an interpreter that is started")

# In a process of its own: an engine of another test may have a process group in this one.
ALONE = """
import socket
import ray
from isocompute.learner.ranks.group import RankActor

ray.util.get_node_ip_address = lambda: "127.0.0.1"
rank = RankActor(0, 1, "cpu", 5.0, False)
machine, port = rank.host()
socket.create_connection((machine, port), timeout=5).close()
try:
    # Another address of this machine, on which a store that listens everywhere would answer.
    socket.create_connection(("127.0.0.2", port), timeout=5)
except ConnectionRefusedError:
    print("refused")
rank.join(machine, port)
print("joined")
"""


def test_the_store_is_reached_at_the_address_of_its_machine_only() -> None:
    done = subprocess.run([sys.executable, "-c", ALONE], capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["refused", "joined"], done.stderr
