"""One problem as a bandit, exact: how fast it is learnt with n rollouts per problem (docs/bandit.md).

``python -m experiments.bandit --out FOLDER`` prints the tables of that page and draws its figure.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from math import log, sqrt
from pathlib import Path
from typing import Any

import numpy as np
from isocompute.learner.bandit.chain import evolution
from isocompute.learner.bandit.estimator import Estimator
from isocompute.learner.bandit.law import Law, fitted, largest_learning_rate, limit
from isocompute.learner.bandit.moments import closed_form, enumerated
from isocompute.learner.bandit.problem import Bandit
from isocompute.learner.bandit.simulation import simulated
from isocompute.rollout.contract.files import atomic_write

GROUPS = (2, 4, 8, 16, 32, 64)
RIGHT = Bandit(rewards=(1.0, 0.0))
NOISY = Bandit(rewards=(0.75, 0.25))
START = log(0.25 / 0.75)
RATE = 0.5
ANCHOR = 8
BUDGET = 16384
STEPS = 4096
FITTED = (1024, 2048, 4096)
RULES: dict[str, Callable[[int], float]] = {
    "constant": lambda n: RATE,
    "∝ √n": lambda n: RATE * sqrt(n / ANCHOR),
    "∝ n": lambda n: RATE * n / ANCHOR,
}
COLOURS = ("#1a365d", "#2b6cb0", "#38a169", "#d69e2e", "#dd6b20", "#9b2c2c")


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """Learning with one n.

    Attributes:
        n: Rollouts per problem.
        steps: t, from 1.
        suboptimality: Expected, after each.
    """

    n: int
    steps: np.ndarray
    suboptimality: np.ndarray


@cache
def learnt(n: int, scale: str, rate: float, steps: int, noisy: bool = False) -> Line:
    """One exact line; right and wrong answers are told apart without error unless ``noisy``.

    Args:
        n: Rollouts per problem.
        scale: What advantages are divided by.
        rate: η.
        steps: Update steps.
        noisy: Rewards err one time in four.
    """
    spacing = None if scale == "none" else min(0.01, rate / n**1.5)
    path = evolution(
        NOISY if noisy else RIGHT,
        Estimator(rollouts_per_problem=n, scale=scale),
        start=START, learning_rate=rate, update_steps=steps, spacing=spacing,
    )  # fmt: skip
    return Line(n=n, steps=np.arange(1, steps + 1), suboptimality=path[1:])


def law_of(lines: list[Line]) -> Law:
    """A/(n·t) + B/t fitted to some lines at the steps ``FITTED``.

    Args:
        lines: Lines that are long enough.
    """
    points = [(line.n, step, line.suboptimality[step - 1]) for line in lines for step in FITTED]
    n, steps, suboptimality = (np.array(column, dtype=float) for column in zip(*points, strict=True))
    return fitted(n, steps, suboptimality)


def safe_rate(n: int) -> float:
    """A quarter of the largest rate with which noise leaves the 1/t intact.

    Args:
        n: Rollouts per problem.
    """
    return largest_learning_rate(NOISY, n) / 4


def tables() -> Iterator[str]:
    """The lines of the page's tables."""
    for part in (gradients, limits, budgets, noise, several_answers):
        yield from part()
        yield ""


def gradients() -> Iterator[str]:
    """Moments of the gradient of one group; of three answers at 1/4, 1/2 and 1/4 the first is right."""
    bandit, logits = Bandit(rewards=(1.0, 0.0, 0.0)), np.log([0.25, 0.5, 0.25])
    exact = bandit.gradient(logits)[0]
    yield "| n | mean / exact | n · variance | without a baseline | mean / exact, scaled | n · variance, scaled |"
    yield "|---|---|---|---|---|---|"
    for n in GROUPS:
        grouped = closed_form(bandit, logits, Estimator(rollouts_per_problem=n))
        plain = closed_form(bandit, logits, Estimator(rollouts_per_problem=n, baseline="none"))
        scaled = enumerated(bandit, logits, Estimator(rollouts_per_problem=n, scale="group"))
        yield (
            f"| {n} | {grouped.mean[0] / exact:.3f} | {n * grouped.variance:.4f} | {n * plain.variance:.4f} "
            f"| {scaled.mean[0] / exact:.3f} | {n * scaled.variance:.3f} |"
        )


