"""A seed for every response, so that batch order, batch size, engines and restarts do not matter."""

from __future__ import annotations

from hashlib import blake2b


def response_seed(seed: int, phase: str, step: int, problem_id: str, sample: int) -> int:
    """Return the seed of one response: a 63-bit hash of what identifies it within a run.

    n and the batch are not part of it, so runs that differ in these share their luck (common random numbers).

    Args:
        phase: What the response is for: ``train``, ``eval``, ``difficulty``, ``baseline`` or ``canary``.
        step: Update step, or cumulative rollouts for phase ``eval``.
        sample: Index of the response among those to its problem.
    """
    key = f"{seed}/{phase}/{step}/{problem_id}/{sample}".encode()
    return int.from_bytes(blake2b(key, digest_size=8).digest(), "big") >> 1
