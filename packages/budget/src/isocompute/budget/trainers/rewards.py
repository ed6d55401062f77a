"""Means of rewards as success rates: one check, through which the evaluations of every reader go.

A mean is a success rate where all that a trainer logged of it can be of successes and failures alone: its value and
those of the best and the worst of k, how many successes that makes, and the spread. Rewards of 0 and 1 are taken for
granted where nothing contradicts them; others are declared (``scale``), unless a spread leaves no doubt.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import floor, isclose, sqrt

from ..errors import BudgetError
from .counting import LoggedEvaluation, Score, Spread
from .logs.log import Log
from .settings import MissingSettingError, Settings

SCALES = {"rate": (0.0, 1.0), "sign": (-1.0, 1.0), "percent": (0.0, 100.0)}
"""Rewards of failure and success: 0 and 1, -1 and 1, 0 and 100."""
MOST_RESPONSES = 100_000
"""Of more responses than this a mean in single precision does not say how many succeeded."""


def success_rates(
    evaluations: Sequence[LoggedEvaluation], declared: str, *, where: str
) -> tuple[list[LoggedEvaluation], list[str]]:
    """Evaluations with success rates for scores, each set on a scale of its own, and notes on scales other than 0, 1.

    Raises:
        MissingSettingError: They may be of rewards -1 and 1, which nothing proves.
    """
    if declared not in ("", *SCALES):
        raise BudgetError(f"{where}: scale is {declared!r}; it must be {', '.join(SCALES)}")
    notes, scales = [], {}
    for key in dict.fromkeys((e.problem_set, e.metric) for e in evaluations):
        of_set = [e for e in evaluations if (e.problem_set, e.metric) == key]
        scales[key] = scale = _scale(of_set, declared, where)
        if scale != "rate":
            low, high = SCALES[scale]
            notes.append(f"{_name(of_set[0])} is of rewards {low:g} and {high:g}: it is read as a success rate")
    return [_scaled(e, *SCALES[scales[e.problem_set, e.metric]]) for e in evaluations], notes


def metric_of_successes(log: Log, settings: Settings, metric: str, share: str) -> str:
    """The metric of a problem set's successes: its mean reward, or where rewards are -1 and 1 the share of the 1s."""
    both = [(step, m[metric], m[share]) for step, m in log.rows if metric in m and share in m]
    if settings.text("scale") or all(isclose(rate, mean, abs_tol=1e-6) for _, mean, rate in both):
        return metric
    other = next((each for each in both if not isclose(each[2], (each[1] + 1) / 2, abs_tol=1e-6)), None)
    if other is None:
        settings.notes.append(f"{metric} is of rewards -1 and 1: {share} is read as a success rate")
        return share
    raise BudgetError(
        f"{log.name}: {metric} is {other[1]:g} and {share} {other[2]:g} at step {other[0]}, of rewards other than 0 "
        "and 1, or -1 and 1: say which with --set scale=…, or name another metric with --set metric=NAME"
    )


def mean_scores(
    log: Log, metric: str, best: str, samples: int, *, low: float = 0.0, binary: bool | None = None
) -> Iterator[tuple[int, Score]]:
    """The scores of a problem set, by step: means, and the best of all samples where that is logged.

    Args:
        low: What a failure is rewarded with.
    """
    for step, metrics in log.rows:
        if metric in metrics:
            columns = {f"avg_at_{samples}": (metrics[metric] - low) / (1 - low)}
            if samples > 1 and best in metrics:
                columns[f"best_at_{samples}"] = metrics[best]
            spread = Spread(size=samples)
            yield step, Score(samples=samples, scores=columns, metric=metric, spread=spread, binary=binary)


def _scale(evaluations: Sequence[LoggedEvaluation], declared: str, where: str) -> str:
    """The scale of the rewards of a problem set."""
    fitting = [scale for scale in SCALES if all(_fits(e, scale) for e in evaluations)]
    other_rewards = any(e.binary is False for e in evaluations)
    if declared in fitting or ("rate" in fitting and not declared and not other_rewards):
        return declared or "rate"
    # The spread of one batch follows from its mean and leaves no doubt.
    sure = [e for e in evaluations if e.spread is not None and e.spread.deviation and _groups(e) == 1]
    proved = [s for s in fitting if s != "rate" and not declared and any(_fits(e, s) for e in sure)]
    if proved:
        return proved[0]
    tried = declared or "rate"
    worst = next((e for e in evaluations if not _fits(e, tried)), evaluations[0])
    if tried in fitting:
        raise BudgetError(
            f"{where}: {_name(worst)} has other rewards than 0 and 1, of which alone the trainer logs pass@k: say "
            "--set scale=rate if only a part of the log is there"
        )
    low, high = SCALES[tried]
    other = "name the accuracy's own metric with --set metric=NAME"
    said = f"{where}: {_shown(worst)}, which is not a success rate of rewards {low:g} and {high:g}"
    if "sign" in fitting and not declared:
        cure = "say --set scale=sign if they are -1 and 1"
        raise MissingSettingError(f"{said}: {cure}, or {other}", name="scale", choices="sign")
    if worst.questions and _fits(replace(worst, questions=None), tried):
        cure = f"say how many problems were evaluated with --set questions.{worst.problem_set}=NUMBER"
        raise BudgetError(f"{said}, of {worst.questions:,} × {worst.samples:,} responses: {cure}, or {other}")
    percent = ", or say --set scale=percent if they are 0 and 100" if "percent" in fitting and not declared else ""
    raise BudgetError(f"{said}: {other}{percent}")


