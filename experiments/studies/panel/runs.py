"""All numbers of one unit, and those of its runs when they are compared with each other; the paper's own points."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
import polars as pl
from isocompute.frontier import Frontier
from isocompute.frontier.data.curves import binomial_errors
from isocompute.frontier.fitting.point import fit_form
from isocompute.frontier.notebook import Fit
from isocompute.frontier.posterior.health import Kind

from .measures import (
    AS_PINNED,
    LEAST_UPDATES,
    OTHER_DRAWS,
    SQRT,
    TUNED,
    Number,
    Posteriors,
    Reading,
    prescribed,
    readings,
    rewards,
    summary,
    vertex_of,
)
from .statistics import clopper_pearson, slope
from .study import EARLY, RATE_FACTORS, ROOT
from .whole import Whole

ALWAYS = (8, 16)
"""Every n that a rival always takes; plan.md names 8."""
PAPER = ROOT / "packages" / "frontier" / "docs" / "playbook-easy.csv"
"""The evaluations of the paper's own runs on its Easy set."""
WITHIN = 0.02
"""Reward within which a forecast holds (ScaleRL)."""
RARE_WAY = "needle"
"""The setting with two ways to succeed, of different lengths."""
PAIRS = {"anchor: × ½, 1": (0.5, 1.0), "anchor: × 1, 2": (1.0, 2.0)}
Readings = dict[str, Number]
"""A unit's number as it was pinned, and as it is read otherwise: ``FIELD: what``."""


def measure(whole: Whole) -> dict[str, Any]:
    """All numbers of a unit: those of its questions in every reading, and what the page shows beside them."""
    own, other = (Posteriors(whole=whole, seed=seed) for seed in (0, 1))
    last = whole.budget
    vertices = {
        **{
            name: (own.vertex(base, EARLY), own.vertex(base, last), own.vertex(base, last, since=EARLY))
            for name, base in (("sqrt", SQRT), ("tuned", TUNED))
        },
        "decay": (own.branches(TUNED, EARLY), own.branches(TUNED, last), own.branches(TUNED, last, since=EARLY)),
    }
    questions = {
        "Q1": varied(own, other, SQRT, shift),
        "Q2": varied(own, other, TUNED, shift),
        "Q3": branched(own, other),
        "late": varied(own, other, TUNED, lambda each, reading: summary(each.vertex(reading, last))),
        "Q5": exponents(own, other),
        "Q6": equal_batches(own, other),
        "Q7": filtered(whole, own.fit, at_equal_reward, "best_at_4"),
        "Q8": filtered(whole, own.fit, at_equal_reward, "worst_at_4"),
        "Q9": filtered(whole, own.fit, polarised, "share"),
        "Q10": varied(own, other, TUNED, memorised),
        "Q11": filtered(whole, own.fit, rare_way, "length") if whole.unit.problem_set == RARE_WAY else {},
        "Q14": against_always(own, other),
        "Q15": held(whole, own.fit, other.fit),
    }
    regret, _ = own.prescribed(ALWAYS)
    power = forecasts(whole, own.fit, "power")
    return {
        "questions": {name: values for name, values in questions.items() if values},
        "vertices": {name: [summary(each) for each in three] for name, three in vertices.items()},
        "failures": failures(whole, own.fit),
        "reward": {f: float(rewards(own.fit, own.cells(f), last).mean()) for f in RATE_FACTORS},
        "factors": own.factors(TUNED),
        "regret by n": by_n(own),
        "regret": regret,
        "signal": whole.probe["groups_with_signal"],
        "spread": own.fit.posterior.split_r_hat,
        "power law": _share((power["forecast"] - power["end"]).abs() <= WITHIN),
    }


def by_n(own: Posteriors) -> dict[int, float]:
    """Regret of each n at its best rate at C_max."""
    ends = own.rewards(own.tuned, own.whole.budget, "expected").mean(axis=0)
    return dict(zip(own.whole.group_sizes, (ends.max() - ends).tolist(), strict=True))


def varied(own: Posteriors, other: Posteriors, base: Reading, of: Callable[[Posteriors, Reading], Number]) -> Readings:
    """A number of n* in every reading.

    Args:
        other: The same with other draws.
    """
    return {**{name: of(own, reading) for name, reading in readings(base).items()}, OTHER_DRAWS: of(other, base)}


def shift(own: Posteriors, reading: Reading) -> Number:
    """Octaves by which n* moves from C_max/8 to C_max."""
    return summary(own.vertex(reading, own.whole.budget) - own.vertex(reading, EARLY))


def memorised(own: Posteriors, reading: Reading) -> Number:
    """Octaves by which n* on training problems is above that on validation."""
    late, training = (own.vertex(reading, own.whole.budget, training=side) for side in (False, True))
    # Of two fits, whose draws may differ in number.
    draws = min(len(late), len(training))
    return summary(training[:draws] - late[:draws])


