import numpy as np
import pytest
from isocompute.frontier.fitting.point import FORMS, Parameters, fit_form


@pytest.mark.parametrize("start", [None, 0.2])
@pytest.mark.parametrize("name", FORMS)
def test_a_curve_without_noise_is_found(name: str, start: float | None) -> None:
    low, high = FORMS[name].shapes
    curve = Parameters(form=name, start=0.2, gain=0.4, scale=3e4, shape=float(np.sqrt(low * high)))
    compute = np.geomspace(1e3, 1e6, 5000)
    found = fit_form(name, compute, curve(compute), np.full(len(compute), 0.01), start)
    assert found(compute) == pytest.approx(curve(compute), abs=2e-4)
    assert found.named() == pytest.approx(curve.named(), rel=0.03)
