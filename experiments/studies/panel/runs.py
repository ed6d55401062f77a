"""All numbers of one unit, and those of its runs when they are compared with each other; the paper's own points."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl
from isocompute.frontier import Frontier
from isocompute.frontier.data.curves import binomial_errors
from isocompute.frontier.fitting.point import fit_form
from isocompute.frontier.notebook import Fit
from isocompute.frontier.posterior.health import Kind

from .measures import LEAST_UPDATES, Number, Posteriors, prescribed, rewards, summary, vertex_of
from .statistics import clopper_pearson, slope
from .study import EARLY, ROOT
from .whole import Whole

ALWAYS = (8, 16)
"""Every n that a rival always takes; plan.md names 8."""
PAPER = ROOT / "packages" / "frontier" / "docs" / "playbook-easy.csv"
"""The evaluations of the paper's own runs on its Easy set."""
WITHIN = 0.02
"""Reward within which a forecast holds (ScaleRL)."""
RARE_WAY = "needle"
"""The setting with two ways to succeed, of different lengths."""


def measure(whole: Whole) -> dict[str, Any]:
    """All numbers of a unit: those of its questions, and what the page shows beside them."""
    own = Posteriors(whole=whole)
    early, last = EARLY, whole.budget
    vertices = {
        **{
            name: (own.vertex(cells, early), own.vertex(cells, last), own.vertex(cells, last, since=early))
            for name, cells in (("sqrt", own.cells(1.0)), ("tuned", own.tuned))
        },
        "decay": (own.branches(early), own.branches(last), own.branches(last, since=early)),
    }
    regret, against = own.prescribed(ALWAYS)
    equal, rates = own.equal_batches(), own.fit.best_rates(whole.budget)
    failed = failures(whole, own.fit)
    shifts = [summary(end - start) for start, end, _ in vertices.values()]
    # Of two fits, whose draws may differ in number.
    draws = min(len(own.training), len(vertices["tuned"][1]))
    questions = {
        **dict(zip(("Q1", "Q2", "Q3"), shifts, strict=True)),
        "Q5": (rates.exponent, *rates.exponent_interval) if rates else None,
        "Q6": None if equal is None else summary(equal),
        "Q7": at_equal_reward(whole, own.fit, "best_at_4"),
        "Q8": at_equal_reward(whole, own.fit, "worst_at_4"),
        "Q9": polarised(whole, own.fit),
        "Q10": summary(own.training[:draws] - vertices["tuned"][1][:draws]),
        "Q11": rare_way(whole, own.fit) if whole.unit.problem_set == RARE_WAY else None,
        "Q14": summary(against),
        "Q15": _share(forecasts(whole, own.fit, "hill")),
    }
    return {
        "questions": {name: value for name, value in questions.items() if value is not None},
        "vertices": {name: [summary(each) for each in three] for name, three in vertices.items()},
        "failures": failed,
        "regret": regret,
        "crossings": own.crossings(),
        "probe": _probe(whole),
        "spread": own.fit.posterior.split_r_hat,
        "power law": _share(forecasts(whole, own.fit, "power")),
    }


def _probe(whole: Whole) -> dict[str, Any]:
    """The probe's guess of n with its ends, and the share of groups with signal by n, at the base model."""
    guess = whole.probe["first_guess"]
    return {"guess": [guess[k] for k in ("value", "lower", "upper")], "signal": whole.probe["groups_with_signal"]}


def _trained(whole: Whole, fit: Fit) -> pl.DataFrame:
    """Evaluations of the trunks that did not fail."""
    failed = [health.run_id for health in fit.prepared.health if health.failed]
    return whole.trunks.filter(~pl.col("run_id").is_in(failed))


def at_equal_reward(whole: Whole, fit: Fit, metric: str) -> Number:
    """Slope of a metric in log2 n beside a cubic in avg@4, over evaluations after 64 updates or more."""
    own = _trained(whole, fit).filter(pl.col("step") >= LEAST_UPDATES)
    reward = own["avg_at_4"].to_numpy()
    columns = [np.log2(own["rollouts_per_problem"].to_numpy()), reward, reward**2, reward**3]
    return slope(columns, own[metric].to_numpy(), own["run_id"].to_list())


