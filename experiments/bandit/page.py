"""Whether docs/bandit.md says what is computed: every row of its tables and every number of its text."""

from __future__ import annotations

import re
from collections.abc import Iterator
from difflib import ndiff

import numpy as np

from .estimator import Estimator
from .law import fitted, limit, lundberg_exponent
from .progress import (
    BUDGET,
    CAP,
    FIRST,
    FITTED,
    GROUPS,
    NOISY,
    NOISY_GROUPS,
    RATE,
    STEPS,
    at_budget,
    law_of,
    learnt,
    plain,
    safe_rate,
    with_noise,
)
from .tables import RUNS, SHORT, THREE, ratio_of_answers

DECIMAL = re.compile(r"(?<!arXiv )(?<![\d.])\d+\.\d+")


def statements() -> Iterator[str]:
    """Pieces of the text with the numbers that are computed, or set, for it."""
    right, wrong = NOISY.rewards
    yield f"at probabilities {THREE[0]}, {THREE[1]} and {THREE[2]}"
    yield f"probability of the right answer {FIRST} at first, η = {RATE}, t · suboptimality after {STEPS:,} steps"
    yield f"fitted by least squares of relative errors at t = {FITTED[0]:,}, {FITTED[1]:,} and {FITTED[2]:,}"
    law = law_of(plain("none"))
    yield f"misses n/(n − 1) by up to {bend('none'):.1f} % and √n/(n − 1) by up to {bend('group'):.1f} %"
    yield f"A is {law.per_rollout / law.per_step:.1f} times B"
    yield from noise_statements()
    yield f"rewards of {right} and {wrong}"
    yield f"Up to a cap of η = {RATE}"
    yield f"Up to a cap of η = {CAP:.0f}"
    yield f"{RUNS} simulated runs, {SHORT} steps, η = {RATE}"
    yield f"in the limit 2(K − 1)/K = {ratio_of_answers():.2f} times"
    yield f"Suboptimality after {BUDGET:,} rollouts as a multiple of the least in its row, rewards 1 and 0, η = {RATE}"
    constant = at_budget("group", "constant", (3, 8))
    yield f"n = 8 falls short of the best by {constant[8] / constant[3]:.2f} times as much as n = 3"
    rooted = [end for n, end in at_budget("group", "∝ √n").items() if n >= 4]
    yield f"all n from 4 on are within a factor of {max(rooted) / min(rooted):.2f} of each other"


def bend(scale: str) -> float:
    """By how much, in percent, the best line in 1/n misses the limits at large t.

    Args:
        scale: What advantages are divided by.
    """
    bounds = [limit(Estimator(rollouts_per_problem=n, scale=scale), learning_rate=RATE) for n in GROUPS]
    return 100 * fitted(np.array(GROUPS, dtype=float), np.ones(len(GROUPS)), np.array(bounds)).largest_error


def noise_statements() -> Iterator[str]:
    """The pieces on rewards that err."""
    lines = with_noise()
    ends = NOISY_GROUPS[0], NOISY_GROUPS[-1]
    first, last = (learnt(n, "none", safe_rate(n), BUDGET // n, noisy=True) for n in ends)
    bounds = [limit(Estimator(rollouts_per_problem=n), learning_rate=safe_rate(n)) for n in NOISY_GROUPS]
    worst = max(abs(line.end / bound - 1) for line, bound in zip(lines, bounds, strict=True))
    yield f"within {100 * worst:.1f} % of n/(n − 1)/(2η)"
    better = first.suboptimality[-1] / last.suboptimality[-1]
    yield f"n = {last.n} is {better:.1f} times as good as n = {first.n} after {BUDGET:,} rollouts"
    yield f"θ grows with n, towards {lundberg_exponent(NOISY, 10**6):.1f}"


def differences(page: str, tables: list[list[str]], pieces: list[str]) -> Iterator[str]:
    """What the page says and the computation does not, and the other way round.

    Args:
        tables: The lines of its tables as they are computed.
        pieces: Pieces of its text, likewise.

    Yields:
        One difference each: a row of a table, a piece of the text, or a decimal number that no piece contains.
    """
    lines = page.splitlines()
    shown = [line for line in lines if line.startswith("|")]
    for line in ndiff(shown, [row for table in tables for row in table]):
        if line.startswith("- "):
            yield f"its row '{line[2:]}' is not what is computed"
        if line.startswith("+ "):
            yield f"it lacks the row '{line[2:]}'"
    text = " ".join(" ".join(line for line in lines if not line.startswith("|")).split())
    for piece in pieces:
        if piece not in text:
            yield f"it does not say '{piece}'"
    for piece in pieces:
        text = text.replace(piece, "")
    for number in DECIMAL.findall(text):
        yield f"its number {number} is in no piece that is computed"