def limits() -> Iterator[str]:
    """How close t times the suboptimality is to its limit, and what a fit finds."""
    yield f"t · suboptimality after {STEPS} steps at η = {RATE}, and its limit; plain, and divided by the deviation"
    yield "|---|---|---|---|---|"
    for n in GROUPS:
        row = [str(n)]
        for scale in ("none", "group"):
            estimator = Estimator(rollouts_per_problem=n, scale=scale)
            row.append(f"{STEPS * learnt(n, scale, RATE, STEPS).suboptimality[-1]:.3f}")
            row.append(f"{limit(estimator, learning_rate=RATE):.3f}")
        yield f"| {' | '.join(row)} |"
    for scale in ("none", "group"):
        yield f"scale {scale}: {described(law_of([learnt(n, scale, RATE, STEPS) for n in GROUPS]))}"


def budgets() -> Iterator[str]:
    """What each n reaches with the same rollouts, by the rule for the learning rate."""
    yield f"suboptimality after {BUDGET} rollouts, as a multiple of the least"
    for scale, name in (("none", "plain"), ("group", "divided by the deviation")):
        for rule in RULES:
            ends = at_budget(scale, rule).values()
            yield f"| {name} | {rule} | {' | '.join(f'{end / min(ends):.2f}' for end in ends)} |"


def noise() -> Iterator[str]:
    """Rewards that err, with rates in proportion to what each n stands."""
    yield "rewards 0.75 and 0.25, each n at a quarter of its largest rate"
    lines = [learnt(n, "none", safe_rate(n), STEPS, noisy=True) for n in GROUPS[:4]]
    for line in lines:
        yield f"n {line.n}: η {safe_rate(line.n):.2f}, t · suboptimality {STEPS * line.suboptimality[-1]:.4f}"
    yield described(law_of(lines))
    yield f"the same, but no rate above {RATE}"
    yield described(law_of([learnt(n, "none", min(RATE, safe_rate(n)), STEPS, noisy=True) for n in GROUPS[:4]]))


def several_answers() -> Iterator[str]:
    """Eight answers of which one is right, simulated, since there is no chain."""
    bandit, logits, steps = Bandit(rewards=(1.0,) + (0.0,) * 7), np.zeros(8), 512
    yield f"eight equally likely answers, one right, t · suboptimality after {steps} steps at η = {RATE}"
    for n in (2, 4, 8):
        estimator = Estimator(rollouts_per_problem=n)
        ends = simulated(bandit, logits, estimator, learning_rate=RATE, update_steps=steps, runs=400, seed=n)[-1]
        error = steps * ends.std(ddof=1) / sqrt(len(ends))
        yield (
            f"n {n}: {steps * ends.mean():.3f} ± {error:.3f}, with two answers "
            f"{limit(estimator, learning_rate=RATE):.3f}"
        )


def described(law: Law) -> str:
    """A law in a line.

    Args:
        law: The law.
    """
    return (
        f"A = {law.per_rollout:.3f}, B = {law.per_step:.3f}; largest error {law.largest_error:.1%} "
        f"at t = {', '.join(map(str, FITTED))}"
    )


