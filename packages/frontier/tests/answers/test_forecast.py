"""Forecasts of single runs, recipes at one asymptote, and prescriptions against fixed n."""

import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from isocompute.frontier import Flag, FrontierError, compare, efficiency, leave_one_out
from isocompute.frontier.answers.forecast import ForecastConfig, forecast, forecasts_over_cuts
from isocompute.frontier.cli import main
from isocompute.frontier.fitting.point import Parameters, fit_scalerl
from scipy import stats

TRUTH = Parameters(form="hill", start=0.4, gain=0.21, scale=2500.0, shape=1.9)


def run(noise: float = 0.004, seed: int = 0, last: float = 16000.0) -> tuple[np.ndarray, np.ndarray]:
    compute = np.arange(500.0, last, 300.0)
    return compute, TRUTH(compute) + np.random.default_rng(seed).normal(0, noise, len(compute))


@pytest.mark.parametrize("method", ["projection", "scalerl"])
def test_the_truth_is_found_and_extended(method: str) -> None:
    config = ForecastConfig(r0=0.4, fit_min=1000, fit_max=8000, method=method, bootstrap=200)
    found = forecast(*run(), config)
    assert found.parameters.asymptote == pytest.approx(0.61, abs=0.02)
    assert found.parameters.scale == pytest.approx(2500, rel=0.15)
    assert found.extension is not None
    assert found.extension.rmse < 0.01
    assert not found.extension.contradicted


@pytest.mark.slow
@pytest.mark.parametrize("method", ["projection", "scalerl"])
def test_forecasts_of_the_true_form_hold_and_so_do_their_intervals(method: str) -> None:
    config = ForecastConfig(r0=0.4, fit_min=1000, fit_max=8000, method=method, bootstrap=60)
    inside, verdicts = 0, []
    for seed in range(20):
        found = forecast(*run(seed=seed), config)
        inside += found.intervals["A"][0] <= TRUTH.asymptote <= found.intervals["A"][1]
        assert found.extension is not None
        verdicts.append(found.extension.verdict)
    # What 90 % fall below once in a thousand is 14 of 20.
    assert inside >= 14
    # At 5 % failed there would be 1, and more than 5 once in a thousand.
    assert verdicts.count("failed") <= 5
    assert verdicts.count("held") >= 10


def test_both_methods_agree_where_there_is_no_noise() -> None:
    compute, reward = run(noise=0.0)
    theirs = fit_scalerl(compute, reward, 0.4)
    ours = forecast(compute, reward, ForecastConfig(r0=0.4, bootstrap=20)).parameters
    assert theirs.asymptote == pytest.approx(ours.asymptote, abs=0.005)
    assert theirs.shape == pytest.approx(ours.shape, rel=0.05)


def test_a_run_that_collapses_or_that_misses_most_points_fails_its_extension() -> None:
    compute, reward = run(noise=0.001)
    config = ForecastConfig(r0=0.4, fit_max=8000, bootstrap=200)
    collapsed = forecast(compute, np.where(compute > 8000, reward - 0.08, reward), config)
    assert Flag.EXTENSION_FAILED in collapsed.flags
    assert "FAILED" in collapsed.summary()
    # Above and below in turn: no bias, and half of the points far outside.
    turns = 0.05 * np.where(np.arange(len(compute)) % 2, 1, -1)
    swinging = forecast(compute, np.where(compute > 8000, reward + turns, reward), config)
    for extension in (collapsed.extension, swinging.extension):
        assert extension is not None
        assert (extension.verdict, extension.contradicted, extension.coverage < 0.5) == ("failed", True, True)
    assert swinging.extension is not None
    assert abs(swinging.extension.bias) < 0.01


def written(path: Path) -> Path:
    """A run as a file of two columns."""
    pl.DataFrame(dict(zip("cr", run(), strict=True))).write_csv(path)
    return path


def several(path: Path) -> Path:
    """Two seeds of two n."""
    compute, reward = run()
    rows = [
        f"{c},{r + 0.01 * s},{n},{s}" for n in (4, 16) for s in (0, 1) for c, r in zip(compute, reward, strict=True)
    ]
    path.write_text("c,r,rollouts_per_problem,seed\n" + "\n".join(rows) + "\n")
    return path


