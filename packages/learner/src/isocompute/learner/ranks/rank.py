"""One learner rank as a Ray actor, with ``torch.distributed`` to the others: a thin wrapper round ``Learner``."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import polars as pl
import torch
import torch.distributed as dist

from ..config import LearnerConfig
from ..policy.weights import WholeTensors, weights
from ..records.updates import Agreement, UpdateReport
from ..updates.learner import Learner
from .handing import OnRank

STATE, WEIGHTS = "state", "weights"


class RankActor:
    """One rank: joins the process group, then is a ``Learner``."""

    def __init__(self, rank: int, world_size: int, device: str, patience: float, shares_gpu: bool) -> None:
        self._rank, self._world_size, self._device = rank, world_size, device
        self._shares_gpu = shares_gpu
        # How long it waits for another rank in the middle of a call; the group stops waiting for both earlier.
        self._patience = timedelta(seconds=2 * patience)

    def host(self) -> tuple[str, int]:
        """Open the rendezvous store on a free port of this rank's machine; returns the machine and the port."""
        import ray

        machine = ray.util.get_node_ip_address()
        family = socket.AF_INET6 if ":" in machine else socket.AF_INET
        # A store that opens its own port listens on every address of the machine.
        with socket.create_server((machine, 0), family=family) as server:
            port = int(server.getsockname()[1])
            self._store = dist.TCPStore(
                machine, port, self._world_size, is_master=True, timeout=self._patience, wait_for_workers=False,
                master_listen_fd=server.detach(),
            )  # fmt: skip
        return machine, port

    def join(self, machine: str, port: int) -> None:
        """Join the process group through the rendezvous store of the first rank."""
        if self._device == "cpu":
            torch.set_num_threads(1)
        if self._rank:
            self._store = dist.TCPStore(machine, port, self._world_size, is_master=False, timeout=self._patience)
        dist.init_process_group(
            "gloo" if self._device == "cpu" else "nccl",
            store=self._store,
            rank=self._rank,
            world_size=self._world_size,
            timeout=self._patience,
        )

    def load(self, model: str, config: LearnerConfig) -> None:
        """Load the policy; see ``Learner`` for errors."""
        self._learner = Learner(model, config, device=self._device, ranks=dist.group.WORLD)
        self._free_memory()

    def reset(self, config: LearnerConfig) -> None:
        """See ``Learner.reset``."""
        self._learner.reset(config)

    def measure(self, rollouts: pl.DataFrame) -> pl.DataFrame:
        """Measure this rank's share; see ``Learner.measure``."""
        return self._learner.measure(rollouts)

    def update(self, batch: pl.DataFrame, *, advance: bool) -> UpdateReport:
        """Update from this rank's share; see ``Learner.update``.

        Args:
            advance: Whether the version is counted up.
        """
        report = self._learner.update(batch, advance=advance)
        self._free_memory()
        return report

    def agreement(self, rollouts: pl.DataFrame) -> Agreement:
        """See ``Learner.agreement``."""
        return self._learner.agreement(rollouts)

    def use_weights(self, function: OnRank) -> Any:
        """Call a function with this rank's number and the policy's tensors; see ``RankWeights.on_ranks``."""
        try:
            return function(self._rank, self._learner.weights())
        finally:
            self._free_memory()

    def _free_memory(self) -> None:
        """Before an engine on this GPU wakes: its process cannot free what this one's allocator keeps."""
        if self._shares_gpu:
            torch.cuda.empty_cache()

    def sizes(self, of: str) -> dict[str, int]:
        """Bytes of each tensor, by its name."""
        return self._held(of).sizes()

    def tensors(self, of: str, names: Sequence[str]) -> dict[str, torch.Tensor]:
        """Some tensors, on the CPU, as the driver may have no device; the first rank's only.

        Args:
            of: As for ``sizes``.
            names: Their names, the same on all ranks.
        """
        held, first = self._held(of), self._rank == 0
        found = {}
        for name in names:
            # Gathered on all ranks, and at once let go on the others.
            tensor = held[name]
            if first:
                found[name] = tensor.cpu()
        return found

    def _held(self, of: str) -> WholeTensors:
        return self._learner.state()[0] if of == STATE else weights(self._learner.policy)

    def expect(self, names: Sequence[str]) -> None:
        """See ``Learner.expect``.

        Args:
            names: All names of a state.
        """
        self._learner.expect(names)

    def take(self, tensors: dict[str, torch.Tensor]) -> None:
        """See ``Learner.take``."""
        self._learner.take(tensors)

    def continue_at(self, version: int) -> None:
        """Go on from a state that was taken."""
        self._learner.version = version
