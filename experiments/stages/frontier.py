"""Fit the frontier of a sweep."""

from __future__ import annotations

from isocompute.frontier import FitConfig, fit
from isocompute.frontier.show import figures
from isocompute.rollout.contract import tables

from ..settings import Preset
from .shared import OUT, log


def run(preset: Preset, problem_set: str) -> None:
    """Write the fits of a sweep and their figures."""
    sweep = OUT / "sweep" / problem_set
    evals = tables.read(sweep / "evals.parquet", "evals")
    settings = preset.frontier
    fits = fit(
        evals,
        FitConfig(
            form=settings.form, bootstrap=settings.bootstrap, seed=settings.seed, metric=preset.evaluation.metric
        ),
        pass_rates=tables.read(sweep / "pass_rates.parquet", "pass_rates"),
    )
    out = OUT / "frontier" / problem_set
    fits.save(out)
    drawn = figures.all_figures(fits, out)
    print(fits.summary())
    log(
        preset,
        f"{problem_set}-frontier",
        {"fits": out / "fits.json", "frontier": out / "frontier.parquet"},
        figures=drawn,
        params=settings.model_dump(),
        inputs={"evals": sweep / "evals.parquet"},
    )
