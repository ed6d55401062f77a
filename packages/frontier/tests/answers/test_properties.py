"""What must hold whatever the points are."""

import json
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from isocompute.frontier import FitConfig, Fits, fit

FEW = settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.too_slow])
FORMS = st.sampled_from(["exp", "hill", "power"])


@st.composite
def sweeps(draw: st.DrawFn) -> pl.DataFrame:
    """Two or three n with curves of their own, noise, and runs that end at different compute."""
    rng = np.random.default_rng(draw(st.integers(0, 2**31)))
    parts = []
    for n in draw(st.sampled_from([(4, 16), (8, 32, 128)])):
        compute = 1000.0 * np.arange(0 if draw(st.booleans()) else 1, draw(st.integers(8, 20)))
        rise = 1 - np.exp(-compute / rng.uniform(2e3, 2e4))
        reward = 0.3 + rng.uniform(0.1, 0.5) * rise + rng.normal(0, 0.01, len(compute))
        parts.append(
            pl.DataFrame({"rollouts": compute, "avg_at_4": np.clip(reward, 0, 1)}).with_columns(
                rollouts_per_problem=pl.lit(n), problems_per_batch=pl.lit(8), seed=pl.lit(0),
                problem_set=pl.lit("easy"), split=pl.lit("validation"), questions=pl.lit(300), samples=pl.lit(4),
            )
        )  # fmt: skip
    return pl.concat(parts)


def written(fits: Fits) -> dict[str, object]:
    with TemporaryDirectory() as folder:
        fits.save(folder)
        return dict(json.loads((Path(folder) / "fits.json").read_text()))


@FEW
@given(sweeps(), FORMS, st.floats(1e-4, 1e6))
def test_scaling_compute_scales_the_midpoint_and_nothing_else(table: pl.DataFrame, form: str, factor: float) -> None:
    config = FitConfig(form=form, bootstrap=20)
    scaled = table.with_columns(rollouts=pl.col("rollouts") * factor)
    for a, b in zip(fit(table, config).fitted, fit(scaled, config).fitted, strict=True):
        assert a.parameters is not None
        assert b.parameters is not None
        grid = np.linspace(*a.curve.support, 20)
        # Where the data do not identify the parameters, the curve over them must stay the same.
        assert b.parameters(grid * factor) == pytest.approx(a.parameters(grid), abs=2e-3)
        if a.profile is not None and a.profile.interval[1] - a.profile.interval[0] < 0.05:
            assert b.parameters.asymptote == pytest.approx(a.parameters.asymptote, abs=2e-3)
            assert b.parameters.half_compute == pytest.approx(factor * a.parameters.half_compute, rel=0.02)
        assert b.residual_sd == pytest.approx(a.residual_sd, rel=1e-2)
        assert b.curve.support == pytest.approx([factor * end for end in a.curve.support])


@FEW
@given(sweeps(), FORMS, st.integers(0, 1000))
def test_the_order_of_rows_is_irrelevant(table: pl.DataFrame, form: str, seed: int) -> None:
    config = FitConfig(form=form, bootstrap=20)
    shuffled = table.sample(fraction=1.0, shuffle=True, seed=seed)
    assert written(fit(table, config)) == written(fit(shuffled, config))


@FEW
@given(sweeps(), st.floats(0.1, 0.29), st.sampled_from([2, 12, 512]))
def test_a_dominated_curve_does_not_change_the_envelope(table: pl.DataFrame, lower: float, n: int) -> None:
    config = FitConfig(form="exp", bootstrap=20)
    first = table["rollouts_per_problem"][0]
    worse = table.filter(pl.col("rollouts_per_problem") == first).with_columns(
        rollouts_per_problem=pl.lit(n, dtype=table.schema["rollouts_per_problem"]),
        avg_at_4=(pl.col("avg_at_4") - lower).clip(0, 1),
    )
    alone, both = fit(table, config), fit(pl.concat([table, worse]), config)
    assert np.allclose(alone.envelope[0], both.envelope[0])
    assert [x.before for x in alone.crossovers] == [x.before for x in both.crossovers]
    assert n not in {x.after for x in both.crossovers}


@FEW
@given(sweeps(), FORMS)
def test_the_envelope_is_monotone_and_so_is_the_companion_of_n_star(table: pl.DataFrame, form: str) -> None:
    found = fit(table, FitConfig(form=form, bootstrap=20))
    assert (np.diff(found.envelope, axis=1) >= -1e-12).all()
    frontier = found.frontier_table()
    assert (np.diff(frontier["isotonic_n"].to_numpy()) >= -1e-9).all()
    # Where it is carried on from less compute, it says so.
    for row in frontier.filter(pl.col("carried").not_()).iter_rows(named=True):
        at = np.array([row["compute"]])
        best = max(
            float(c.parameters(at)[0])
            for c in found.fitted
            if c.parameters and c.curve.support[0] <= at[0] * (1 + 1e-9) <= c.curve.support[1] * (1 + 1e-8)
        )
        assert row["reward"] == pytest.approx(best)


@FEW
@given(sweeps(), FORMS)
def test_nothing_that_is_written_is_not_a_number(table: pl.DataFrame, form: str) -> None:
    def values(node: object) -> list[float]:
        if isinstance(node, dict):
            return [v for child in node.values() for v in values(child)]
        if isinstance(node, list):
            return [v for child in node for v in values(child)]
        return [node] if isinstance(node, float) else []

    assert np.isfinite(values(written(fit(table, FitConfig(form=form, bootstrap=20))))).all()