def _fits(e: LoggedEvaluation, scale: str) -> bool:
    """Return whether an evaluation can be of successes and failures alone."""
    if e.binary and scale != "rate":
        return False
    scaled = _scaled(e, *SCALES[scale])
    if any(not -1e-6 <= rate <= 1 + 1e-6 for rate in scaled.scores.values()):
        return False
    groups, mean = _groups(e), scaled.scores.get(f"avg_at_{e.samples}")
    width = SCALES[scale][1] - SCALES[scale][0]
    rounding = {column: _rounding(score) / width for column, score in e.scores.items()}
    if mean is not None and not all(_in_order(c, rate, mean, rounding[c]) for c, rate in scaled.scores.items()):
        return False
    if groups is not None and e.questions is not None:
        for column, rate in scaled.scores.items():
            kind, _, k = column.split("_")[:3]
            # The best and the worst of all responses to a problem are those of the problem.
            of = e.questions * (int(k) if kind == "avg" else 1)
            exact = kind == "avg" or (int(k) == e.samples and not column.endswith("_biased"))
            # Up to single precision, and to how a mean was rounded.
            slack = 1e-3 + 1e-6 * rate * of + rounding[column] * of * 1.001
            if exact and of < MOST_RESPONSES and abs(rate * of - round(rate * of)) > slack:
                return False
    if e.spread is None or scaled.spread is None or scaled.spread.deviation is None or mean is None:
        return True
    deviation, most = scaled.spread.deviation, _most(mean, e.spread, groups)
    return deviation <= most * 1.001 + 1e-3 and (groups != 1 or isclose(deviation, most, rel_tol=2e-3, abs_tol=2e-3))


def _in_order(column: str, rate: float, mean: float, rounding: float) -> bool:
    """Return whether the best and the worst of k lie where a mean puts them: k responses have k times its successes."""
    kind, _, k = column.split("_")[:3]
    # Draws with replacement miss what they estimate by a little.
    slack = (0.05 if column.endswith("_biased") else 1e-6) + rounding * (1 + int(k))
    if kind == "best":
        return mean - slack <= rate <= int(k) * mean + slack
    return kind != "worst" or mean + slack >= rate >= 1 - int(k) * (1 - mean) - slack


def _groups(e: LoggedEvaluation) -> int | None:
    """How many groups of responses a mean is of, where all are of one size, so that every response weighs the same."""
    if e.spread is None or not e.spread.size or e.questions is None or e.questions * e.samples % e.spread.size:
        return None
    return e.questions * e.samples // e.spread.size


def _most(rate: float, spread: Spread, groups: int | None) -> float:
    """The largest mean deviation of groups whose successes have a rate, all groups being of one size if it is known."""
    rate = min(max(rate, 0.0), 1.0)
    size = spread.size
    if size is None or (spread.corrected and groups is None):
        # A last batch may hold two responses only, whose sample deviation is the largest.
        return sqrt(rate * (1 - rate)) * (sqrt(2) if spread.corrected else 1)
    # Between groups of c successes and of c + 1, whose mixture has the largest mean deviation.
    below = floor(rate * size + 1e-9)
    low, high = (sqrt(max(c * (size - c), 0)) / size for c in (below, below + 1))
    most = low + (high - low) * min(max(rate * size - below, 0.0), 1.0)
    return most * (sqrt(size / (size - 1)) if spread.corrected and size > 1 else 1)


def _scaled(e: LoggedEvaluation, low: float, high: float) -> LoggedEvaluation:
    """An evaluation with failures at 0 and successes at 1."""
    width = high - low
    rates = {column: (score - low) / width for column, score in e.scores.items()}
    spread = e.spread
    if spread is not None and spread.deviation is not None:
        spread = replace(spread, deviation=spread.deviation / width)
    within = {c: min(max(rate, 0.0), 1.0) if -1e-6 <= rate <= 1 + 1e-6 else rate for c, rate in rates.items()}
    return replace(e, scores=within, spread=spread)


def _rounding(value: float) -> float:
    """By how much a value may have been rounded that has few decimals, as on a console."""
    whole, _, decimals = repr(float(value)).partition(".")
    return 0.0 if "e" in decimals or not whole or len(decimals) > 6 else 0.5 * 10.0 ** -len(decimals)


def _name(e: LoggedEvaluation) -> str:
    return e.metric or f"avg_at_{e.samples} of {e.problem_set}"


def _shown(e: LoggedEvaluation) -> str:
    """What was logged, as the subject of a refusal."""
    mean = e.scores.get(f"avg_at_{e.samples}")
    beyond = [f"{c} {s:g}" for c, s in e.scores.items() if not c.startswith("avg_at_") and not 0 <= s <= 1][:2]
    if e.spread is not None and e.spread.deviation is not None:
        beyond.append(f"a standard deviation of {e.spread.deviation:g}")
    with_these = f" with {' and '.join(beyond)}" if beyond else ""
    return f"{_name(e)} is {'not logged' if mean is None else f'{mean:g}'}{with_these} at step {e.count.step}"
