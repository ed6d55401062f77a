"""Forecasts of single runs: what is judged first, the curve and its intervals, the verdict on what came later."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from isocompute.frontier import Flag, Forecast, ForecastConfig, FrontierError, Verdict, forecast
from isocompute.frontier.answers.forecast import State, as_run
from isocompute.frontier.cli import main
from isocompute.frontier.fitting.point import Parameters
from isocompute.frontier.posterior import single
from isocompute.frontier.posterior.health import prepare
from isocompute.frontier.posterior.model import Model

TRUTH = Parameters(form="hill", start=0.4, gain=0.21, scale=2500.0, shape=1.9)


@pytest.fixture(autouse=True)
def short_chains(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few draws, whether chains agree or not."""
    monkeypatch.setattr(single, "SIZE", (24, 32, 16))
    monkeypatch.setattr(single, "AGREED", np.inf)


def run(noise: float = 0.004, seed: int = 0, last: float = 16000.0) -> tuple[np.ndarray, np.ndarray]:
    compute = np.arange(500.0, last, 300.0)
    return compute, TRUTH(compute) + np.random.default_rng(seed).normal(0, noise, len(compute))


def of(compute: np.ndarray, reward: np.ndarray, **settings: Any) -> Forecast:
    return forecast(compute, reward, ForecastConfig(**settings))


def verdict(found: Forecast) -> Verdict:
    assert found.extension is not None
    return found.extension.verdict


def test_the_truth_is_found_extended_and_the_same_for_one_seed() -> None:
    found = of(*run(), fit_max=8000)
    assert found.state is State.RISING
    assert found.intervals["A"][0] < TRUTH.asymptote < found.intervals["A"][1]
    assert found.parameters["A"] == pytest.approx(0.61, abs=0.03)
    assert found.parameters["C_mid"] == pytest.approx(2500, rel=0.2)
    assert verdict(found) is Verdict.HELD
    assert of(*run(), fit_max=8000).as_dict() == found.as_dict()


@pytest.mark.slow
def test_intervals_hold_the_truth_and_forecasts_of_it_hold() -> None:
    found = [of(*run(seed=seed), fit_max=8000, seed=seed) for seed in range(12)]
    # What 90 % fall below once in a thousand is 7 of 12.
    assert sum(f.at(15000.0)[1] <= float(TRUTH(15000.0)) <= f.at(15000.0)[2] for f in found) >= 7
    assert [verdict(f) for f in found].count(Verdict.FAILED) <= 3


@settings(max_examples=5, deadline=None)
@given(st.lists(st.floats(0.0, 1.0), min_size=6, max_size=14), st.floats(1e-3, 1e6))
def test_a_point_estimate_lies_inside_its_interval_whatever_the_run_does(reward: list[float], unit: float) -> None:
    values = np.append(reward, 0.5 - reward[0] / 2)
    found = of(unit * np.arange(1.0, len(values) + 1), values)
    for name, (low, high) in found.intervals.items():
        assert low <= found.parameters[name] <= high
    assert ((found.low <= found.reward) & (found.reward <= found.high)).all()
    assert ((found.low >= 0) & (found.high <= 1)).all()


def test_a_collapse_is_said_before_a_curve_is_fitted_and_its_level_is_the_forecast() -> None:
    rng = np.random.default_rng(0)
    step = np.arange(1.0, 121.0)
    reward = np.where(step < 30, 0.2 + 0.36 * (1 - np.exp(-step / 9)), 0.055) + rng.normal(0, 0.015, 120)
    found = of(step, np.clip(reward, 0, 1), fit_max=90)
    assert found.state is State.COLLAPSED
    assert "fell to 0.0" in found.evidence
    assert "collapsed" in found.summary()
    assert found.parameters == {}
    low, high = found.at(120.0)[1:]
    assert low < 0.055 < high < 0.1
    assert verdict(found) is Verdict.HELD
    # Before the fall it is a run that rises, which what came later contradicts.
    before = of(step, np.clip(reward, 0, 1), fit_max=29)
    assert before.state is State.RISING
    assert verdict(before) is Verdict.FAILED
    assert Flag.EXTENSION_FAILED in before.flags


def test_a_run_that_is_solved_is_level_and_its_asymptote_known() -> None:
    step = np.arange(1.0, 121.0)
    noise = np.random.default_rng(0).normal(0, 0.008, 120)
    found = of(step, np.clip(0.3 + 0.7 * (1 - np.exp(-step / 10)) + noise, 0, 1))
    assert found.state is State.LEVEL
    assert found.parameters["A"] > 0.98
    assert found.intervals["A"][0] > 0.97
    assert Flag.ASYMPTOTE_NOT_IDENTIFIED not in found.flags
    assert found.extension is None


