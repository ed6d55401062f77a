"""Forms of a curve, and n*(C) as a log2-sigmoid: as the paper prints it, and of points."""

from dataclasses import replace

import numpy as np
import pytest
from isocompute.frontier import FrontierError, fit_points
from isocompute.frontier.errors import Flag
from isocompute.frontier.fitting.nstar import PRINTED, Sigmoid
from isocompute.frontier.fitting.point import FORMS, Parameters, fit_form


def test_the_sigmoid_that_the_paper_prints_is_evaluated() -> None:
    # Figure 7 of the IsoCompute Playbook, Easy: it saturates at 2^8.82.
    printed = Sigmoid(params={"L": 6.09, "k": 4.75, "x0": 5.84, "b": 2.73}, intervals={}, flags=())
    assert printed.at(np.array([1e8, 690e3])) == pytest.approx([452, 54], rel=0.01)
    assert printed.plateau == pytest.approx(2**8.82)
    assert printed.params == PRINTED
    assert "saturates at 452" in printed.summary()
    # Where the largest n is the best at the end nothing says that it saturates, and the paper's number stands beside.
    growing = replace(printed, flags=(Flag.AT_LARGEST_N,))
    assert growing.plateau is None
    assert growing.as_dict()["plateau"] is None
    said = growing.summary(last="4.09M")
    assert "does not saturate; these data end at 4.09M, the paper's at 10M, where n* saturates at 452" in said


def test_the_sigmoid_of_points_goes_through_them() -> None:
    found = fit_points(np.array([1e5, 2e5, 4e5, 8e5, 1.6e6]), np.array([8, 8, 32, 128, 128]), refits=20, seed=0)
    assert float(found.at(np.array(1e6))) == pytest.approx(120, rel=0.2)
    assert set(found.intervals) == {"L", "k", "x0", "b"}
    with pytest.raises(FrontierError, match="2 points"):
        fit_points(np.array([1e5, 2e5]), np.array([8, 8]))


@pytest.mark.parametrize("start", [None, 0.2])
@pytest.mark.parametrize("name", FORMS)
def test_a_curve_without_noise_is_found(name: str, start: float | None) -> None:
    low, high = FORMS[name].shapes
    curve = Parameters(form=name, start=0.2, gain=0.4, scale=3e4, shape=float(np.sqrt(low * high)))
    compute = np.geomspace(1e3, 1e6, 5000)
    found = fit_form(name, compute, curve(compute), np.full(len(compute), 0.01), start)
    assert found(compute) == pytest.approx(curve(compute), abs=2e-4)
    assert found.named() == pytest.approx(curve.named(), rel=0.03)
