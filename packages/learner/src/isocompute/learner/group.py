"""Learner ranks as Ray actors in a placement group, with ``torch.distributed`` between them.

The actor is a thin wrapper round ``Learner``; the group shows the same methods as one learner does, so the
training loop does not know which of the two it drives.
"""

from __future__ import annotations

import socket
from datetime import timedelta
from pathlib import Path
from typing import Any

import polars as pl
import torch

from .config import LearnerConfig
from .errors import LearnerError
from .learner import Learner, UpdateReport

JOIN_PATIENCE = timedelta(minutes=5)
"""How long a rank waits for the others before it fails."""


class RankActor:
    """One rank: joins the process group, then is a ``Learner``."""

    def __init__(self, rank: int, world_size: int, model: str, config: LearnerConfig, device: str) -> None:
        self._rank, self._world_size = rank, world_size
        self._model, self._config, self._device = model, config, device

    def address(self) -> str:
        """A free ``host:port`` of this rank's machine."""
        import ray

        with socket.socket() as probe:
            probe.bind(("", 0))
            return f"{ray.util.get_node_ip_address()}:{probe.getsockname()[1]}"

    def join(self, address: str) -> int:
        """Join the process group and load the policy."""
        if self._device == "cpu":
            torch.set_num_threads(1)
        torch.distributed.init_process_group(
            "gloo" if self._device == "cpu" else "nccl",
            init_method=f"tcp://{address}",
            rank=self._rank,
            world_size=self._world_size,
            timeout=JOIN_PATIENCE,
        )
        self._learner = Learner(self._model, self._config, device=self._device)
        return self._rank

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
        """The policy's tensors."""
        return {name: tensor.cpu() for name, tensor in self._learner.weights()}

    def state(self) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        """See ``Learner.state``."""
        return self._learner.state()

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
        patience: Seconds to wait for places in the cluster.

    Raises:
        LearnerError: The cluster has no room for the ranks.
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
        from ray.util.placement_group import placement_group, remove_placement_group
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        bundle = {"CPU": 1.0} if device == "cpu" else {"CPU": 1.0, "GPU": 1.0}
        self._placement = placement_group([bundle] * world_size, strategy="PACK")
        try:
            ray.get(self._placement.ready(), timeout=patience)
        except ray.exceptions.GetTimeoutError:
            remove_placement_group(self._placement)
            kind = "CPU" if device == "cpu" else "GPU"
            raise LearnerError(
                f"{world_size} ranks need {world_size} {kind}s, and in {patience:g} s the cluster, which has "
                f"{ray.cluster_resources().get(kind, 0):g} in all, had no room for them"
            ) from None
        actor: Any = ray.remote(num_cpus=1, num_gpus=0 if device == "cpu" else 1)(RankActor)
        strategy = PlacementGroupSchedulingStrategy(placement_group=self._placement)
        self._ranks = [
            actor.options(scheduling_strategy=strategy).remote(rank, world_size, str(model), config, device)
            for rank in range(world_size)
        ]
        self.config = config
        self.version = 0
        address = ray.get(self._ranks[0].address.remote())
        ray.get([rank.join.remote(address) for rank in self._ranks])

    def reset(self, config: LearnerConfig) -> None:
        """Take every rank back to the base model, a fresh optimizer and version 0."""
        import ray

        ray.get([rank.reset.remote(config) for rank in self._ranks])
        self.config, self.version = config, 0

    def update(self, rollouts: pl.DataFrame) -> UpdateReport:
        """Deal the responses out to the ranks and take one step together."""
        import ray

        world = len(self._ranks)
        shares = [rollouts[i::world] for i in range(world)]
        reports = ray.get([r.update.remote(s) for r, s in zip(self._ranks, shares, strict=True)])
        self.version += 1
        first: UpdateReport = reports[0]
        return first

    def sync_error(self, rollouts: pl.DataFrame) -> float:
        """See ``Learner.sync_error``; asked of the first rank."""
        import ray

        return float(ray.get(self._ranks[0].sync_error.remote(rollouts)))

    def weights(self) -> Any:
        """The first rank's tensors; all ranks hold the same."""
        import ray

        return iter(ray.get(self._ranks[0].weights.remote()).items())

    def state(self) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        """The first rank's state."""
        import ray

        tensors, values = ray.get(self._ranks[0].state.remote())
        return tensors, values

    def load_state(self, tensors: dict[str, torch.Tensor], values: dict[str, Any]) -> None:
        """Give every rank the same state."""
        import ray

        ray.get([rank.load_state.remote(tensors, values) for rank in self._ranks])
        self.version = int(values["version"])

    def close(self) -> None:
        """End the ranks and free their places."""
        import ray
        from ray.util.placement_group import remove_placement_group

        for rank in self._ranks:
            ray.kill(rank)
        remove_placement_group(self._placement)
