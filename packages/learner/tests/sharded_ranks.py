"""Learners that take updates together, as processes of torch's own, and what they hold afterwards."""

import os
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as processes


def together(ranks: int, work: Callable[..., Any], folder: Path, *arguments: Any) -> list[Any]:
    """Call a function of a module on every rank of a process group; return what each returns.

    Args:
        work: Called with the process group and the arguments.
        folder: Empty, for the rendezvous and the results.
    """
    folder.mkdir()
    context = processes.start_processes(_rank, (ranks, work, folder, arguments), nprocs=ranks, start_method="forkserver", join=True)
    assert context is None
    return [torch.load(folder / str(rank), weights_only=False) for rank in range(ranks)]


def _rank(rank: int, ranks: int, work: Callable[..., Any], folder: Path, arguments: Sequence[Any]) -> None:
    torch.set_num_threads(1)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=ranks)
    torch.save(work(dist.group.WORLD, *arguments), folder / str(rank))
    dist.destroy_process_group()
