"""The tables of docs/bandit.md, as Markdown."""

from __future__ import annotations

from collections.abc import Iterator
from math import sqrt

import numpy as np

from .estimator import Estimator
from .law import largest_learning_rate, limit, lundberg_exponent
from .moments import closed_form, enumerated
from .problem import Bandit
from .progress import (
    CAP,
    GROUPS,
    NOISY,
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
from .simulation import simulated

THREE = (0.25, 0.5, 0.25)
"""Probabilities of three answers of which the first is right."""
ANSWERS, RUNS, SHORT = 8, 400, 512
"""Equally likely answers of the simulated problem, its runs, and their steps."""


def tables() -> list[list[str]]:
    """The lines of every table, in the order of the page."""
    return [list(part()) for part in (gradients, limits, fits, noise, several_answers, budgets)]


def gradients() -> Iterator[str]:
    """Moments of the gradient of one group."""
    bandit, logits = Bandit(rewards=(1.0, 0.0, 0.0)), np.log(THREE)
    exact = bandit.gradient(logits)[0]
    yield from _head(
        "n", "mean / exact", "n · variance", "the same without a baseline", "mean / exact, divided by the deviation",
        "n · variance, likewise",
    )  # fmt: skip
    for n in GROUPS:
        grouped = closed_form(bandit, logits, Estimator(rollouts_per_problem=n))
        ungrouped = closed_form(bandit, logits, Estimator(rollouts_per_problem=n, baseline="none"))
        scaled = enumerated(bandit, logits, Estimator(rollouts_per_problem=n, scale="group"))
        yield _row(
            n, f"{grouped.mean[0] / exact:.3f}", f"{n * grouped.variance:.4f}", f"{n * ungrouped.variance:.4f}",
            f"{scaled.mean[0] / exact:.3f}", f"{n * scaled.variance:.3f}",
        )  # fmt: skip


def limits(groups: tuple[int, ...] = GROUPS) -> Iterator[str]:
    """How close t times the suboptimality is to its limit.

    Args:
        groups: The n of its rows.
    """
    yield from _head("n", "plain", "limit n/(n − 1)/(2η)", "divided by the deviation", "limit √n/(n − 1)/(2η)")
    for n in groups:
        row = []
        for scale in ("none", "group"):
            row.append(f"{learnt(n, scale, RATE, STEPS).end:.3f}")
            row.append(f"{limit(Estimator(rollouts_per_problem=n, scale=scale), learning_rate=RATE):.3f}")
        yield _row(n, *row)


def fits() -> Iterator[str]:
    """A/(n·t) + B/t, fitted."""
    yield from _head("advantages", "rewards", "η", "n", "A", "B", "largest error")
    cases = (
        ("plain", "1 and 0", f"{RATE}", plain("none")),
        ("divided by the deviation", "1 and 0", f"{RATE}", plain("group")),
        ("plain", "noisy", "a quarter of the largest", with_noise()),
        ("plain", "noisy", f"likewise, at most {CAP:.0f}", with_noise(CAP)),
        ("plain", "noisy", f"likewise, at most {RATE}", with_noise(RATE)),
    )
    for advantages, rewards, rate, lines in cases:
        law, groups = law_of(lines), f"{lines[0].n} to {lines[-1].n}"
        figures = (f"{figure:.2f}".replace("-", "−") for figure in (law.per_rollout, law.per_step))
        yield _row(advantages, rewards, rate, groups, *figures, f"{100 * law.largest_error:.1f} %")


def noise() -> Iterator[str]:
    """Rewards that err, with a learning rate in proportion to what each n tolerates."""
    yield from _head(
        "n", "θ", "largest η", "η, a quarter of it", "t · suboptimality", "n/(n − 1)/(2η)", "n · t · suboptimality"
    )
    for line in with_noise():
        n, rate = line.n, safe_rate(line.n)
        bound = limit(Estimator(rollouts_per_problem=n), learning_rate=rate)
        yield _row(
            n, f"{lundberg_exponent(NOISY, n):.2f}", f"{largest_learning_rate(NOISY, n):.2f}", f"{rate:.2f}",
            f"{line.end:.3f}", f"{bound:.3f}", f"{n * line.end:.2f}",
        )  # fmt: skip


def several_answers() -> Iterator[str]:
    """Several equally likely answers of which one is right, simulated, since there is no chain."""
    bandit, logits = Bandit(rewards=(1.0,) + (0.0,) * (ANSWERS - 1)), np.zeros(ANSWERS)
    yield from _head("n", "t · suboptimality", "limit with two answers", "limit with eight, 2(K − 1)/K times as large")
    for n in (2, 4, 8):
        estimator = Estimator(rollouts_per_problem=n)
        ends = simulated(bandit, logits, estimator, learning_rate=RATE, update_steps=SHORT, runs=RUNS, seed=n)[-1]
        error = SHORT * ends.std(ddof=1) / sqrt(RUNS)
        two = limit(estimator, learning_rate=RATE)
        yield _row(n, f"{SHORT * ends.mean():.2f} ± {error:.2f}", f"{two:.2f}", f"{ratio_of_answers() * two:.2f}")


def ratio_of_answers() -> float:
    """How much larger the limit is with K answers, 2(K − 1)/K."""
    return 2 * (ANSWERS - 1) / ANSWERS


def budgets() -> Iterator[str]:
    """What each n reaches with ``BUDGET`` rollouts, by the rule for the learning rate, as a multiple of the least."""
    yield from _head("advantages", "η", f"n = {GROUPS[0]}", *GROUPS[1:])
    for scale, name in (("none", "plain"), ("group", "divided by the deviation")):
        for rule in RULES:
            ends = at_budget(scale, rule).values()
            yield _row(name, rule, *(f"{end / min(ends):.2f}" for end in ends))


def _head(*names: object) -> list[str]:
    return [_row(*names), "|" + "---|" * len(names)]


def _row(*cells: object) -> str:
    return f"| {' | '.join(map(str, cells))} |"
