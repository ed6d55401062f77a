"""One rank by itself."""

import socket

import pytest
import ray
import torch.distributed as dist
from isocompute.learner.ranks.rank import RankActor


def test_the_store_is_reached_at_the_address_of_its_machine_only(monkeypatch: pytest.MonkeyPatch) -> None:
    if dist.is_initialized():
        # An engine of an earlier test in this process.
        dist.destroy_process_group()
    monkeypatch.setattr(ray.util, "get_node_ip_address", lambda: "127.0.0.1")
    rank = RankActor(0, 1, "cpu", 5.0)
    machine, port = rank.host()
    socket.create_connection((machine, port), timeout=5).close()
    # Another address of this machine, on which a store that listens everywhere would answer.
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", port), timeout=5)
    rank.join(machine, port)
