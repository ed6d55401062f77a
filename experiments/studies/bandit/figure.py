"""The figure of docs/bandit.md."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from experiments.figures import COLOURS, pyplot, save

from .progress import BUDGET, GROUPS, RULES, at_budget, plain


def draw(path: Path) -> None:
    """Draw the figure; ``.svg`` and ``.png`` are added to the name."""
    figure, axes = pyplot().subplots(1, 2, figsize=(11, 4), layout="constrained")
    _against_rollouts(axes[0])
    _against_rules(axes[1])
    save(figure, path)


def _against_rollouts(axes: Any) -> None:
    """Suboptimality against what was generated."""
    for line, colour in zip(plain("none"), COLOURS, strict=True):
        axes.loglog(line.n * line.steps, line.suboptimality, color=colour, label=f"n = {line.n}")
    axes.set(xlabel="rollouts C = n · t", ylabel="1 − expected reward", xlim=(8, BUDGET))
    axes.set_title("one η, the same rollouts: the smallest n leads", fontsize="medium")
    axes.legend(frameon=False, ncols=2)


def _against_rules(axes: Any) -> None:
    """End of each n with one budget, by the rule for the learning rate."""
    for scale, rule in [(scale, rule) for scale in ("none", "group") for rule in RULES][:-1]:
        ends = at_budget(scale, rule)
        name, style = (f"η {rule}", "o-") if scale == "none" else (f"η {rule}, divided by the deviation", "s--")
        multiples = [end / min(ends.values()) for end in ends.values()]
        axes.plot(list(ends), multiples, style, color=COLOURS[list(RULES).index(rule)], label=name, ms=4)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    axes.set_xticks(GROUPS, [str(n) for n in GROUPS])
    axes.set_yticks([1, 2, 4, 8, 16], ["1", "2", "4", "8", "16"])
    axes.set(xlabel="rollouts per problem n", ylabel="multiple of the least shortfall")
    axes.set_title(f"after {BUDGET:,} rollouts: the rule for η decides", fontsize="medium")
    axes.legend(frameon=False, fontsize="small", loc="upper left")
