import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from isocompute.frontier import Flag, FrontierError, efficiency
from isocompute.frontier.answers.forecast import ForecastConfig, forecast, forecasts_over_cuts
from isocompute.frontier.cli import main
from isocompute.frontier.fitting.point import Parameters, fit_scalerl

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
    config = ForecastConfig(r0=0.4, fit_min=1000, fit_max=8000, method=method, bootstrap=100)
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


def test_a_run_that_collapses_fails_its_extension() -> None:
    compute, reward = run()
    collapsed = np.where(compute > 8000, reward - 0.08, reward)
    found = forecast(compute, collapsed, ForecastConfig(r0=0.4, fit_max=8000, bootstrap=200))
    assert found.extension is not None
    assert found.extension.contradicted
    assert Flag.EXTENSION_FAILED in found.flags
    assert "FAILED" in found.summary()


def test_a_forecast_that_misses_most_points_has_not_held_whatever_its_bias() -> None:
    # Above and below in turn: no bias, and half of the points far outside.
    compute, reward = run(noise=0.001)
    swinging = np.where(compute > 8000, reward + 0.05 * np.where(np.arange(len(compute)) % 2, 1, -1), reward)
    found = forecast(compute, swinging, ForecastConfig(r0=0.4, fit_max=8000, bootstrap=200)).extension
    assert found is not None
    assert abs(found.bias) < 0.01
    assert found.coverage < 0.5
    assert found.verdict == "failed"


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
@settings(max_examples=10, deadline=None)
@given(st.floats(1e-3, 1e6))
def test_scaling_compute_scales_the_midpoint_and_nothing_else(factor: float) -> None:
    compute, reward = run()
    plain = forecast(compute, reward, ForecastConfig(r0=0.4, bootstrap=20)).parameters
    scaled = forecast(compute * factor, reward, ForecastConfig(r0=0.4, bootstrap=20)).parameters
    assert scaled.scale == pytest.approx(plain.scale * factor, rel=1e-3)
    assert scaled.asymptote == pytest.approx(plain.asymptote, abs=1e-4)
    assert scaled.shape == pytest.approx(plain.shape, rel=1e-3)


def test_the_command_prints_and_writes_what_was_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    compute, reward = run()
    table = tmp_path / "curve.csv"
    table.write_text("c,r\n" + "".join(f"{c},{r}\n" for c, r in zip(compute, reward, strict=True)))
    out = tmp_path / "found.json"
    arguments = ["--x", "c", "--y", "r", "--r0", "0.4", "--fit-max", "8000", "--bootstrap", "50", "--json", str(out)]
    assert main(["predict", str(table), *arguments, "--cuts", "4000", "6000"]) == 0
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
    compute, reward = run()
    table = tmp_path / "curve.csv"
    table.write_text("c,r\n" + "".join(f"{c},{r}\n" for c, r in zip(compute, reward, strict=True)))
    assert main(["predict", str(table), "--x", "c", "--y", "r", *arguments]) == 2
    assert message in capsys.readouterr().err