def test_rows_of_several_runs_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = several(tmp_path / "curves.csv")
    common = ["predict", str(table), "--x", "c", "--y", "r", "--r0", "0.4", "--bootstrap", "20"]
    assert main(common) == 2
    assert "rollouts_per_problem = 4, 16; seed = 0, 1" in capsys.readouterr().err
    assert main([*common, "--where", "rollouts_per_problem=4"]) == 2
    assert "--where seed=VALUE" in capsys.readouterr().err
    assert main([*common, "--where", "rollouts_per_problem=4", "--where", "seed=1"]) == 0
    recipes = ["predict", str(table), "--x", "c", "--y", "r", "--series", "rollouts_per_problem", "--r0", "0.4"]
    assert main(recipes) == 2
    assert "seed = 0, 1" in capsys.readouterr().err
    assert main([*recipes, "--where", "seed=0"]) == 0
    # A column of any name that tells rows of one compute apart, and none at all.
    named = tmp_path / "named.csv"
    named.write_text(table.read_text().replace("rollouts_per_problem", "variant").replace("seed", "repeat"))
    assert main(["predict", str(named), *common[2:]]) == 2
    assert "variant" in capsys.readouterr().err
    bare = tmp_path / "bare.csv"
    bare.write_text("\n".join(",".join(line.split(",")[:2]) for line in table.read_text().splitlines()) + "\n")
    assert main(["predict", str(bare), *common[2:]]) == 2
    assert "occur more than once" in capsys.readouterr().err


def test_a_cut_before_the_bend_says_that_the_support_is_short() -> None:
    found = forecast(*run(last=2600.0), ForecastConfig(r0=0.4, bootstrap=100))
    assert {Flag.SUPPORT_TOO_SHORT, Flag.ASYMPTOTE_NOT_IDENTIFIED} & set(found.flags)


def test_a_cut_with_too_few_points_is_a_reason_among_the_others() -> None:
    found = forecasts_over_cuts(*run(), ForecastConfig(r0=0.4, bootstrap=20), [900.0, 6000.0])
    assert isinstance(found[0][1], FrontierError)
    assert not isinstance(found[1][1], FrontierError)


def test_efficiency_is_a_line_of_slope_b_in_logarithms() -> None:
    compute, reward = run(noise=0.0)
    x, f = efficiency(TRUTH, compute, reward)
    slope = np.polyfit(np.log(x), np.log(f), 1)[0]
    assert slope == pytest.approx(TRUTH.shape, abs=1e-6)


@pytest.mark.slow
@settings(max_examples=5, deadline=None)
@given(st.floats(1e-3, 1e6))
def test_scaling_compute_scales_the_midpoint_and_nothing_else(factor: float) -> None:
    compute, reward = run()
    plain = forecast(compute, reward, ForecastConfig(r0=0.4, bootstrap=20)).parameters
    scaled = forecast(compute * factor, reward, ForecastConfig(r0=0.4, bootstrap=20)).parameters
    assert scaled.scale == pytest.approx(plain.scale * factor, rel=1e-3)
    assert scaled.asymptote == pytest.approx(plain.asymptote, abs=1e-4)
    assert scaled.shape == pytest.approx(plain.shape, rel=1e-3)