def test_an_extension_that_jumps_fails_and_a_forecast_that_excludes_nothing_says_so() -> None:
    compute, reward = run(noise=0.002)
    turns = 0.06 * np.where(np.arange(len(compute)) % 2, 1, -1)
    assert verdict(of(compute, np.where(compute > 8000, reward + turns, reward), fit_max=8000)) is Verdict.FAILED
    early = of(*run(noise=0.01), fit_max=2000)
    assert verdict(early) is Verdict.UNINFORMATIVE
    assert Flag.TOO_FEW_POINTS in early.flags


def test_what_published_fits_say_leaves_out_the_run_itself() -> None:
    every, rest = single.expected(), single.expected(("DeepSeek",))
    assert len(single.published()) == 43
    # DeepSeek's is the lowest but one, and its B among the flattest.
    assert rest.gain[0] > every.gain[0]
    assert rest.steepness[0] > every.steepness[0]
    with pytest.raises(FrontierError, match="no published fit 'Deep'"):
        single.expected(("Deep",))


@pytest.mark.parametrize("r0", [None, 0.4])
def test_the_gradient_of_one_run_is_that_of_its_density(r0: float | None) -> None:
    density = single.OneRun(model=Model(runs=prepare([as_run(*run(last=4000.0), r0)]).runs, priors=single.PRIORS))
    at = 0.7 * np.random.default_rng(1).standard_normal((3, len(density.places)))
    step = 1e-5 * np.eye(at.shape[1])
    expected = np.stack([(density(at + s)[0] - density(at - s)[0]) / 2e-5 for s in step], axis=1)
    assert density(at)[1] == pytest.approx(expected, rel=1e-4, abs=1e-3)


def written(path: Path) -> Path:
    """A run as a file of two columns."""
    pl.DataFrame(dict(zip("cr", run(), strict=True))).write_csv(path)
    return path


@pytest.mark.parametrize(
    ("names", "arguments", "said"),
    [
        ("c,r,rollouts_per_problem,seed", "", "rollouts_per_problem = 4, 16; seed = 0, 1"),
        ("c,r,rollouts_per_problem,seed", "--where rollouts_per_problem=4", "--where seed=VALUE"),
        ("c,r,rollouts_per_problem,seed", "--series rollouts_per_problem", "seed = 0, 1"),
        # A column of any name that tells rows of one compute apart, and none at all.
        ("c,r,variant,repeat", "", "variant"),
        ("c,r", "", "occur more than once"),
        ("c,r,rollouts_per_problem,seed", "--where rollouts_per_problem=4 --where seed=1", ""),
        ("c,r,rollouts_per_problem,seed", "--series rollouts_per_problem --where seed=0", ""),
    ],
)
def test_rows_of_several_runs_are_refused(
    names: str, arguments: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = [(c, r + 0.01 * seed, n, seed) for n in (4, 16) for seed in (0, 1) for c, r in zip(*run(), strict=True)]
    columns = names.split(",")
    pl.DataFrame([row[: len(columns)] for row in runs], schema=columns, orient="row").write_csv(tmp_path / "curves.csv")
    command = ["predict", str(tmp_path / "curves.csv"), "--x", "c", "--y", "r", "--r0", "0.4", "--method", "paper"]
    assert main([*command, *arguments.split()]) == (2 if said else 0)
    assert said in capsys.readouterr().err


def test_the_command_prints_writes_and_draws_what_was_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table, out, figure = written(tmp_path / "curve.csv"), tmp_path / "found.json", tmp_path / "forecast.svg"
    arguments = ["--r0", "0.4", "--fit-max", "8k", "--without", "MiniMax", "--json", str(out), "--figure", str(figure)]
    assert main(["predict", str(table), "--x", "c", "--y", "r", *arguments]) == 0
    document = json.loads(out.read_text())
    assert set(document["extension"]) >= {"rmse", "bias", "coverage"}
    assert document["extension"]["verdict"] == "held"
    assert set(document["intervals"]) == {"A", "R0", "C_mid", "B"}
    assert document["intervals"]["R0"][0] < 0.4 < document["intervals"]["R0"][1]
    assert "extension held" in capsys.readouterr().out
    assert figure.stat().st_size > 5000


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--fit-min", "9", "--fit-max", "3"], "must be below"),
        (["--fit-max", "600"], "needs 5 or more"),
        (["--without", "ours"], "no published fit 'ours'"),
        (["--method", "paper"], "give r0"),
        (["--r0", "1.5"], "within 0 to 1"),
        (["--x", "nothing"], "has no column nothing; it has c, r"),
    ],
)
def test_what_cannot_be_fitted_is_one_clear_error(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = written(tmp_path / "curve.csv")
    assert main(["predict", str(table), "--x", "c", "--y", "r", *arguments]) == 2
    assert message in capsys.readouterr().err
