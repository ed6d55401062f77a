"""Learner ranks as Ray actors in a placement group: they take every update together, or end together.

The group has the same methods as a single learner, so the training loop need not tell them apart. Every wait has a
timeout. Tensors are transferred in parts, so the driver never holds all of them.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import polars as pl
import torch
import torch.distributed as dist
from safetensors import SafetensorError

from ..batch.packing import shares
from ..batch.responses import check_columns, check_rows
from ..config import LearnerConfig
from ..contract.deaths import death
from ..contract.files import reason_of
from ..errors import CheckpointError, LearnerError, RankError
from ..policy.loading import WholeTensors, weights
from ..records.steps import Agreement, UpdateReport
from ..saving.checkpoint import TensorFiles, parts, write_tensors
from ..updates.learner import Learner, check_base, skipped, state_values

PART = 2**28
"""Most bytes transferred in one call; a single tensor may have more."""
STATE, WEIGHTS = "state", "weights"
POLL_SECONDS = 0.1
"""Interval at which ranks are asked whether their part of a checkpoint is written."""
OnRank = Callable[[int, Iterator[tuple[str, torch.Tensor]]], Any]
"""Called on a rank with its number and the policy's tensors; it must read all of them on every rank."""


class LearnerGroup:
    """Ranks that take every update together, and share the policy unless ``compute.sharding`` is ``none``.

    If one rank fails, its peers may be waiting for it in the middle of an update. They get a short grace period to fail
    as well. Unless every rank rejected the call with a ``LearnerError``, the group is broken and its ranks are
    terminated; ``reset`` starts new ones. The error of a timeout names what was waited for.

    Args:
        device: ``cpu`` or ``cuda``; each rank takes one CPU, and with ``cuda`` also ``gpu_share`` of a GPU.
        placement: A Ray placement group to use, such as one shared with engines; by default a new one.
        bundles: Each rank's bundle in the placement group; by default the first ones.
        gpu_share: Share of its GPU that a rank takes; the engine on the same GPU takes the rest.
        patience: Timeout for resources in the cluster, and again for the ranks' start and their rendezvous, s.
        load_patience: Timeout for loading the model, s.
        update_patience: Timeout for an update and for any other call, s. A rank that waits for another within a call
            gives up after twice the longer of this and ``load_patience``.
        grace: Timeout for the peers of a rank that failed, s.

    Raises:
        LearnerError: The cluster is too small or has no room for the ranks, a rank did not start or died, or the
            model cannot be loaded. Nothing is left of the group.
    """

    def __init__(
        self,
        model: str | Path,
        config: LearnerConfig,
        *,
        world_size: int,
        device: str = "cpu",
        placement: Any = None,
        bundles: Sequence[int] | None = None,
        gpu_share: float = 1.0,
        patience: float = 300.0,
        load_patience: float = 1800.0,
        update_patience: float = 1800.0,
        grace: float = 5.0,
    ) -> None:
        if world_size < 1:
            raise LearnerError(f"world_size is {world_size}; a group has 1 rank or more")
        if bundles is not None and len(bundles) != world_size:
            raise LearnerError(f"bundles names {len(bundles)} bundles; it must name one for each of {world_size} ranks")
        try:
            import ray  # noqa: F401
        except ModuleNotFoundError:
            raise LearnerError('Ray is not installed: pip install "isocompute-learner[ray]"') from None
        self.model, self.config, self.version, self.base = str(model), config, 0, ""
        self._world_size, self._device = world_size, device
        self._patience, self._load_patience, self._update_patience = patience, load_patience, update_patience
        self._grace = grace
        self._ranks: list[Any] = []
        self._given, self._placement = placement, placement
        self._bundles, self._gpu_share = bundles or range(world_size), gpu_share
        self._start(config)

    @property
    def broken(self) -> bool:
        """Return whether the ranks were terminated, so that the group must be reset before further use."""
        return not self._ranks

    def reset(self, config: LearnerConfig) -> None:
        """Reset every rank to the base model, a fresh optimizer and version 0; a broken group gets new ranks."""
        if self.broken:
            self._start(config)
        else:
            try:
                self._same_base("reset", "reset", config)
            except LearnerError:
                # Ranks that could not reload the model have none.
                self.close()
                raise
        self.config, self.version = config, 0

    def measure(self, rollouts: pl.DataFrame) -> pl.DataFrame:
        """Pass responses through the model, each rank its share; see ``Learner.measure``."""
        measured: pl.DataFrame = pl.concat(self._on_shares("measure", rollouts))
        return measured

    def update(self, batch: pl.DataFrame, /, *, advance: bool = True) -> UpdateReport:
        """Split the responses over ranks by their token cost, and take one step together."""
        # Check here, since a rank that refuses alone leaves the others waiting.
        check_columns(batch, ("prompt_ids", "response_ids", "logprobs"))
        check_rows(batch.filter(pl.col("response_ids").list.len() > 0))
        first: UpdateReport = self._on_shares("update", batch, advance=advance)[0]
        self.version += advance and first.optimizer_steps
        return first

    def _on_shares(self, method: str, rollouts: pl.DataFrame, **settings: Any) -> list[Any]:
        """Call a method of every rank's learner with its share of the responses, and return the results."""
        ranks, free = self._in_use(), None
        if "advantage" in rollouts.columns:
            # Responses that do not pass through the model.
            free = skipped(rollouts["advantage"].to_numpy(), rollouts["zero_variance"].to_numpy(), self.config)
        parts = shares(rollouts, len(ranks), free=free)
        calls = [rank.call.remote(method, part, **settings) for rank, part in zip(ranks, parts, strict=True)]
        return self._wait(calls, method)

    def agreement(self, rollouts: pl.DataFrame) -> Agreement:
        """See ``Learner.agreement``; runs on every rank, since none can run a shared policy alone."""
        import ray

        found: Agreement = self._on_each("compare", "call", "agreement", ray.put(rollouts))[0]
        return found

    def weights(self) -> RankWeights:
        """The policy's tensors by their Hugging Face names, whole; see ``Learner.weights``."""
        return RankWeights(self)

    def state(self) -> tuple[Mapping[str, torch.Tensor], dict[str, Any]]:
        """See ``Learner.state``; if ranks cannot write a checkpoint, this process holds a few tensors at a time."""
        return self._tensors(STATE), state_values(self.model, self.base, self.version)

    def _tensors(self, of: str) -> RemoteTensors:
        def fetch(names: Sequence[str]) -> dict[str, torch.Tensor]:
            found: dict[str, torch.Tensor] = self._on_each(f"hand over the {of}", "tensors", of, names)[0]
            return found

        (sizes,) = self._wait([self._in_use()[0].sizes.remote(of)], f"name the {of}")
        return RemoteTensors(sizes, fetch, self._write)

    def _write(self, folder: Path) -> Callable[[], dict[str, str]] | None:
        """Let each rank copy its part of the state and write it during the next steps; see ``Checkpoint``.

        Returns None if a rank is on a machine that does not see the folder.
        """
        if not self._see(folder):
            return None
        self._on_each("copy the state", "write", str(folder))
        return partial(_written, self._ranks)

    def _see(self, path: Path) -> bool:
        return all(self._on_each("look for the checkpoint", "sees", str(path)))

    def load_state(self, tensors: Mapping[str, torch.Tensor], values: dict[str, Any]) -> None:
        """Give the ranks a state, a few tensors at a time; see ``Learner.load_state``."""
        import ray

        check_base(values, model=self.model, base=self.base)
        task, version = "load the state", int(values["version"])
        self._on_each(task, "call", "expect", list(tensors), version)
        if isinstance(tensors, TensorFiles) and all(map(self._see, tensors.paths)):
            self._on_each(task, "read", tensors.paths)
        else:
            for part in parts(tensors.items(), most=PART):
                self._on_each(task, "call", "take", ray.put(part))
        self.version = version

    def close(self) -> None:
        """Terminate the ranks, whatever they are doing, and release their resources in the cluster."""
        import ray
        from ray.util.placement_group import remove_placement_group

        for rank in self._ranks:
            ray.kill(rank)
        if self._placement is not self._given:
            remove_placement_group(self._placement)
        self._ranks, self._placement = [], self._given

    def _start(self, config: LearnerConfig) -> None:
        """Reserve resources, start the ranks, connect them and load the model; all of it or nothing."""
        import ray
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        try:
            if self._given is None:
                self._reserve_places()
            actor: Any = ray.remote(num_cpus=1, num_gpus=0 if self._device == "cpu" else self._gpu_share)(RankActor)
            places = [
                PlacementGroupSchedulingStrategy(placement_group=self._placement, placement_group_bundle_index=bundle)
                for bundle in self._bundles
            ]
            longest = max(self._update_patience, self._load_patience)
            shares_gpu = self._device != "cpu" and self._gpu_share < 1
            # An unnamed actor ends with the process that started it.
            self._ranks = [
                actor.options(scheduling_strategy=place).remote(
                    rank, self._world_size, self._device, longest, shares_gpu
                )
                for rank, place in enumerate(places)
            ]
            (rendezvous,) = self._wait([self._ranks[0].host.remote()], "start", self._patience)
            self._on_each("join the process group", "join", *rendezvous, patience=self._patience)
            self._same_base("load the model", "load", self.model, config)
        except BaseException:
            self.close()
            raise

    def _same_base(self, task: str, method: str, *arguments: Any) -> None:
        """Wait until every rank has loaded the base model, and check that all loaded the same one."""
        found = self._on_each(task, method, *arguments, patience=self._load_patience)
        self.base = str(found[0])
        for rank, base in enumerate(found):
            if base != self.base:
                raise LearnerError(
                    f"the weights of {self.model} have the hash {base} on rank {rank}, and {self.base} on rank 0: it "
                    "must be the same model on every machine"
                )

    def _reserve_places(self) -> None:
        """Reserve a placement group with one bundle per rank."""
        import ray
        from ray.util.placement_group import placement_group

        ranks, kinds = self._world_size, ("CPU",) if self._device == "cpu" else ("GPU", "CPU")
        cluster = ray.cluster_resources()
        for kind in kinds:
            if cluster.get(kind, 0) < ranks:
                raise LearnerError(
                    f"{ranks} ranks need {ranks} {kind}s, and the cluster has {cluster.get(kind, 0):g} in all"
                )
        self._placement = placement_group([dict.fromkeys(kinds, 1.0)] * ranks, strategy="PACK")
        # Unlike ready(), wait() starts no worker process: it fails only if there is no room.
        if not self._placement.wait(self._patience):
            raise LearnerError(
                f"{ranks} ranks need {ranks} {kinds[0]}s, and in {self._patience:g} s the cluster, which has "
                f"{cluster[kinds[0]]:g} in all, had no room for them"
            )

    def _in_use(self) -> list[Any]:
        if self.broken:
            raise RankError(
                "the group has no ranks, because one failed or the group was closed; call reset() to start new ones"
            )
        return self._ranks

    def _on_each(self, task: str, method: str, *arguments: Any, patience: float | None = None) -> list[Any]:
        """Call a method on every rank and return the results."""
        return self._wait([getattr(rank, method).remote(*arguments) for rank in self._in_use()], task, patience)

    def _wait(self, calls: Sequence[Any], task: str, patience: float | None = None) -> list[Any]:
        """Return the results of the calls, one per rank; the ranks stay in use if all raised a ``LearnerError``.

        After any other error or a timeout, their state is unknown.
        """
        import ray

        patience = self._update_patience if patience is None else patience
        values: list[Any] = [None] * len(calls)
        failures: dict[int, Exception] = {}
        ranks = {call: rank for rank, call in enumerate(calls)}
        pending, end = list(calls), monotonic() + patience
        try:
            while pending:
                done, pending = ray.wait(pending, timeout=max(0.0, end - monotonic()))
                if not done:
                    break
                rank = ranks[done[0]]
                try:
                    values[rank] = ray.get(done[0])
                except ray.exceptions.RayError as error:
                    if not failures:
                        # The others may be waiting for it in a collective.
                        end = min(end, monotonic() + self._grace)
                    failures[rank] = error
        except BaseException:
            # Interrupted while the ranks work.
            self.close()
            raise
        if not failures and not pending:
            return values
        if not all(rank in failures and isinstance(_cause(failures[rank]), LearnerError) for rank in range(len(calls))):
            self.close()
        for rank, failure in failures.items():
            if why := death(failure):
                raise RankError(f"rank {rank} of {len(calls)} died before it could {task} ({why})")
        if failures:
            raise _cause(next(iter(failures.values()))) from None
        raise RankError(
            f"{len(pending)} of {len(calls)} ranks did not {task} in {patience:g} s: "
            "see raylet.err in the logs of the Ray session"
        )


