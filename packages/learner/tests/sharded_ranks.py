"""Learners in processes of torch's own that take every update together, and all that they hold meanwhile."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing import forkserver, get_context
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch
import torch.distributed as dist
from isocompute.learner.batch.packing import shares
from isocompute.learner.config import LearnerConfig
from isocompute.learner.policy.loading import own, whole
from isocompute.learner.records.steps import UpdateReport
from isocompute.learner.saving.checkpoint import Checkpoint, Checkpoints
from isocompute.learner.training.loop import learn
from isocompute.learner.updates.learner import Learner
from small_run import RUN, exact_norm
from transformers.models.qwen3 import modeling_qwen3
from transformers.models.qwen3.modeling_qwen3 import Qwen3RMSNorm

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
"""Where ranks share a policy: with one GPU they share that too, each in a process of its own."""


@dataclass(kw_only=True)
class Updates:
    """Updates to take.

    Attributes:
        tied: Whether the model's head is its embedding.
        empty: A rank whose share is empty; None: they are as the group cuts them.
        resume: A folder with a checkpoint to begin from.
        save: A folder for a checkpoint at the end.
        routed: Whether each layer of a Qwen3 has experts in place of one network.
        alone: Whether every rank takes all of them by itself, beside a process group that is not its own.
    """

    config: LearnerConfig
    model: Path = Path()
    batches: list[pl.DataFrame] = field(default_factory=list)
    tied: bool = True
    dtype: torch.dtype = torch.float64
    empty: int | None = None
    resume: Path | None = None
    save: Path | None = None
    routed: bool = False
    alone: bool = False


@dataclass(kw_only=True)
class Done:
    """What came of it, on one rank.

    Attributes:
        gradients: Of each optimizer step, whole and before it is clipped, by the parameter's name.
        moved: The weights' movement since the beginning.
        held: Bytes of parameters, gradients and moments that the rank itself held in the last step.
        peak: The most bytes of tensors that the rank had on a GPU at once in the last batch.
    """

    gradients: list[dict[str, torch.Tensor]] = field(default_factory=list)
    norms: list[float] = field(default_factory=list)
    weights: dict[str, torch.Tensor]
    moved: dict[str, torch.Tensor]
    held: int = 0
    peak: int = 0


class InStep(Learner):
    """One of several learners that run the same loop, each with its share of every batch, as a group's ranks have."""

    def __init__(self, work: Updates, ranks: dist.ProcessGroup | None) -> None:
        super().__init__(work.model, work.config, ranks=ranks, dtype=work.dtype, device=DEVICE)
        self._rank, self._size = (0, 1) if ranks is None else (ranks.rank(), ranks.size())
        self._empty, self.norms, self.gradients = work.empty, list[float](), list[dict[str, torch.Tensor]]()
        self._clip, self._optimizer.clip = self._optimizer.clip, self._kept  # type: ignore[method-assign]

    def measure(self, rollouts: pl.DataFrame) -> pl.DataFrame:
        measured = super().measure(self._share(rollouts))
        if self._size == 1:
            return measured
        parts: list[Any] = [None] * self._size
        dist.all_gather_object(parts, measured)
        joined: pl.DataFrame = pl.concat(parts)
        return joined

    def update(self, batch: pl.DataFrame, /, *, advance: bool = True) -> UpdateReport:
        report = super().update(self._share(batch), advance=advance)
        self.norms.append(report.gradient_norm)
        return report

    def held(self) -> int:
        """Bytes of this rank's own parameters and moments, and of as many gradients as there are of those learnt."""
        weights = [own(parameter) for parameter in {*self.policy.parameters(), *self._optimizer.parameters}]
        moments = [own(tensor) for tensor in self._optimizer.state().values()]
        return sum(tensor.numel() * tensor.element_size() for tensor in (*weights, *self._gradients, *moments))

    def _share(self, batch: pl.DataFrame) -> pl.DataFrame:
        parts = shares(batch, self._size - (self._empty is not None))
        if self._empty is not None:
            parts.insert(self._empty, batch.head(0))
        return parts[self._rank]

    def _kept(self) -> float:
        named = {**dict(self.policy.named_parameters()), **dict(self.critic.named_parameters() if self.critic else ())}
        named = {name: parameter for name, parameter in named.items() if parameter.requires_grad}
        self._gradients = [own(parameter.grad) for parameter in named.values()]
        self.gradients.append({name: whole(parameter.grad).to("cpu", copy=True) for name, parameter in named.items()})
        return self._clip()


