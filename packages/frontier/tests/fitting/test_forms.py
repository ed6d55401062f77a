from pathlib import Path

import numpy as np
import polars as pl
import pytest
from isocompute.frontier import ForecastConfig, FrontierError, forecast
from isocompute.frontier.cli import main
from isocompute.frontier.fitting.point import FORMS, Form, Parameters, form_of

STRETCHED = Form(
    name="stretched_exponential",
    shapes=(0.3, 3.0),
    rise=lambda compute, scale, shape: -np.expm1(-((compute / scale) ** shape)),
    half=lambda shape: float(np.log(2.0) ** (1.0 / shape)),
    names=("D", "tau", "beta"),
)


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setitem(FORMS, STRETCHED.name, STRETCHED)
    return STRETCHED.name


def test_the_band_of_a_form_that_is_added_contains_its_own_curve(table: pl.DataFrame, registered: str) -> None:
    own = table.filter(pl.col("seed") == 0, pl.col("rollouts_per_problem") == 4, pl.col("rollouts") > 0)
    compute, reward = (own[name].to_numpy().astype(np.float64) for name in ("rollouts", "avg_at_4"))
    found = forecast(compute, reward, ForecastConfig(form=registered, bootstrap=60))
    assert found.band is not None
    low, high = np.quantile(found.band.at(compute), [0.025, 0.975], axis=0)
    assert ((low <= found.parameters(compute)) & (found.parameters(compute) <= high)).all()
    assert found.band.form == registered


def test_a_form_that_is_added_is_a_choice_of_the_commands(
    table: pl.DataFrame, registered: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "curve.csv"
    table.filter(pl.col("run_id") == "n4s0").write_csv(path)
    arguments = ["--x", "rollouts", "--y", "avg_at_4", "--form", registered, "--bootstrap", "20"]
    assert main(["predict", str(path), *arguments]) == 0
    # It is a choice, and the file is no folder to write to.
    assert main(["fit", str(path), "--method", "paper", "--form", registered, "--out", str(path)]) == 2
    assert f"--out {path}" in capsys.readouterr().err


@pytest.mark.parametrize("name", [*FORMS, STRETCHED.name])
def test_half_of_the_gain_is_made_at_half_compute_and_parameters_are_found_by_name(name: str, registered: str) -> None:
    form = form_of(name)
    shape = float(np.sqrt(form.shapes[0] * form.shapes[1]))
    curve = Parameters(form=name, start=0.2, gain=0.4, scale=3e4, shape=shape)
    assert float(curve(curve.half_compute)) == pytest.approx(0.4)
    assert curve.asymptote == pytest.approx(curve.named()["A"])
    again = Parameters.of(name, curve.named())
    assert [again.start, again.gain, again.scale, again.shape] == pytest.approx([0.2, 0.4, 3e4, shape])


def test_an_unknown_form_is_an_error_that_names_the_known_ones() -> None:
    with pytest.raises(FrontierError, match=r"'logistic' .*exp, hill"):
        Parameters(form="logistic", start=0.2, gain=0.4, scale=3e4, shape=1.0)(1e4)