class RankWeights(Iterable[tuple[str, torch.Tensor]]):
    """The policy's whole tensors by their Hugging Face names: transferred one by one, or used on the ranks."""

    def __init__(self, group: LearnerGroup) -> None:
        self._group = group

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        yield from self._group._tensors(WEIGHTS).items()

    def on_ranks(self, function: OnRank) -> list[Any]:
        """Call a function on every rank, where tensors are gathered as they are read; return the results by rank."""
        return self._group._on_each("hand over the weights", "use_weights", function)


class RemoteTensors(Mapping[str, torch.Tensor]):
    """Tensors of some ``sizes`` (bytes), fetched from the ranks in parts; they must be read before the next update."""

    def __init__(
        self,
        sizes: Mapping[str, int],
        fetch: Callable[[Sequence[str]], Mapping[str, torch.Tensor]],
        write: Callable[[Path], Callable[[], dict[str, str]] | None],
    ) -> None:
        self._parts = {name: list(part) for part in parts(sizes.items(), size=int, most=PART) for name in part}
        self._fetch, self.write = fetch, write
        self._last: Mapping[str, torch.Tensor] = {}

    def __getitem__(self, name: str) -> torch.Tensor:
        if name not in self._last:
            part = self._parts[name]
            # Release the last part before fetching the next.
            self._last = {}
            self._last = self._fetch(part)
        return self._last[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._parts)

    def __len__(self) -> int:
        return len(self._parts)


