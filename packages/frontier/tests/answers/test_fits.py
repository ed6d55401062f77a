from pathlib import Path

import numpy as np
import polars as pl
import pytest
from isocompute.frontier import FitConfig, Flag, FrontierError, fit, prescribe
from isocompute.frontier.fitting.forms import Parameters
from isocompute.frontier.fitting.point import fit_form
from isocompute.frontier.show.figures import all_figures
from scipy.optimize import curve_fit

EXP = FitConfig(form="exp", bootstrap=60)


def test_a_fit_agrees_with_scipy_on_the_same_points(table: pl.DataFrame) -> None:
    for c in fit(table, EXP).curves:
        p, curve = c.parameters, c.curve
        assert p is not None
        found, _ = curve_fit(
            lambda x, a, d, t: a - d * np.exp(-x / t), curve.compute, curve.reward, p0=(0.5, 0.2, 5000),
            sigma=curve.standard_error,
        )  # fmt: skip
        assert (p.asymptote, p.gain) == pytest.approx(found[:2], abs=2e-3)
        assert p.scale == pytest.approx(found[2], rel=2e-2)


def test_a_longer_run_of_a_larger_n_overtakes(table: pl.DataFrame) -> None:
    fits = fit(table, EXP)
    assert [(x.before, x.after, x.kind) for x in fits.crossovers] == [(4, 16, "crossing")]
    crossing = fits.crossovers[0]
    # 0.30 + 0.15 (1 − e^(−C/3000)) = 0.30 + 0.30 (1 − e^(−C/9000)) at C = 4,331.
    assert crossing.stated
    assert crossing.interval is not None
    low, high = crossing.interval
    assert high is not None
    assert (low or 0.0) < 4331 < high


@pytest.mark.parametrize("form", ["exp", "hill", "power"])
def test_scaling_compute_scales_the_scale_and_nothing_else(table: pl.DataFrame, form: str) -> None:
    config = FitConfig(form=form, bootstrap=20)
    scaled = table.with_columns(rollouts=pl.col("rollouts") * 1000)
    for a, b in zip(fit(table, config).curves, fit(scaled, config).curves, strict=True):
        assert a.parameters is not None
        assert b.parameters is not None
        assert b.parameters.asymptote == pytest.approx(a.parameters.asymptote, abs=1e-3)
        assert b.parameters.half_compute == pytest.approx(1000 * a.parameters.half_compute, rel=1e-2)


def test_the_order_of_rows_is_irrelevant(table: pl.DataFrame) -> None:
    shuffled = table.sample(fraction=1.0, shuffle=True, seed=1)
    assert fit(table, EXP).summary() == fit(shuffled, EXP).summary()


def test_a_dominated_curve_does_not_change_the_envelope(table: pl.DataFrame) -> None:
    worse = table.filter(pl.col("rollouts_per_problem") == 4).with_columns(
        rollouts_per_problem=pl.lit(64), avg_at_4=pl.col("avg_at_4") - 0.2
    )
    alone, both = fit(table, EXP), fit(pl.concat([table, worse], how="vertical_relaxed"), EXP)
    assert np.allclose(alone.envelope[0], both.envelope[0])


def test_the_envelope_is_monotone(table: pl.DataFrame) -> None:
    assert (np.diff(fit(table, EXP).envelope[0]) >= 0).all()


def test_one_seed_is_labelled_as_within_run(table: pl.DataFrame) -> None:
    fits = fit(table.filter(pl.col("seed") == 0), EXP)
    assert all(Flag.WITHIN_RUN_ONLY in c.flags for c in fits.curves)


def test_too_few_points_are_a_result_with_a_reason(table: pl.DataFrame) -> None:
    fits = fit(table.filter(pl.col("rollouts") <= 1024), EXP)
    assert fits.fitted == []
    assert all(Flag.FIT_FAILED in c.flags and c.reason for c in fits.curves)
    assert "no fit" in fits.summary()


def test_a_constant_reward_is_fitted_without_a_nan(table: pl.DataFrame) -> None:
    fits = fit(table.with_columns(avg_at_4=pl.lit(0.4)), FitConfig(form="auto", bootstrap=20))
    assert [c.parameters.asymptote for c in fits.curves if c.parameters] == pytest.approx([0.4, 0.4], abs=1e-2)


def test_a_run_that_collapses_is_flagged(table: pl.DataFrame) -> None:
    fallen = table.with_columns(avg_at_4=pl.when(pl.col("rollouts") > 16000).then(0.1).otherwise(pl.col("avg_at_4")))
    assert all(Flag.TAIL_FALLING in c.flags for c in fit(fallen, EXP).curves)


def test_a_fit_held_at_a_reward_of_1_is_still_the_best_one() -> None:
    # Nearly a line: without noise enough to tell, the asymptote is at its bound.
    compute = np.linspace(5e4, 4e6, 60)
    truth = Parameters(form="hill", start=0.3, gain=0.4, scale=3e7, shape=1.0)
    for seed in range(6):
        reward = truth(compute) + np.random.default_rng(seed).normal(0, 0.01, 60)
        found = fit_form("hill", compute, reward, np.full(60, 0.014), None).parameters
        assert found.asymptote <= 1.0 + 1e-9
        assert ((reward - found(compute)) ** 2).sum() <= ((reward - truth(compute)) ** 2).sum()


def test_mixed_problem_sets_are_refused(table: pl.DataFrame) -> None:
    mixed = pl.concat([table, table.with_columns(problem_set=pl.lit("hard"), run_id=pl.lit("other"))])
    with pytest.raises(FrontierError, match="mix the problem sets easy, hard"):
        fit(mixed, EXP)


def test_the_same_evals_give_the_same_bytes(table: pl.DataFrame, tmp_path: Path) -> None:
    for name in ("a", "b"):
        fits = fit(table, EXP)
        fits.save(tmp_path / name)
        all_figures(fits, tmp_path / name)
    first = {p.name: p.read_bytes() for p in (tmp_path / "a").iterdir()}
    assert first == {p.name: p.read_bytes() for p in (tmp_path / "b").iterdir()}
    assert {"fits.json", "frontier.parquet", "refits.parquet", "curves.png", "n_star.svg"} <= first.keys()


def test_fits_from_disk_prescribe_what_fits_in_memory_do(table: pl.DataFrame, tmp_path: Path) -> None:
    fits = fit(table, EXP)
    fits.save(tmp_path)
    kept, loaded = prescribe(fits, budget=40_000), prescribe(tmp_path, budget=40_000)
    assert kept.summary() == loaded.summary()
    assert kept.rollouts_per_problem == 16
    assert kept.rollouts_per_problem * kept.problems_per_batch * kept.update_steps <= 40_000
    assert Flag.BEYOND_SUPPORT in kept.flags


def test_a_budget_beyond_four_times_the_support_is_refused(table: pl.DataFrame) -> None:
    with pytest.raises(FrontierError, match="extend the sweep"):
        prescribe(fit(table, EXP), budget=1_000_000)
