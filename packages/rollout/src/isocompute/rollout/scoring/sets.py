"""Problem sets made from others: mixtures, and nested sets of growing size."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

import polars as pl

from ..errors import RolloutError

SIDES = ("train", "validation")


def mix(
    sources: Sequence[pl.DataFrame], shares: Sequence[float], *, train: int, validation: int = 0, seed: int = 0
) -> pl.DataFrame:
    """Mix problem sets in given shares, such as half easy and half hard.

    Problems keep their side, and each side is mixed in the same shares. Sets of one seed are nested: a smaller one is
    contained in a larger one.

    Args:
        sources: ``problems`` tables without common problems.
        shares: The share of each, in any unit.
        train: Training problems.
        seed: Which problems are taken; another seed takes others.

    Returns:
        A ``problems`` table of ``train`` + ``validation`` rows, sorted by ``problem_id``.

    Raises:
        RolloutError: Shares and tables do not fit together, tables share problems, or one has too few.
    """
    if len(sources) != len(shares) or not sources:
        raise RolloutError(f"{len(sources)} sets and {len(shares)} shares are given; each set needs one share")
    if not all(0 < share < float("inf") for share in shares):
        raise RolloutError(f"the shares are {', '.join(f'{share:g}' for share in shares)}; each must be above 0")
    if min(train, validation) < 0 or train + validation < 1:
        raise RolloutError(f"{train} training and {validation} validation problems are asked for; at least 1 is needed")
    ids = pl.concat([source["problem_id"] for source in sources])
    twice = ids.filter(ids.is_duplicated())
    if len(twice):
        raise RolloutError(f"{twice.n_unique()} problems are in more than one set, such as {twice[0]}")
    parts = []
    for side, size in zip(SIDES, (train, validation), strict=True):
        for number, (source, count) in enumerate(zip(sources, seats(shares, size), strict=True), start=1):
            held = source.filter(pl.col("split") == side)
            if len(held) < count:
                raise RolloutError(
                    f"set {number} has {len(held)} {side} problems, and its share of {size} is {count}: ask for fewer"
                )
            parts.append(in_hash_order(held, seed=seed).head(count))
    return pl.concat(parts, how="diagonal_relaxed").sort("problem_id")


def nested(problems: pl.DataFrame, sizes: Sequence[int], *, seed: int = 0) -> list[pl.DataFrame]:
    """Return sets with these numbers of training problems, a smaller one contained in every larger one.

    Args:
        problems: A ``problems`` table; its validation problems are part of every set.
        sizes: Training problems of each set.
        seed: Which problems are taken first.

    Returns:
        ``problems`` tables in the order of ``sizes``, each sorted by ``problem_id``.

    Raises:
        RolloutError: A size is below 1 or above the number of training problems.
    """
    ordered = in_hash_order(problems.filter(pl.col("split") == "train"), seed=seed)
    others = problems.filter(pl.col("split") != "train")
    for size in sizes:
        if not 1 <= size <= len(ordered):
            raise RolloutError(f"a set of {size} training problems is asked for; it must be 1 to {len(ordered)}")
    return [pl.concat([ordered.head(size), others]).sort("problem_id") for size in sizes]


def in_hash_order(problems: pl.DataFrame, *, seed: int) -> pl.DataFrame:
    """Return problems in an arbitrary but fixed order: by a hash of the seed and ``problem_id``.

    Args:
        problems: A ``problems`` table.
        seed: Another seed gives another order.
    """
    digests = [blake2b(f"{seed}/{i}".encode(), digest_size=8).digest() for i in problems["problem_id"].to_list()]
    order = sorted(range(len(digests)), key=digests.__getitem__)
    return problems[order]


def seats(shares: Sequence[float], size: int) -> list[int]:
    """Divide a number in given shares (Webster's method).

    No part shrinks when the size grows, which rounding each share by itself does not promise: so mixtures are nested.

    Args:
        shares: Weight of each part.

    Returns:
        Whole numbers that add up to ``size``.
    """
    held = [0] * len(shares)
    for _ in range(size):
        quotients = [share / (2 * seats_held + 1) for share, seats_held in zip(shares, held, strict=True)]
        held[quotients.index(max(quotients))] += 1
    return held
