from pathlib import Path

import numpy as np
import polars as pl
import pytest
from isocompute.frontier import FrontierError
from isocompute.frontier.cli import main
from isocompute.frontier.fitting.point import FORMS, Form, Parameters, fit_form

STRETCHED = Form(
    name="stretched_exponential",
    shapes=(0.3, 3.0),
    rise=lambda compute, scale, shape: -np.expm1(-((compute / scale) ** shape)),
    names=("D", "tau", "beta"),
)


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setitem(FORMS, STRETCHED.name, STRETCHED)
    return STRETCHED.name


def test_a_form_that_is_added_is_a_choice_of_the_command(
    table: pl.DataFrame, registered: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "curve.csv"
    table.filter(pl.col("run_id") == "n4s0").write_csv(path)
    # It is a choice, and the file is no folder to write to.
    assert main(["fit", str(path), "--method", "paper", "--form", registered, "--out", str(path)]) == 2
    assert f"--out {path}" in capsys.readouterr().err


@pytest.mark.parametrize("start", [None, 0.2])
@pytest.mark.parametrize("name", [*FORMS, STRETCHED.name])
def test_a_curve_without_noise_is_found(name: str, start: float | None, registered: str) -> None:
    low, high = FORMS[name].shapes
    curve = Parameters(form=name, start=0.2, gain=0.4, scale=3e4, shape=float(np.sqrt(low * high)))
    compute = np.geomspace(1e3, 1e6, 5000)
    found = fit_form(name, compute, curve(compute), np.full(len(compute), 0.01), start)
    assert found(compute) == pytest.approx(curve(compute), abs=2e-4)
    assert found.named() == pytest.approx(curve.named(), rel=0.03)


def test_an_unknown_form_is_an_error_that_names_the_known_ones() -> None:
    with pytest.raises(FrontierError, match=r"'logistic' .*exp, hill"):
        Parameters(form="logistic", start=0.2, gain=0.4, scale=3e4, shape=1.0)(1e4)