def branched(own: Posteriors, other: Posteriors) -> Readings:
    """As ``shift``, of the ends of the branches, which were made at one choice of rates and of which none failed."""
    looked = {
        name: each
        for name, each in readings(TUNED).items()
        if each.rewards == "expected" and each.factors == TUNED.factors
    }

    def moved(each: Posteriors, reading: Reading) -> Number:
        return summary(each.branches(reading, each.whole.budget) - each.branches(reading, EARLY))

    return {**{name: moved(own, reading) for name, reading in looked.items()}, OTHER_DRAWS: moved(other, TUNED)}


def exponents(own: Posteriors, other: Posteriors) -> Readings:
    """Exponent of B in the best rate: of the posterior between and beyond the rates, else of the best of three."""
    found = {name: own.exponent(reading) for name, reading in readings(TUNED).items() if not reading.highest}
    found["estimator: best of three rates"] = found.pop(AS_PINNED)
    pinned = {}
    for name, each in ((AS_PINNED, own), (OTHER_DRAWS, other)):
        if rates := each.fit.best_rates(own.whole.budget):
            pinned[name] = (rates.exponent, *rates.exponent_interval)
    return pinned | found


def equal_batches(own: Posteriors, other: Posteriors) -> Readings:
    """Reward of n = 4 with more problems less that of larger n."""
    drawn = {
        AS_PINNED: own.equal_batches(),
        "edges: n = 8 alone": own.equal_batches(only=8),
        "edges: n = 16 alone": own.equal_batches(only=16),
        "estimator: last evaluations": own.equal_batches("measured"),
        "failures: left out": own.equal_batches("healthy"),
        OTHER_DRAWS: other.equal_batches(),
    }
    return {name: summary(each) for name, each in drawn.items() if each is not None}


def against_always(own: Posteriors, other: Posteriors) -> Readings:
    """Regret of what a quarter prescribes less that of n = 8 always, at the rate that was best so far or at another."""
    usual = f"n = {ALWAYS[0]}"
    _, pinned = own.prescribed(ALWAYS)
    found = {AS_PINNED: pinned[usual]}
    found |= {f"anchor: n = 8 × {factor:g}": pinned[f"n = 8 × {factor:g}"] for factor in RATE_FACTORS}
    for name, how in (("estimator: last evaluations", "measured"), ("failures: left out", "healthy")):
        found[name] = own.prescribed(ALWAYS, how)[1][usual]
    found[OTHER_DRAWS] = other.prescribed(ALWAYS)[1][usual]
    return {name: summary(each) for name, each in found.items()}


def held(whole: Whole, fit: Fit, other: Fit) -> Readings:
    """Share of trunks whose end is forecast within 0.02."""
    rows = forecasts(whole, fit, "hill")
    hits = (pl.col("forecast") - pl.col("end")).abs() <= WITHIN
    ends = dict(forecasts(whole, other, "").select("run_id", "end").iter_rows())
    again = rows.with_columns(end=pl.col("run_id").replace_strict(ends, return_dtype=pl.Float64))
    looked = {
        AS_PINNED: rows,
        **{f"anchor: × {factor:g}": rows.filter(pl.col("factor") == factor) for factor in RATE_FACTORS},
        **{f"edges: no n = {n}": rows.filter(pl.col("rollouts_per_problem") != n) for n in (2, 32)},
        "estimator: to its last evaluation": rows.with_columns(end="last"),
        "failures: left out": rows.filter(~pl.col("failed")),
        OTHER_DRAWS: again,
    }
    return {name: _share(own.select(hits).to_series()) for name, own in looked.items() if len(own)}


def filtered(whole: Whole, fit: Fit, of: Callable[[Whole, pl.DataFrame, str, int], Number], metric: str) -> Readings:
    """A slope over the trunks that did not fail, and over others; without those that have too few runs for it."""
    failed = pl.col("run_id").is_in([health.run_id for health in fit.prepared.health if health.failed])
    rows, n = whole.trunks.filter(~failed), pl.col("rollouts_per_problem")
    looked = {
        AS_PINNED: (rows, 3),
        **{name: (rows.filter(pl.col("factor").is_in(factors)), 3) for name, factors in PAIRS.items()},
        **{f"edges: no n = {each}": (rows.filter(n != each), 3) for each in (2, 32)},
        "failures: included": (whole.trunks, 3),
    }
    if of is not rare_way:
        looked["estimator: a line beside it"] = (rows, 1)
    found = {}
    for name, (own, powers) in looked.items():
        # Where most runs of these rates failed.
        with suppress(ValueError):
            found[name] = of(whole, own, metric, powers)
    return found


def at_equal_reward(whole: Whole, trunks: pl.DataFrame, metric: str, powers: int) -> Number:
    """Slope of a metric in log2 n beside a cubic in avg@4, over evaluations after 64 updates or more.

    Args:
        powers: Of avg@4; 3 for the cubic.
    """
    own = trunks.filter(pl.col("step") >= LEAST_UPDATES)
    reward = own["avg_at_4"].to_numpy()
    columns = [np.log2(own["rollouts_per_problem"].to_numpy()), *(reward**k for k in range(1, powers + 1))]
    return slope(columns, own[metric].to_numpy(), own["run_id"].to_list())


