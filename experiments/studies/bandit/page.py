"""The computed parts of docs/bandit.md: its tables, as Markdown, and the numbers of its text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from .law import fitted, largest_learning_rate, limit, lundberg_exponent
from .moments import enumerated
from .problem import Bandit, Estimator
from .progress import (
    BUDGET,
    CAP,
    FIRST,
    FITTED,
    GROUPS,
    NOISY,
    NOISY_GROUPS,
    RATE,
    RULES,
    STEPS,
    at_budget,
    law_of,
    learnt,
    plain,
    safe_rate,
    with_noise,
)

THREE = (0.25, 0.5, 0.25)
"""Probabilities of three answers of which the first is right."""


def missing(page: str) -> list[str]:
    """The tables and pieces of text that are computed and that a page does not have."""
    text = " ".join(page.split())
    return [piece for piece in (*tables(), *statements()) if " ".join(piece.split()) not in text]


def tables() -> Iterator[str]:
    """Every table, in the order of the page."""
    yield from (gradients(), limits(), fits(), noise(), budgets())


def gradients() -> str:
    """Moments of the gradient of one group."""
    bandit, logits = Bandit(rewards=(1.0, 0.0, 0.0)), np.log(THREE)
    exact = bandit.gradient(logits)[0]
    head = (
        "n",
        "mean / exact",
        "n · variance",
        "the same without a baseline",
        "mean / exact, divided by the deviation",
        "n · variance, likewise",
    )
    rows = []
    for n in GROUPS:
        grouped, ungrouped, scaled = (
            enumerated(bandit, logits, Estimator(rollouts_per_problem=n, baseline=baseline, scale=scale))
            for baseline, scale in (("group", "none"), ("none", "none"), ("group", "group"))
        )
        rows.append(
            [
                n,
                f"{grouped.mean[0] / exact:.3f}",
                f"{n * grouped.variance:.4f}",
                f"{n * ungrouped.variance:.4f}",
                f"{scaled.mean[0] / exact:.3f}",
                f"{n * scaled.variance:.3f}",
            ]
        )
    return _table(head, rows)


def limits(groups: Sequence[int] = GROUPS) -> str:
    """Distance of t times the suboptimality from its limit."""
    head = ("n", "plain", "limit n/(n − 1)/(2η)", "divided by the deviation", "limit √n/(n − 1)/(2η)")
    rows = [
        [n, *(f"{x:.3f}" for scale in ("none", "group") for x in (learnt(n, scale, RATE).end, bound(n, scale)))]
        for n in groups
    ]
    return _table(head, rows)


def bound(n: int, scale: str = "none", rate: float = RATE) -> float:
    """The limit of t times the suboptimality."""
    return limit(Estimator(rollouts_per_problem=n, scale=scale), learning_rate=rate)


def fits() -> str:
    """A/(n·t) + B/t, fitted."""
    cases = (
        ("plain", "1 and 0", f"{RATE}", plain("none")),
        ("divided by the deviation", "1 and 0", f"{RATE}", plain("group")),
        ("plain", "noisy", "a quarter of the largest", with_noise()),
        ("plain", "noisy", f"likewise, at most {CAP:.0f}", with_noise(CAP)),
        ("plain", "noisy", f"likewise, at most {RATE}", with_noise(RATE)),
    )
    rows = []
    for *case, lines in cases:
        law, groups = law_of(lines), f"{lines[0].n} to {lines[-1].n}"
        figures = (f"{figure:.2f}".replace("-", "−") for figure in (law.per_rollout, law.per_step))
        rows.append([*case, groups, *figures, f"{100 * law.largest_error:.1f} %"])
    return _table(("advantages", "rewards", "η", "n", "A", "B", "largest error"), rows)


def noise() -> str:
    """Rewards that err, with a learning rate in proportion to what each n tolerates."""
    head = ("n", "θ", "largest η", "η, a quarter of it", "t · suboptimality", "n/(n − 1)/(2η)", "n · t · suboptimality")
    rows = [
        [
            line.n,
            f"{lundberg_exponent(NOISY, line.n):.2f}",
            f"{largest_learning_rate(NOISY, line.n):.2f}",
            f"{safe_rate(line.n):.2f}",
            f"{line.end:.3f}",
            f"{bound(line.n, rate=safe_rate(line.n)):.3f}",
            f"{line.n * line.end:.2f}",
        ]
        for line in with_noise()
    ]
    return _table(head, rows)


def budgets() -> str:
    """End of each n with ``BUDGET`` rollouts, by the rule for the learning rate, as a multiple of the least."""
    rows = []
    for scale, name in (("none", "plain"), ("group", "divided by the deviation")):
        for rule in RULES:
            ends = at_budget(scale, rule).values()
            rows.append([name, rule, *(f"{end / min(ends):.2f}" for end in ends)])
    return _table(("advantages", "η", f"n = {GROUPS[0]}", *GROUPS[1:]), rows)


def _table(head: Sequence[object], rows: Sequence[Sequence[object]]) -> str:
    lines = [f"| {' | '.join(map(str, cells))} |" for cells in (head, *rows)]
    return "\n".join([lines[0], "|" + "---|" * len(head), *lines[1:]])


def statements() -> Iterator[str]:
    """Pieces of the text with the numbers that are computed, or set, for it."""
    yield f"at probabilities {THREE[0]}, {THREE[1]} and {THREE[2]}"
    yield f"probability of the right answer {FIRST} at first, η = {RATE}, t · suboptimality after {STEPS:,} steps"
    yield f"fitted by least squares of relative errors at t = {FITTED[0]:,}, {FITTED[1]:,} and {FITTED[2]:,}"
    law = law_of(plain("none"))
    yield f"misses n/(n − 1) by up to {bend('none'):.1f} % and √n/(n − 1) by up to {bend('group'):.1f} %"
    yield f"A is {law.per_rollout / law.per_step:.1f} times B"
    yield from noise_statements()
    yield f"Up to a cap of η = {CAP:.0f}"
    yield f"Up to a cap of η = {RATE}"
    yield f"Suboptimality after {BUDGET:,} rollouts as a multiple of the least in its row, rewards 1 and 0, η = {RATE}"
    constant = at_budget("group", "constant", (3, 8))
    yield f"n = 8 falls short of the best by {constant[8] / constant[3]:.2f} times as much as n = 3"
    rooted = [end for n, end in at_budget("group", "∝ √n").items() if n >= 4]
    yield f"all n from 4 on are within a factor of {max(rooted) / min(rooted):.2f} of each other"


def bend(scale: str) -> float:
    """By how much, in percent, the best line in 1/n misses the limits at large t."""
    bounds = np.array([bound(n, scale) for n in GROUPS])
    return 100 * fitted(np.array(GROUPS, dtype=float), np.ones(len(GROUPS)), bounds).largest_error


def noise_statements() -> Iterator[str]:
    """The pieces on rewards that err."""
    worst = max(abs(line.end / bound(line.n, rate=safe_rate(line.n)) - 1) for line in with_noise())
    first, last = (learnt(n, "none", safe_rate(n), BUDGET // n, noisy=True) for n in (2, NOISY_GROUPS[-1]))
    better = first.suboptimality[-1] / last.suboptimality[-1]
    yield f"rewards of {NOISY.rewards[0]} and {NOISY.rewards[1]}"
    yield f"within {100 * worst:.1f} % of n/(n − 1)/(2η)"
    yield f"n = {last.n} is {better:.1f} times as good as n = {first.n} after {BUDGET:,} rollouts"
    yield f"θ grows with n, towards {lundberg_exponent(NOISY, 10**6):.1f}"
