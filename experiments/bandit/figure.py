"""The figure of docs/bandit.md."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from isocompute.rollout.contract.files import atomic_write

from .estimator import Estimator
from .law import Law, limit
from .progress import (
    BUDGET,
    FITTED,
    GROUPS,
    NOISY_GROUPS,
    RATE,
    RULES,
    STEPS,
    Line,
    at_budget,
    law_of,
    learnt,
    plain,
    safe_rate,
)

COLOURS = ("#1a365d", "#2b6cb0", "#38a169", "#d69e2e", "#dd6b20", "#9b2c2c")


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
    lines = plain("none")
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
        chosen = groups[: len(NOISY_GROUPS)] if noisy else groups
        ends = [learnt(int(n), scale, rate(int(n)), STEPS, noisy).end for n in chosen]
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