def take(work: Updates, ranks: dist.ProcessGroup | None = None) -> Done:
    """Take the updates, alone or as one of several ranks."""
    with pytest.MonkeyPatch.context() as patch:
        if work.dtype == torch.float64:
            # Its own is computed in float32 whatever the weights' type, and rounds what differs in the last digit.
            patch.setattr(Qwen3RMSNorm, "forward", exact_norm)
        if work.routed:
            patch.setattr(modeling_qwen3, "Qwen3MLP", Experts)
        learner = InStep(work, ranks)
        before = {name: tensor.to("cpu", copy=True) for name, tensor in learner.weights()}
        if work.resume is not None:
            saved = Checkpoints(work.resume).newest()
            assert saved is not None
            learner.load_state(saved.tensors, saved.values)
        for batch in work.batches:
            if DEVICE == "cuda":
                torch.cuda.reset_peak_memory_stats()
            version = pl.lit(learner.version, dtype=pl.Int64)
            learnt = learn(learner=learner, run=RUN, step=1, rollouts=batch.with_columns(weights_version=version))
            assert not learnt.diverged
        peak = torch.cuda.max_memory_allocated() if DEVICE == "cuda" else 0
        after = {name: tensor.to("cpu", copy=True) for name, tensor in learner.weights()}
        if work.save is not None:
            tensors, values = learner.state()
            # Every rank must read all of them.
            saved = Checkpoint(step=learner.version, tensors=dict(tensors), values=values)
            if learner._rank == 0:
                Checkpoints(work.save).save(saved)
    moved = {name: after[name] - before[name] for name in after}
    return Done(
        gradients=learner.gradients, norms=learner.norms, weights=after, moved=moved, held=learner.held(), peak=peak
    )


class Experts(torch.nn.Module):  # type: ignore[misc]
    """Each token passes through the one of sixteen modules that it prefers: of a few tokens most see none."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        size = config.hidden_size
        self.gate = torch.nn.Linear(size, 16, bias=False)
        self.experts = torch.nn.ModuleList(torch.nn.Linear(size, size, bias=False) for _ in range(16))

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        weight, chosen = self.gate(hidden).softmax(-1).max(-1)
        found = torch.zeros_like(hidden)
        for number in chosen.unique().tolist():
            mine = chosen == number
            found = found.index_put((mine,), weight[mine][:, None] * self.experts[number](hidden[mine]))
        return found


def together(ranks: int, works: list[Updates], folder: Path) -> list[list[Done]]:
    """Take all works, one after the other, on every rank of a process group; what came of each work, on each rank."""
    folder.mkdir()
    # A process that has counted GPUs cannot be forked from.
    context = get_context("spawn" if DEVICE == "cuda" else "forkserver")
    started = [context.Process(target=_rank, args=(rank, ranks, works, folder)) for rank in range(ranks)]
    for process in started:
        process.start()
    for process in started:
        process.join()
    assert [process.exitcode for process in started] == [0] * ranks
    done = [torch.load(folder / str(rank), weights_only=False, map_location="cpu") for rank in range(ranks)]
    return [list(of_work) for of_work in zip(*done, strict=True)]


def _rank(rank: int, ranks: int, works: list[Updates], folder: Path) -> None:
    torch.set_num_threads(1)
    # NCCL refuses two ranks of one host on one GPU, so that each takes itself for a host of its own.
    os.environ["NCCL_HOSTID"] = str(rank)
    where = {"init_method": f"file://{folder}/store", "rank": rank, "world_size": ranks}
    if DEVICE == "cuda":
        dist.init_process_group("nccl", device_id=torch.device("cuda", 0), **where)
    else:
        dist.init_process_group("gloo", **where)
    done = [take(work, None if work.alone else dist.group.WORLD) for work in works]
    torch.save(done, folder / str(rank))
    dist.destroy_process_group()


@contextmanager
def forking(module: str) -> Iterator[None]:
    """A process to fork from, which has imported what is needed; another file of tests may have left another one."""
    forkserver._forkserver._stop()
    get_context("forkserver").set_forkserver_preload([module])
    with pytest.MonkeyPatch.context() as patch:
        # Python 3.11 does not hand the path on, and says nothing of a module that it does not find.
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
        forkserver.ensure_running()
    yield
    forkserver._forkserver._stop()