def polarised(whole: Whole, fit: Fit) -> Number:
    """Slope in log2 n of the share of training problems at 0 or 1 at C_max, beside a parabola in their mean."""
    end = (pl.col("rollouts") == whole.budget) & pl.col("run_id").is_in(
        _trained(whole, fit)["run_id"].unique().to_list()
    )
    rate = pl.col("successes") / pl.col("samples")
    runs = (
        whole.training.filter(end)
        .group_by("run_id", "rollouts_per_problem", maintain_order=True)
        .agg(mean=rate.mean(), share=((rate == 0) | (rate == 1)).mean())
    )
    mean = runs["mean"].to_numpy()
    columns = [np.log2(runs["rollouts_per_problem"].to_numpy()), mean, mean**2]
    return slope(columns, runs["share"].to_numpy(), runs["run_id"].to_list())


def rare_way(whole: Whole, fit: Fit) -> Number:
    """Slope in log2 n of the mean length of responses at C_max: a rare code is one token longer than a common one."""
    own = _trained(whole, fit).filter(pl.col("rollouts") == whole.budget).join(whole.lengths, on=["run_id", "step"])
    group_sizes = np.log2(own["rollouts_per_problem"].to_numpy())
    return slope([group_sizes], own["length"].to_numpy(), own["run_id"].to_list())


def failures(whole: Whole, fit: Fit) -> list[dict[str, float]]:
    """By n and factor: runs, those that failed by plan.md, and those whose curve the posterior judged to have failed.

    By plan.md a run has failed whose last evaluation is below its first by three standard errors of their difference.
    """
    judged = {health.run_id for health in fit.prepared.health if health.failed}
    found = []
    grid = whole.evals.filter(pl.col("kind").is_in(["trunk", "seed"])).sort(
        "rollouts_per_problem", "factor", "rollouts"
    )
    for (n, factor), rows in grid.group_by("rollouts_per_problem", "factor", maintain_order=True):
        runs = [own for _, own in rows.group_by("run_id", maintain_order=True)]
        found.append(
            {
                "n": n,
                "factor": factor,
                "runs": len(runs),
                "below the base": sum(map(_fell, runs)),
                "collapsed": sum(own["run_id"][0] in judged for own in runs),
            }
        )
    return found


def _fell(run: pl.DataFrame) -> bool:
    reward, trials = run["avg_at_4"].to_numpy(), (run["questions"] * run["samples"]).to_numpy()
    variance = reward * (1 - reward) / trials
    return bool(reward[0] - reward[-1] > 3 * np.sqrt(variance[0] + variance[-1]))


def forecasts(whole: Whole, fit: Fit, form: str) -> list[bool]:
    """Of each trunk whether the curve through its first half of compute ends within 0.02 of its own fitted end.

    A run that failed has no fitted end: its last evaluation stands for it.
    """
    fitted = {h.run_id for h in fit.prepared.health if h.fitted and Kind.RESCALED not in h.kinds}
    held = []
    for (run,), rows in whole.trunks.sort("run_id", "rollouts").group_by("run_id", maintain_order=True):
        compute, reward = (rows[name].to_numpy().astype(np.float64) for name in ("rollouts", "avg_at_4"))
        end = float(reward[-1])
        if run in fitted:
            end = float(fit.forecast(str(run), float(whole.budget))["reward"][0])
        errors = binomial_errors(reward, (rows["questions"] * rows["samples"]).to_numpy().astype(float))
        half = (compute > 0) & (compute <= whole.budget / 2)
        # The sigmoid begins at the reward before training, as ScaleRL's does; a power law's start is free.
        start = float(reward[compute == 0].mean()) if form == "hill" else None
        curve = fit_form(form, compute[half], reward[half], errors[half], start)
        held.append(abs(float(curve(float(whole.budget))) - end) <= WITHIN)
    return held


def _share(held: list[bool]) -> Number:
    return sum(held) / len(held), *clopper_pearson(sum(held), len(held))


def paper() -> dict[str, Any]:
    """Measure n* and a quarter of the budget on the paper's own points: one model, one problem set, one seed."""
    points = Frontier.read(PAPER)
    fit = points.fit()
    quarter = Frontier(points.evals.filter(pl.col("rollouts") <= fit.largest / 4)).fit()
    cells = sorted(fit.cells, key=lambda cell: cell.rollouts_per_problem)
    group_sizes = [cell.rollouts_per_problem for cell in cells]
    early, late = (
        vertex_of(cells, rewards(fit, cells, budget), budget, group_sizes) for budget in (fit.largest / 8, fit.largest)
    )
    usual = dict(zip(group_sizes, cells, strict=True))
    regret, against = prescribed(fit, quarter, cells, always=ALWAYS, usual=usual)
    return {
        "vertices": [summary(early), summary(late)],
        "shift": summary(late - early),
        "regret": regret,
        "against": summary(against),
        "budget": fit.largest,
    }
