"""Learner ranks as Ray actors in a placement group, with ``torch.distributed`` between them.

The actor is a thin wrapper round ``Learner``; the group shows the same methods as one learner does, so the
training loop does not know which of the two it drives.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import polars as pl
import torch
import torch.distributed as dist

from .config import LearnerConfig
from .errors import LearnerError
from .learner import Learner, UpdateReport

COLLECTIVE_PATIENCE = timedelta(minutes=30)
"""How long a rank waits for another in the middle of an update before it fails."""


class RankActor:
    """One rank: joins the process group, then is a ``Learner``."""

    def __init__(self, rank: int, world_size: int, device: str) -> None:
        self._rank, self._world_size, self._device = rank, world_size, device

    def host(self) -> tuple[str, int]:
        """Open the store at which the ranks meet, on a free port of this rank's machine, and say where."""
        import ray

        machine = ray.util.get_node_ip_address()
        self._store = dist.TCPStore(
            machine, 0, self._world_size, is_master=True, timeout=COLLECTIVE_PATIENCE, wait_for_workers=False
        )
        return machine, self._store.port

    def join(self, machine: str, port: int) -> None:
        """Join the process group."""
        if self._device == "cpu":
            torch.set_num_threads(1)
        if self._rank:
            self._store = dist.TCPStore(machine, port, self._world_size, is_master=False, timeout=COLLECTIVE_PATIENCE)
        dist.init_process_group(
            "gloo" if self._device == "cpu" else "nccl",
            store=self._store,
            rank=self._rank,
            world_size=self._world_size,
            timeout=COLLECTIVE_PATIENCE,
        )

    def load(self, model: str, config: LearnerConfig) -> None:
        """Load the policy."""
        self._learner = Learner(model, config, device=self._device, ranks=dist.group.WORLD)

    def reset(self, config: LearnerConfig) -> None:
        """See ``Learner.reset``."""
        self._learner.reset(config)

    def update(self, rollouts: pl.DataFrame) -> UpdateReport:
        """Update from this rank's share."""
        return self._learner.update(rollouts)

    def sync_error(self, rollouts: pl.DataFrame) -> float:
        """See ``Learner.sync_error``."""
        return self._learner.sync_error(rollouts)

    def weights(self) -> dict[str, torch.Tensor]:
        """The policy's tensors, on the CPU."""
        return {name: tensor.cpu() for name, tensor in self._learner.weights()}

    def state(self) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        """See ``Learner.state``; on the CPU, as the driver may have no device."""
        tensors, values = self._learner.state()
        return {name: tensor.cpu() for name, tensor in tensors.items()}, values

    def load_state(self, tensors: dict[str, torch.Tensor], values: dict[str, Any]) -> None:
        """See ``Learner.load_state``."""
        self._learner.load_state(tensors, values)


class LearnerGroup:
    """Ranks that take every update together.

    Args:
        model: The base model.
        config: The learner's settings.
        world_size: Ranks.
        device: ``cpu`` or ``cuda``; one processor of it a rank.
        patience: Seconds to wait for places in the cluster, and again for the ranks to start and to meet.

    Raises:
        LearnerError: The cluster has no room for the ranks, a rank did not start or died, or the model
            cannot be loaded. Nothing is left of the group.
    """

    def __init__(
        self,
        model: str | Path,
        config: LearnerConfig,
        *,
        world_size: int,
        device: str = "cpu",
        patience: float = 300.0,
    ) -> None:
        import ray
        from ray.util.placement_group import placement_group
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        if world_size < 1:
            raise LearnerError(f"world_size is {world_size}; a group has 1 rank or more")
        kind = "CPU" if device == "cpu" else "GPU"
        self.config, self.version = config, 0
        self._ranks: list[Any] = []
        self._placement = placement_group([{"CPU": 1.0, kind: 1.0}] * world_size, strategy="PACK")
        try:
            # Unlike ready(), wait() asks no worker process, so that no room and no workers are told apart.
            if not self._placement.wait(patience):
                raise LearnerError(
                    f"{world_size} ranks need {world_size} {kind}s, and in {patience:g} s the cluster, which has "
                    f"{ray.cluster_resources().get(kind, 0):g} in all, had no room for them"
                )
            actor: Any = ray.remote(num_cpus=1, num_gpus=0 if kind == "CPU" else 1)(RankActor)
            strategy = PlacementGroupSchedulingStrategy(placement_group=self._placement)
            self._ranks = [
                actor.options(scheduling_strategy=strategy).remote(rank, world_size, device)
                for rank in range(world_size)
            ]
            (meeting,) = self._wait([self._ranks[0].host.remote()], "start", patience)
            self._wait([rank.join.remote(*meeting) for rank in self._ranks], "meet", patience)
            # A large model may take its time; a rank that dies of it is noticed.
            self._wait([rank.load.remote(str(model), config) for rank in self._ranks], "load the model")
        except BaseException:
            self.close()
            raise

    def reset(self, config: LearnerConfig) -> None:
        """Take every rank back to the base model, a fresh optimizer and version 0."""
        self._wait([rank.reset.remote(config) for rank in self._ranks], "reset")
        self.config, self.version = config, 0

    def update(self, rollouts: pl.DataFrame) -> UpdateReport:
        """Deal the responses out to the ranks by index and take one step together; see ``Learner.update``."""
        world = len(self._ranks)
        shares = [rollouts[i::world] for i in range(world)]
        updates = [rank.update.remote(share) for rank, share in zip(self._ranks, shares, strict=True)]
        first: UpdateReport = self._wait(updates, "update")[0]
        self.version += 1
        return first

    def sync_error(self, rollouts: pl.DataFrame) -> float:
        """See ``Learner.sync_error``; asked of the first rank."""
        return float(self._wait([self._ranks[0].sync_error.remote(rollouts)], "compare")[0])

    def weights(self) -> Any:
        """The first rank's tensors; all ranks hold the same."""
        return iter(self._wait([self._ranks[0].weights.remote()], "hand over the weights")[0].items())

    def state(self) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        """The first rank's state."""
        tensors, values = self._wait([self._ranks[0].state.remote()], "hand over the state")[0]
        return tensors, values

    def load_state(self, tensors: dict[str, torch.Tensor], values: dict[str, Any]) -> None:
        """Give every rank the same state."""
        import ray

        kept = ray.put(tensors)
        self._wait([rank.load_state.remote(kept, values) for rank in self._ranks], "load the state")
        self.version = int(values["version"])

    def close(self) -> None:
        """End the ranks and free their places."""
        import ray
        from ray.util.placement_group import remove_placement_group

        for rank in self._ranks:
            ray.kill(rank)
        self._ranks = []
        remove_placement_group(self._placement)

    def _wait(self, calls: Sequence[Any], task: str, patience: float | None = None) -> list[Any]:
        """Results of the calls; the first that fails ends the wait, since its peers may wait for it for ever."""
        import ray

        pending = list(calls)
        while pending:
            done, pending = ray.wait(pending, timeout=patience)
            if not done:
                raise LearnerError(
                    f"{len(pending)} of {len(calls)} ranks did not {task} in {patience:g} s: "
                    "see raylet.err in the logs of the Ray session"
                )
            try:
                ray.get(done)
            except ray.exceptions.RayTaskError as error:
                if isinstance(error.cause, LearnerError):
                    raise error.cause from None
                raise
            except ray.exceptions.RayActorError as error:
                reason = str(error).strip().splitlines()[0]
                raise LearnerError(
                    f"rank {calls.index(done[0])} of {len(calls)} died before it could {task} ({reason})"
                ) from None
        return list(ray.get(list(calls)))
