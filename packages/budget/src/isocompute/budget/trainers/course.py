"""The course of a run from its log, for any trainer: rewards, groups without signal, and metrics that move with them.

Names are those of TRL 1.16, veRL 0.9, OpenRLHF 0.11, prime-rl, SkyRL, Tinker's cookbook and slime of August 2026. A
table of steps and rewards from no known trainer has ``reward`` or ``score``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from math import sqrt
from statistics import fmean
from typing import Any

from ..errors import BudgetError
from ..planning.diagnosis import Course, Series
from .logs.log import EVALUATED, Log, LogLayout
from .logs.sources import read_logs
from .settings import Settings
from .trainer import Trainer

REWARDS = (
    *("critic/score/mean", "train/agg/all/reward/mean", "reward/all/mean", "reward/mean", "reward/avg_raw_reward"),
    *(
        "rollout/raw_reward",
        "env/all/reward/total",
        "train/reward/mean",
        "train/reward",
        "reward",
        "mean_reward",
        "score",
    ),
)
"""Mean training rewards; the first one that a log has is read."""
OF_ONE_FUNCTION = re.compile(r"rewards/[^/]+/mean$")
OTHERS = {
    "KL": re.compile(r"(?:.*/)?(?:approx_|ppo_|policy_)?kl(?:_loss)?(?:/mean)?$"),
    "gradient norm": re.compile(r"(?:.*[/_])?grad_norm$"),
    "entropy": re.compile(r"(?:.*[/_])?entropy(?:_loss)?(?:/mean)?$"),
    "clip fraction": re.compile(
        r"(?!response|prompt|completions)(?:.*[/_])?(?:clip_?frac|clip_ratio(?:/region_mean)?)$"
    ),
}
"""Metrics that jump if updates are too large."""
EQUAL = re.compile(r"(?:.*/)?(?:frac_reward_zero_std|solve_none|solve_all|by_group/frac_all_(?:good|bad))$")
"""Shares of groups whose rewards are all equal; several of them add up."""
PLAIN = LogLayout(steps=("step", "global_step", "steps", "iteration"), needed=re.compile("|".join((*REWARDS, "eval"))))


def course_of(
    log: Log, known: Trainer | None = None, *, rows: Sequence[Mapping[str, Any]] = (), settings: Settings | None = None
) -> Course:
    """The course of a run from its log; ``rows`` are its evaluations, as in ``evals``."""
    training = [(step, metrics) for step, metrics in log.rows if not all(map(EVALUATED.match, metrics))]
    names = sorted({name for _, metrics in training for name in metrics if not EVALUATED.match(name)})
    functions = [name for name in names if OF_ONE_FUNCTION.match(name)]
    reward = functions[0] if len(functions) == 1 else next((name for name in REWARDS if name in names), "")
    of_kind = {kind: [name for name in names if form.match(name)] for kind, form in OTHERS.items()}
    series = {kind: _series(training, min(found, key=len)) for kind, found in of_kind.items() if found}
    equal = [name for name in names if EQUAL.match(name)]
    rewards = _series(training, reward)
    n = epochs = None
    if known is not None and settings is not None:
        batching, last = known.parse(settings), max((step for step, _ in training), default=0)
        n = batching.rollouts_per_problem
        per_step, problems = batching.problems_per_batch, settings.problems
        epochs = per_step * last / problems if per_step and problems else None
    logged = _series(training, "epoch")
    first = [row for row in rows if row["split"] == "validation" and row["problem_set"] == rows[0]["problem_set"]]
    scores = [(row["step"], _score(row)) for row in first]
    middle = fmean(score for _, score in scores) if scores else 0.0
    answers = first[0]["questions"] * first[0]["samples"] if first else 1
    return Course(
        training=rewards,
        evaluations=scores,
        evaluation_error=sqrt(middle * (1 - middle) / answers) if scores else 0.0,
        without_signal=[
            (s, sum(m.get(name, 0.0) for name in equal)) for s, m in training if not m.keys().isdisjoint(equal)
        ],
        others=series,
        rates=bool(rewards) and all(-1e-6 <= value <= 1 + 1e-6 for _, value in rewards),
        n=n,
        epochs=logged[-1][1] if logged else epochs,
    )


def _score(row: Mapping[str, Any]) -> float:
    return float(next(value for name, value in row.items() if name.startswith("avg_at_") and value is not None))


def _series(rows: Sequence[tuple[int, Mapping[str, float]]], name: str) -> Series:
    return [(step, metrics[name]) for step, metrics in rows if name in metrics]


def plain_course(source: str) -> Course:
    """The course of a run without a known trainer: a table or lines with a step and a reward in each row."""
    logs = read_logs(source, PLAIN)
    course = course_of(logs[0]) if len(logs) == 1 else Course()
    if not course.training:
        raise BudgetError(f"{source}: has no column of rewards beside its steps; it may be called {', '.join(REWARDS)}")
    return course
