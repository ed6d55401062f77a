"""Where the processes of a cell are: one placement group for its learner ranks and its engines, freed together."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from time import monotonic
from typing import Any

from ..errors import ExperimentError
from .actor import NAMESPACE, WorkerConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The bundles of a placement group, and who is in which.

    Attributes:
        bundles: What each holds, in Ray's names.
        ranks: The bundle of each learner rank that is an actor.
        engines: The bundle of each engine that is an actor.
        share: Share of its GPU that each process takes.
    """

    bundles: Sequence[dict[str, float]]
    ranks: Sequence[int]
    engines: Sequence[int]
    share: float

    @classmethod
    def of(cls, config: WorkerConfig) -> Layout:
        """Lay out a worker's processes.

        Separate engines have bundles of their own; several that are colocated are one on each rank's device.
        """
        asked = config.resources
        gpus, ranks, engines = asked.device == "cuda", asked.rank_actors, asked.engine_actors
        shared = engines > 0 and asked.placement == "colocated"
        rank = {"CPU": 2.0 if shared else 1.0, **({"GPU": 1.0} if gpus else {})}
        engine = {"CPU": 1.0, **({"GPU": float(asked.engine.tensor_parallel or 1)} if gpus else {})}
        return cls(
            bundles=[rank] * ranks + [engine] * (0 if shared else engines),
            ranks=range(ranks),
            engines=range(engines) if shared else range(ranks, ranks + engines),
            share=0.5 if shared else 1.0,
        )


def reserve(layout: Layout, *, seconds: float) -> Any:
    """Return a placement group for a layout.

    Ray ends a group with the command whose workers reserved it, and not with the worker: those of dead workers are
    removed where there is no room.

    Args:
        seconds: Timeout.

    Raises:
        ExperimentError: The cluster has no room for it.
    """
    import ray
    from ray.util.placement_group import placement_group, remove_placement_group

    context = ray.get_runtime_context()
    name = context.get_actor_name() if context.worker.mode == ray.WORKER_MODE else ""
    group: Any = placement_group(list(layout.bundles), strategy="PACK", name=name or "")
    end = monotonic() + seconds
    # Unlike ready(), wait() starts no worker process.
    while not (there := group.wait(1.0)) and monotonic() < end:
        _remove_orphans()
    if not there:
        remove_placement_group(group)
        needed, has = amounts(layout.bundles), amounts([ray.cluster_resources()])
        raise ExperimentError(
            f"{len(layout.ranks)} learner ranks and {len(layout.engines)} engines need {needed} together, and in "
            f"{seconds:g} s the cluster, which has {has} in all, had no room for them: set learner_ranks, replicas or "
            "workers lower, or join a larger cluster"
        )
    return group


def _remove_orphans() -> None:
    """Remove the groups of workers that are dead: each has the name of its worker, and is in our namespace."""
    import ray
    from ray.util.placement_group import get_placement_group, placement_group_table, remove_placement_group

    named = [entry["name"] for entry in placement_group_table().values() if entry["state"] != "REMOVED"]
    for name in filter(None, named):
        try:
            ray.get_actor(name, namespace=NAMESPACE)
        except ValueError:
            with suppress(ValueError):
                # Another worker may be removing it.
                remove_placement_group(get_placement_group(name))


def amounts(bundles: Sequence[dict[str, float]]) -> str:
    """What some bundles hold together, such as ``4 CPUs and 1 GPUs``."""
    return " and ".join(f"{sum(bundle.get(kind, 0.0) for bundle in bundles):g} {kind}s" for kind in ("CPU", "GPU"))