def test_the_command_prints_and_writes_what_was_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = written(tmp_path / "curve.csv")
    out = tmp_path / "found.json"
    arguments = ["--x", "c", "--y", "r", "--r0", "0.4", "--fit-max", "8k", "--bootstrap", "50", "--json", str(out)]
    assert main(["predict", str(table), *arguments, "--cuts", "4k", "6000"]) == 0
    document = json.loads(out.read_text())
    assert set(document["extension"]) >= {"rmse", "bias", "coverage"}
    assert [cut["cut"] for cut in document["cuts"]] == [4000, 6000]
    assert "extension held" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--fit-min", "9", "--fit-max", "3"], "must be below"),
        (["--fit-max", "600"], "needs 5 or more"),
        (["--method", "scalerl", "--form", "exp"], "fits the form hill"),
        (["--method", "scalerl"], "give r0"),
        (["--r0", "1.5"], "within 0 to 1"),
        (["--x", "nothing"], "has no column 'nothing'; it has c, r"),
    ],
)
def test_what_cannot_be_fitted_is_one_clear_error(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = written(tmp_path / "curve.csv")
    assert main(["predict", str(table), "--x", "c", "--y", "r", *arguments]) == 2
    assert message in capsys.readouterr().err


COMPUTE = np.arange(1500.0, 16000.0, 400.0)


def series(noise: float = 0.002, seed: int = 0) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    rng = np.random.default_rng(seed)
    truths = {"steep": (2500.0, 2.0), "flat": (4000.0, 1.2)}
    return {
        name: (
            COMPUTE,
            Parameters(form="hill", start=0.4, gain=0.2, scale=middle, shape=slope)(COMPUTE)
            + rng.normal(0, noise, len(COMPUTE)),
        )
        for name, (middle, slope) in truths.items()
    }


def test_recipes_are_compared_at_one_asymptote_the_one_that_needs_least_first() -> None:
    found = leave_one_out(series(), r0=0.4)
    assert [e.name for e in found] == ["steep", "flat"]
    assert found[0].parameters.asymptote == found[1].parameters.asymptote == pytest.approx(0.6, abs=0.01)
    for e, slope in zip(found, (2.0, 1.2), strict=True):
        low, high = e.intervals["B"]
        assert low < e.parameters.shape < high
        assert e.parameters.shape == pytest.approx(slope, abs=0.15)
        x, f = efficiency(e.parameters, e.compute, e.reward)
        assert np.polyfit(np.log(x), np.log(f), 1)[0] == pytest.approx(e.parameters.shape, abs=0.2)


def test_a_steeper_recipe_that_needs_more_is_not_the_more_efficient() -> None:
    # Steep but late: half of the gain at 9,000 against 2,500.
    late = Parameters(form="hill", start=0.4, gain=0.2, scale=9000.0, shape=3.0)(COMPUTE)
    early = Parameters(form="hill", start=0.4, gain=0.2, scale=2500.0, shape=1.2)(COMPUTE)
    both = {"late": (COMPUTE, late), "early": (COMPUTE, early)}
    found = leave_one_out(both, r0=0.4, asymptote=0.6, target=0.5)
    assert [e.name for e in found] == ["early", "late"]
    assert [e.needed for e in found] == pytest.approx([2500.0, 9000.0], rel=1e-3)
    # Near the asymptote the steeper one overtakes: which is the more efficient depends on the reward.
    near = leave_one_out(both, r0=0.4, asymptote=0.6, target=0.58)
    assert [(e.name, e.standing) for e in near] == [("early", "measured"), ("late", "extrapolated")]
    with pytest.raises(FrontierError, match="must lie between r0"):
        leave_one_out(both, r0=0.4, asymptote=0.6, target=0.7)


def test_the_intervals_of_the_compute_needed_and_of_the_slopes_hold() -> None:
    needed = slopes = 0
    for seed in range(40):
        for e in leave_one_out(series(seed=seed), r0=0.4, asymptote=0.6, target=0.55):
            middle, slope = {"steep": (2500.0, 2.0), "flat": (4000.0, 1.2)}[e.name]
            needed += e.needed_interval[0] <= middle * 3 ** (1 / slope) <= e.needed_interval[1]
            slopes += e.intervals["B"][0] <= slope <= e.intervals["B"][1]
    # What 90 % fall below once in a thousand is 62 of 80.
    assert min(needed, slopes) >= 62


def test_one_recipe_that_fails_does_not_decide_the_asymptote() -> None:
    stuck = {**series(), "stuck": (COMPUTE, np.full(len(COMPUTE), 0.45))}
    assert leave_one_out(stuck, r0=0.4)[0].parameters.asymptote == pytest.approx(0.6, abs=0.02)


def test_what_cannot_be_compared_is_refused() -> None:
    with pytest.raises(FrontierError, match="short has 3 points"):
        leave_one_out({"short": (COMPUTE[:3], np.full(3, 0.5))}, r0=0.4)
    with pytest.raises(FrontierError, match="must lie above r0"):
        leave_one_out(series(), r0=0.4, asymptote=0.3)
    with pytest.raises(FrontierError, match="no asymptote"):
        leave_one_out({"solved": (COMPUTE, np.ones(len(COMPUTE)))}, r0=0.4)


@pytest.mark.slow
def test_the_command_draws_and_writes_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "curves.csv"
    pl.concat(
        [pl.DataFrame({"recipe": [name] * len(c), "C": c, "R": r}) for name, (c, r) in series().items()]
    ).write_csv(path)
    common = ["predict", str(path), "--x", "C", "--y", "R"]
    compared = [*common, "--series", "recipe", "--r0", "0.4"]
    figure = str(tmp_path / "compared.svg")
    assert main([*compared, "--efficiency", figure, "--json", str(tmp_path / "found.json")]) == 0
    assert Path(figure).stat().st_size > 5000
    assert [s["series"] for s in json.loads((tmp_path / "found.json").read_text())["series"]] == ["steep", "flat"]
    out = capsys.readouterr().out
    assert "C needed for" in out
    assert "1.00 times the least" in out
    one = [*common, "--where", "recipe=steep", "--r0", "0.4", "--fit-max", "8000", "--bootstrap", "40"]
    assert main([*one, "--figure", str(tmp_path / "forecast.svg")]) == 0
    assert (tmp_path / "forecast.png").stat().st_size > 5000
    for wrong, what in (
        ([*common, "--series", "recipe"], "give --r0"),
        ([*common, "--r0", "0.4", "--efficiency", "x.svg"], "name their column with --series"),
        ([*common, "--series", "colour", "--r0", "0.4"], "has no column 'colour'"),
    ):
        assert main(wrong) == 2
        assert what in capsys.readouterr().err


@pytest.mark.slow
def test_a_reward_that_no_recipe_reached_is_refused() -> None:
    with pytest.raises(FrontierError, match=r"0\.599: .*0\.59\d+.*steep"):
        leave_one_out(series(), r0=0.4, asymptote=0.6, target=0.599)
    # A hill that is still low: what it would need for the reward of the other is far beyond its data.
    slow = Parameters(form="hill", start=0.4, gain=0.2, scale=60_000.0, shape=0.6)(COMPUTE)
    found = leave_one_out({**series(), "slow": (COMPUTE, slow)}, r0=0.4, asymptote=0.6, target=0.58)
    last = found[-1]
    assert (last.name, last.standing, last.needed) == ("slow", "refused", 4 * COMPUTE.max())
    assert last.needed_interval == (4 * COMPUTE.max(), None)


def runs(scores: dict[tuple[int, int], float], rollouts: int = 100) -> pl.DataFrame:
    return pl.DataFrame(
        [{"rollouts_per_problem": n, "seed": s, "rollouts": rollouts, "avg_at_4": v} for (n, s), v in scores.items()]
    )


def test_a_clear_difference_is_won_and_its_mirror_lost() -> None:
    scores = {(4, 0): 0.50, (4, 1): 0.51, (16, 0): 0.60, (16, 1): 0.612}
    (won,) = compare(runs(scores), prescribed=16, baselines=[4])
    (lost,) = compare(runs(scores), prescribed=4, baselines=[16])
    assert (won.verdict, lost.verdict) == ("won", "lost")
    # mean 0.101, half width t(0.975, 1) · 0.001 = 12.706 · 0.001
    assert won.interval == pytest.approx((0.101 - 0.0127062, 0.101 + 0.0127062), abs=1e-6)


def test_seeds_that_disagree_and_one_seed_alone_leave_it_unresolved() -> None:
    scores = {(4, 0): 0.50, (4, 1): 0.60, (16, 0): 0.60, (16, 1): 0.55}
    assert compare(runs(scores), prescribed=16, baselines=[4])[0].verdict == "unresolved"
    found = compare(runs({(4, 0): 0.1, (16, 0): 0.9}), prescribed=16, baselines=[4])[0]
    assert found.verdict == "unresolved"
    assert "over 1 seed, unresolved" in found.summary()


def test_many_baselines_do_not_make_a_winner() -> None:
    # Alone, each would be won at 5 %; of four, the best p of 0.02 is 0.08.
    rng = np.random.default_rng(0)
    scores = {(n, s): float(rng.normal(0.5, 0.01)) for n in (4, 8, 16, 32) for s in range(4)}
    scores |= {(64, s): 0.5 + 0.0115 + 0.002 * s for s in range(4)}
    alone = [compare(runs(scores), prescribed=64, baselines=[n])[0] for n in (4, 8, 16, 32)]
    together = compare(runs(scores), prescribed=64, baselines=[4, 8, 16, 32])
    for one, adjusted in zip(alone, together, strict=True):
        assert one.p_value is not None
        assert adjusted.p_value is not None
        expected = stats.ttest_1samp(one.differences, 0.0).pvalue
        assert one.p_value == pytest.approx(expected)
        assert adjusted.p_value >= one.p_value
        assert adjusted.comparisons == 4
    # Holm: the smallest times four, the next times three, and never falling.
    smallest = min(a.p_value for a in alone if a.p_value is not None)
    assert min(a.p_value for a in together if a.p_value is not None) == pytest.approx(min(4 * smallest, 1.0))


@pytest.mark.slow
def test_of_equal_n_few_are_said_to_have_won() -> None:
    rng = np.random.default_rng(1)
    won = lost = 0
    for _ in range(150):
        seeds = rng.normal(0, 0.02, 3)
        scores = {(n, s): 0.5 + seeds[s] + rng.normal(0, 0.01) for n in (4, 8, 16, 32, 64, 128) for s in range(3)}
        verdicts = [c.verdict for c in compare(runs(scores), prescribed=4, baselines=[8, 16, 32, 64, 128])]
        won += "won" in verdicts
        lost += "lost" in verdicts
    # 5 % of either or the other: 7 or 8, and more than 17 once in a thousand.
    assert won + lost <= 17


def test_runs_of_unequal_budgets_are_refused() -> None:
    uneven = pl.concat([runs({(4, 0): 0.1}), runs({(16, 0): 0.1}, rollouts=200)])
    with pytest.raises(FrontierError, match="equal budgets"):
        compare(uneven, prescribed=16, baselines=[4])
