"""What the sandbox is made of on this machine, in words."""

from __future__ import annotations

from ..config import ScoringConfig
from .layers import Report, isolated
from .process import ScoringProcess

MEANING = {
    "no_new_privs": "no program gains rights",
    "user": "the user's rights are given up",
    "network": "nothing can be reached",
    "processes": "all end together",
    "files": "nothing is written, little is read",
    "seccomp": "system calls that no verifier needs fail",
}
"""What each layer is for."""


def sandbox_layers(config: ScoringConfig | None = None) -> Report:
    """Start a sandbox and return what each of its layers came to; an empty text where the kernel has none.

    Args:
        config: Its limits.

    Raises:
        RolloutError: The sandbox does not start.
    """
    process = ScoringProcess("exact", config or ScoringConfig())
    try:
        return process.started()
    finally:
        process.close()


def report(config: ScoringConfig | None = None) -> list[str]:
    """Return a line for each layer of the sandbox, for each limit, and for what that allows.

    Args:
        config: Its limits.

    Raises:
        RolloutError: The sandbox does not start.
    """
    config = config or ScoringConfig()
    layers = sandbox_layers(config)
    lines = [f"{name} ({meaning}): {layers[name] or 'missing'}" for name, meaning in MEANING.items()]
    lines.append(
        f"limits: {config.seconds:g} s of processor time and {config.wall_seconds:g} s by the clock for a response, "
        f"{config.memory_bytes / 2**30:g} GiB of memory; processes for each library: {config.processes}"
    )
    allowed = isolated(layers) or config.allow_unisolated
    lines.append("rules that may execute a response: " + ("allowed" if allowed else "refused, for lack of isolation"))
    return lines