def _written(ranks: Sequence[Any]) -> dict[str, str]:
    """Wait until ranks have written their parts of a checkpoint, while they may do other work."""
    import ray

    found: dict[str, str] = {}
    for number, rank in enumerate(ranks):
        try:
            while (files := ray.get(rank.written.remote())) is None:
                sleep(POLL_SECONDS)
        except ray.exceptions.RayError as error:
            if why := death(error):
                raise RankError(f"rank {number} of {len(ranks)} died before its checkpoint was whole ({why})") from None
            raise _cause(error) from None
        found |= files
    return found


class RankActor:
    """One rank: it joins the process group and holds a ``Learner``."""

    def __init__(self, rank: int, world_size: int, device: str, patience: float, shares_gpu: bool) -> None:
        self._rank, self._world_size, self._device = rank, world_size, device
        self._shares_gpu = shares_gpu
        # How long this rank waits for another within a call; the group gives up on both earlier.
        self._patience = timedelta(seconds=2 * patience)

    def host(self) -> tuple[str, int]:
        """Open the rendezvous store on a free port of this rank's machine; return the machine and the port."""
        import ray

        machine = ray.util.get_node_ip_address()
        family = socket.AF_INET6 if ":" in machine else socket.AF_INET
        # A store that opens its own port would listen on every address of the machine.
        with socket.create_server((machine, 0), family=family) as server:
            port = int(server.getsockname()[1])
            self._store = dist.TCPStore(
                machine,
                port,
                self._world_size,
                is_master=True,
                timeout=self._patience,
                wait_for_workers=False,
                master_listen_fd=server.detach(),
            )
        return machine, port

    def join(self, machine: str, port: int) -> None:
        """Join the process group through the rendezvous store of the first rank."""
        if self._device == "cpu":
            torch.set_num_threads(1)
        if self._rank:
            self._store = dist.TCPStore(machine, port, self._world_size, is_master=False, timeout=self._patience)
        cuda = self._device != "cpu"
        dist.init_process_group(
            "nccl" if cuda else "gloo",
            store=self._store,
            rank=self._rank,
            world_size=self._world_size,
            timeout=self._patience,
            # NCCL connects the ranks here, where a missing rank is noticed, and not in the first update.
            device_id=torch.device("cuda", torch.cuda.current_device()) if cuda else None,
        )

    def load(self, model: str, config: LearnerConfig) -> str:
        """Load the policy and return the hash of its weights; see ``Learner`` for errors."""
        self._learner = Learner(model, config, device=self._device, ranks=dist.group.WORLD)
        self._free_memory()
        return self._learner.base

    def reset(self, config: LearnerConfig) -> str:
        """See ``Learner.reset``; returns the hash of the weights."""
        self._learner.reset(config)
        return self._learner.base

    def call(self, method: str, *arguments: Any, **settings: Any) -> Any:
        """Call a method of its learner."""
        found = getattr(self._learner, method)(*arguments, **settings)
        self._free_memory()
        return found

    def use_weights(self, function: OnRank) -> Any:
        """Call a function with this rank's number and the policy's tensors; see ``RankWeights.on_ranks``."""
        try:
            return function(self._rank, self._learner.weights())
        finally:
            self._free_memory()

    def _free_memory(self) -> None:
        """Free cached memory before an engine on this GPU wakes: its process cannot free what this allocator keeps."""
        if self._shares_gpu:
            torch.cuda.empty_cache()

    def sizes(self, of: str) -> dict[str, int]:
        """Bytes of each tensor, by its name."""
        return self._held(of).sizes()

    def tensors(self, of: str, names: Sequence[str]) -> dict[str, torch.Tensor]:
        """Return some tensors on the CPU, since the driver may have no device; only the first rank returns any."""
        held, first = self._held(of), self._rank == 0
        found = {}
        for name in names:
            # All ranks gather it; all but the first release it at once.
            tensor = held[name]
            if first:
                found[name] = tensor.cpu()
        return found

    def _held(self, of: str) -> WholeTensors:
        return self._learner.state()[0] if of == STATE else weights(self._learner.policy)

    def sees(self, path: str) -> bool:
        """Return whether a file or folder of the driver exists for this rank, too."""
        return Path(path).exists()

    def write(self, folder: str) -> None:
        """Copy this rank's rows of each tensor and begin to write them; the first rank writes unsharded tensors."""
        copies, begins = {}, {}
        for name, tensor, rows in self._learner.state()[0].shares():
            if rows is not None:
                begins[name] = rows.start
            if tensor.numel() if rows is not None else self._rank == 0:
                copies[name] = tensor.detach().to("cpu", copy=True)
        pool, world = ThreadPoolExecutor(1), self._world_size
        self._writing = pool.submit(
            write_tensors, Path(folder), copies.items(), begins=begins, rank=self._rank, ranks=world
        )
        pool.shutdown(wait=False)

    def written(self) -> dict[str, str] | None:
        """Return the checksums of the files from ``write``; None while it is still running."""
        if not self._writing.done():
            return None
        try:
            return self._writing.result()
        except (OSError, SafetensorError) as error:
            raise CheckpointError(
                f"rank {self._rank} of {self._world_size} cannot write its part of the checkpoint ({reason_of(error)})"
            ) from None

    def read(self, paths: Sequence[Path]) -> None:
        """Load a part of a state from files; see ``Learner.take``."""
        self._learner.take(TensorFiles(paths))


def _cause(error: Exception) -> Exception:
    """Return a learner's error without the rank's traceback; any other error as Ray raises it."""
    cause = getattr(error, "cause", None)
    return cause if isinstance(cause, LearnerError) else error