def at_budget(scale: str, rule: str) -> dict[int, float]:
    """Suboptimality of each n when n·t is the budget.

    Args:
        scale: What advantages are divided by.
        rule: How the rate depends on n.
    """
    return {n: float(learnt(n, scale, RULES[rule](n), BUDGET // n).suboptimality[-1]) for n in GROUPS}


def draw(path: Path) -> None:
    """Draw the figure.

    Args:
        path: File name without its ending; ``.svg`` and ``.png`` are written.
    """
    import matplotlib as mpl

    mpl.use("Agg")
    mpl.rcParams["svg.hashsalt"] = "isocompute"
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(2, 2, figsize=(11, 8), layout="constrained")
    lines = [learnt(n, "none", RATE, STEPS) for n in GROUPS]
    law = law_of(lines)
    against_steps(axes[0, 0], lines, law)
    against_rollouts(axes[0, 1], lines)
    against_groups(axes[1, 0])
    against_rules(axes[1, 1])
    with atomic_write(path.with_suffix(".svg")) as stream:
        figure.savefig(stream, format="svg", metadata={"Date": None, "Creator": None})
    with atomic_write(path.with_suffix(".png")) as stream:
        figure.savefig(stream, format="png", dpi=130, metadata={"Software": None})
    plt.close(figure)


def against_steps(axes: Any, lines: list[Line], law: Law) -> None:
    """Suboptimality against steps, with the fitted law."""
    for line, colour in zip(lines, COLOURS, strict=True):
        axes.loglog(line.steps, line.suboptimality, color=colour, label=f"n = {line.n}")
        late = line.steps >= FITTED[0] // 16
        axes.loglog(line.steps[late], law.at(np.array(line.n), line.steps[late]), color=colour, ls=":", lw=2.2)
    axes.set(xlabel="update steps t", ylabel="1 − expected reward")
    axes.set_title(
        f"one η: exact (solid), {law.per_rollout:.2f}/(n·t) + {law.per_step:.2f}/t (dotted)", fontsize="medium"
    )
    axes.legend(frameon=False, ncols=2)


def against_rollouts(axes: Any, lines: list[Line]) -> None:
    """The same against what was generated."""
    for line, colour in zip(lines, COLOURS, strict=True):
        axes.loglog(line.n * line.steps, line.suboptimality, color=colour, label=f"n = {line.n}")
    axes.set(xlabel="rollouts C = n · t", ylabel="1 − expected reward", xlim=(8, BUDGET))
    axes.set_title("one η, the same rollouts: the smallest n leads", fontsize="medium")


def against_groups(axes: Any) -> None:
    """Draw t times the suboptimality against 1/n, whose intercept is B and whose slope is A."""
    groups = np.array(GROUPS, dtype=float)
    kinds = (
        ("η constant", "none", lambda n: RATE, False, COLOURS[1]),
        ("η constant, divided by the deviation", "group", lambda n: RATE, False, COLOURS[4]),
        ("noisy rewards, η at a quarter of its limit", "none", safe_rate, True, COLOURS[2]),
    )
    for label, scale, rate, noisy, colour in kinds:
        chosen = groups[:4] if noisy else groups
        ends = [STEPS * learnt(int(n), scale, rate(int(n)), STEPS, noisy).suboptimality[-1] for n in chosen]
        limits = [
            limit(Estimator(rollouts_per_problem=int(n), scale=scale), learning_rate=rate(int(n))) for n in chosen
        ]
        axes.plot(1 / chosen, ends, "o", color=colour, label=label)
        axes.plot(1 / chosen, limits, "-", color=colour, lw=1)
    axes.set(xlabel="1/n", ylabel="t · (best − expected reward)", ylim=(0, None), xlim=(0, None))
    axes.set_title(f"after {STEPS:,} steps (points) and in the limit (lines)", fontsize="medium")
    axes.legend(frameon=False, fontsize="small", loc="upper left")


def against_rules(axes: Any) -> None:
    """What each n reaches with one budget, by the rule for the learning rate."""
    kinds = [(scale, rule) for scale in ("none", "group") for rule in RULES][:-1]
    for scale, rule in kinds:
        ends = at_budget(scale, rule)
        least = min(ends.values())
        name, style = f"η {rule}", "o-"
        if scale == "group":
            name, style = f"{name}, divided by the deviation", "s--"
        colour = COLOURS[2 * list(RULES).index(rule)]
        axes.plot(list(ends), [end / least for end in ends.values()], style, color=colour, label=name, ms=4)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    axes.set_xticks(GROUPS, [str(n) for n in GROUPS])
    axes.set_yticks([1, 2, 4, 8, 16], ["1", "2", "4", "8", "16"])
    axes.set(xlabel="rollouts per problem n", ylabel="multiple of the least shortfall")
    axes.set_title(f"after {BUDGET:,} rollouts: the rule for η decides", fontsize="medium")
    axes.legend(frameon=False, fontsize="small", loc="upper left")


def main() -> None:
    """Print the tables and draw the figure."""
    parser = argparse.ArgumentParser(prog="python -m experiments.bandit", description=__doc__)
    parser.add_argument("--out", type=Path, help="folder for bandit.svg and bandit.png; none is drawn without it")
    arguments = parser.parse_args()
    try:
        if arguments.out is not None:
            arguments.out.mkdir(parents=True, exist_ok=True)
        for line in tables():
            print(line)
        if arguments.out is not None:
            draw(arguments.out / "bandit")
    except OSError as error:
        parser.exit(2, f"error: {error}\n")


if __name__ == "__main__":
    main()
