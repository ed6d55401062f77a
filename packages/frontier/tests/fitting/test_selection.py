import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from isocompute.frontier import FitConfig, FrontierError, fit
from isocompute.frontier.fitting.forms import Parameters
from isocompute.frontier.fitting.selection import tail_errors, tail_of

COMPUTE = np.linspace(1e4, 4e6, 40)


def test_the_tail_is_the_last_quarter_and_short_runs_have_none() -> None:
    tail = tail_of(COMPUTE)
    assert tail is not None
    assert tail.tolist() == [False] * 30 + [True] * 10
    assert tail_of(COMPUTE[:6]) is None
    # Several seeds at the same compute are on the same side.
    both = tail_of(np.concatenate([COMPUTE, COMPUTE]))
    assert both is not None
    assert both.tolist() == tail.tolist() * 2


@pytest.mark.parametrize("form", ["exp", "hill", "power"])
def test_the_form_that_made_the_points_predicts_their_tail_best(form: str) -> None:
    truth = Parameters(form=form, start=0.3, gain=0.35, scale=9e5, shape={"exp": 1.0, "hill": 2.5, "power": 0.6}[form])
    errors = {}
    for candidate in ("exp", "hill", "power"):
        found = tail_errors(candidate, COMPUTE, truth(COMPUTE)[None, :], np.full(40, 1e6), None)
        assert found is not None
        errors[candidate] = float(found[0])
    # An exponential is also a power law of a large exponent.
    assert errors[form] <= min(errors.values()) * 1.5 + 0.05


def test_the_choice_is_made_by_what_was_asked_for_and_said(table: pl.DataFrame, tmp_path: Path) -> None:
    for selection in ("aicc", "tail"):
        fits = fit(table, FitConfig(form="auto", selection=selection, bootstrap=20))
        for c in fits.fitted:
            assert c.parameters is not None
            values = {form: v[selection] for form, v in c.criteria.items()}
            assert c.parameters.form == min(values, key=lambda form: values[form] or 0.0)
            assert c.draws is not None
            assert set(c.draws.form) <= {"exp", "hill", "power"}
        fits.save(tmp_path)
        document = json.loads((tmp_path / "fits.json").read_text())
        assert document["selection"] == selection
        assert set(document["curves"][0]["criteria"]) == {"exp", "hill", "power"}
    with pytest.raises(FrontierError, match="selection is 'bic'; it must be one of aicc, tail"):
        FitConfig(selection="bic")


def test_a_run_too_short_for_a_tail_is_chosen_by_aicc(table: pl.DataFrame) -> None:
    short = table.filter(pl.col("rollouts") <= 5 * 1024)
    for c in fit(short, FitConfig(form="auto", selection="tail", bootstrap=20)).fitted:
        assert all(values["tail"] is None for values in c.criteria.values())
