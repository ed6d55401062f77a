"""n*(C) as a log2-sigmoid: as the paper prints it, of points, and of fits of the paper's method."""

import numpy as np
import pytest
from isocompute.frontier import FrontierError, fit_points
from isocompute.frontier.fitting.nstar import Sigmoid


def test_the_sigmoid_that_the_paper_prints_is_evaluated() -> None:
    # Figure 7 of the IsoCompute Playbook, Easy: it saturates at 2^8.82.
    printed = Sigmoid(params={"L": 6.09, "k": 4.75, "x0": 5.84, "b": 2.73}, intervals={}, flags=())
    assert printed.at(np.array([1e8, 690e3])) == pytest.approx([452, 54], rel=0.01)
    assert printed.plateau == pytest.approx(2**8.82)


def test_the_sigmoid_of_points_goes_through_them() -> None:
    found = fit_points(np.array([1e5, 2e5, 4e5, 8e5, 1.6e6]), np.array([8, 8, 32, 128, 128]), refits=20, seed=0)
    assert float(found.at(np.array(1e6))) == pytest.approx(120, rel=0.2)
    assert set(found.intervals) == {"L", "k", "x0", "b"}
    with pytest.raises(FrontierError, match="2 points"):
        fit_points(np.array([1e5, 2e5]), np.array([8, 8]))