def polarised(whole: Whole, trunks: pl.DataFrame, metric: str, powers: int) -> Number:
    """Slope in log2 n of the share of training problems at 0 or 1 at C_max, beside a parabola in their mean.

    Args:
        powers: As of ``at_equal_reward``; 2 of the mean are the most.
    """
    end = (pl.col("rollouts") == whole.budget) & pl.col("run_id").is_in(trunks["run_id"].unique().to_list())
    rate = pl.col("successes") / pl.col("samples")
    runs = (
        whole.training.filter(end)
        .group_by("run_id", "rollouts_per_problem", maintain_order=True)
        .agg(mean=rate.mean(), share=((rate == 0) | (rate == 1)).mean())
    )
    mean = runs["mean"].to_numpy()
    columns = [np.log2(runs["rollouts_per_problem"].to_numpy()), *(mean**k for k in range(1, min(powers, 2) + 1))]
    return slope(columns, runs[metric].to_numpy(), runs["run_id"].to_list())


def rare_way(whole: Whole, trunks: pl.DataFrame, metric: str, powers: int = 0) -> Number:
    """Slope in log2 n of the mean length of responses at C_max: a rare code is one token longer than a common one."""
    own = trunks.filter(pl.col("rollouts") == whole.budget).join(whole.lengths, on=["run_id", "step"])
    group_sizes = np.log2(own["rollouts_per_problem"].to_numpy())
    return slope([group_sizes], own[metric].to_numpy(), own["run_id"].to_list())


def failures(whole: Whole, fit: Fit) -> list[dict[str, float]]:
    """By n and factor: runs, and those that failed as everywhere here: collapsed, or never took off."""
    judged = [health.run_id for health in fit.prepared.health if health.failed]
    runs = whole.evals.filter(pl.col("kind").is_in(["trunk", "seed"]))
    keys = ["rollouts_per_problem", "factor"]
    counted = runs.unique("run_id").group_by(keys).agg(runs=pl.len(), failed=pl.col("run_id").is_in(judged).sum())
    return counted.sort(keys).rename({"rollouts_per_problem": "n"}).to_dicts()


def forecasts(whole: Whole, fit: Fit, form: str) -> pl.DataFrame:
    """Of each trunk ``forecast``, the end of the curve through its first half of compute, and its own fitted ``end``.

    A run that failed has no fitted end: its ``last`` evaluation stands for it.

    Args:
        form: Of the curve; empty to forecast nothing.
    """
    fitted = {h.run_id for h in fit.prepared.health if h.fitted and Kind.RESCALED not in h.kinds}
    failed = {h.run_id for h in fit.prepared.health if h.failed}
    found = []
    for (run,), rows in whole.trunks.sort("run_id", "rollouts").group_by("run_id", maintain_order=True):
        compute, reward = (rows[name].to_numpy().astype(np.float64) for name in ("rollouts", "avg_at_4"))
        last = end = float(reward[-1])
        if run in fitted:
            end = float(fit.forecast(str(run), float(whole.budget))["reward"][0])
        ahead = float("nan")
        if form:
            errors = binomial_errors(reward, (rows["questions"] * rows["samples"]).to_numpy().astype(float))
            half = (compute > 0) & (compute <= whole.budget / 2)
            # The sigmoid begins at the reward before training, as ScaleRL's does; a power law's start is free.
            start = float(reward[compute == 0].mean()) if form == "hill" else None
            ahead = float(fit_form(form, compute[half], reward[half], errors[half], start)(float(whole.budget)))
        keys = {name: rows[name][0] for name in ("run_id", "factor", "rollouts_per_problem")}
        found.append({**keys, "failed": run in failed, "forecast": ahead, "end": end, "last": last})
    return pl.DataFrame(found)


def _share(hits: pl.Series) -> Number:
    return int(hits.sum()) / len(hits), *clopper_pearson(int(hits.sum()), len(hits))


def paper() -> dict[str, Any]:
    """Measure n* and a quarter of the budget on the paper's own points: one model, one problem set, one seed."""
    points = Frontier.read(PAPER)
    fit = points.fit()
    quarter = Frontier(points.evals.filter(pl.col("rollouts") <= fit.largest / 4)).fit()
    cells = sorted(fit.cells, key=lambda cell: cell.rollouts_per_problem)
    group_sizes = [cell.rollouts_per_problem for cell in cells]
    early, late = (vertex_of(cells, rewards(fit, cells, budget), budget) for budget in (fit.largest / 8, fit.largest))
    usual = dict(zip(group_sizes, cells, strict=True))
    drawn = rewards(fit, cells, fit.largest)
    regret, _ = prescribed(fit.largest, quarter, cells, drawn, always=ALWAYS, usual=usual)
    return {
        "vertices": [summary(early), summary(late)],
        "shift": summary(late - early),
        "regret": regret,
        "budget": fit.largest,
    }
