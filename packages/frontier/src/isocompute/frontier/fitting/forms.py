"""Forms of reward against compute: R(C) = R0 + G · rise(C), rising from 0 to 1, monotone by construction.

* ``exp``: rise = 1 − exp(−C/τ), so R = A − D·exp(−C/τ) (what the figures of the IsoCompute Playbook draw).
* ``hill``: rise = 1 / (1 + (C_mid/C)^B), R0 fixed at the reward before training (ScaleRL, equation 1).
* ``power``: rise = 1 − (1 + C/τ)^−β.

``scale`` is τ or C_mid, ``shape`` is B or β (1 for ``exp``, unused). A = R0 + G is the asymptote.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..data.curves import Array

FORMS = ("exp", "hill", "power")
SHAPES = {"exp": (1.0, 1.0), "hill": (0.3, 6.0), "power": (0.1, 5.0)}
"""Range searched for the shape."""
# Three counts of parameters, each behind degrees of freedom of another kind:
# free_parameters(form)  those that the data of one curve decide, R0 among them: 3 or 4. AICc, the profile interval and
#                        the variance about one fitted curve use it.
# SEARCHED               those of the simplest case, whatever the form: 3. The autocorrelation pooled over curves of any
#                        form and the scatter of a forecast's single run use it.
# FREE                   those left where A and R0 are held for all recipes, C_mid and B: 2. leave_one_out uses it.
SEARCHED = 3
"""Parameters that a fit searches for in its simplest case, whatever the form: ``hill`` with R0 held, or ``exp``."""
FREE = 2
"""Parameters searched for where A and R0 are held: C_mid and B."""


def free_parameters(form: str) -> int:
    """Parameters of a form that the data decide, R0 among them, whether it is searched for or measured."""
    return 3 if form == "exp" else 4


def rise(form: str, compute: Array, scale: Array, shape: Array) -> Array:
    """Share of the gain made at some compute; broadcasts over its arguments.

    Args:
        form: ``exp``, ``hill`` or ``power``.
        scale: τ or C_mid, in the unit of compute.
        shape: B or β; unused by ``exp``.
    """
    with np.errstate(divide="ignore", over="ignore"):
        if form == "exp":
            return np.asarray(-np.expm1(-compute / scale))
        if form == "hill":
            return np.asarray(1.0 / (1.0 + (scale / compute) ** shape))
        return np.asarray(1.0 - (1.0 + compute / scale) ** -shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameters:
    """One fitted curve.

    Attributes:
        form: ``exp``, ``hill`` or ``power``.
        start: R0, reward at zero compute.
        gain: G = A − R0, zero or more.
        scale: τ or C_mid, in the unit of compute.
        shape: B or β.
    """

    form: str
    start: float
    gain: float
    scale: float
    shape: float

    @property
    def asymptote(self) -> float:
        """A = R0 + G."""
        return self.start + self.gain

    def __call__(self, compute: Array | float) -> Array:
        """Reward at some compute."""
        c = np.asarray(compute, dtype=np.float64)
        return self.start + self.gain * rise(self.form, c, np.asarray(self.scale), np.asarray(self.shape))

    @property
    def half_compute(self) -> float:
        """Compute at which half of the gain is made."""
        if self.form == "exp":
            return self.scale * float(np.log(2.0))
        if self.form == "hill":
            return self.scale
        return self.scale * float(2.0 ** (1.0 / self.shape) - 1.0)

    def named(self) -> dict[str, float]:
        """The parameters by the names of the papers."""
        if self.form == "exp":
            return {"A": self.asymptote, "D": self.gain, "tau": self.scale}
        if self.form == "hill":
            return {"A": self.asymptote, "R0": self.start, "C_mid": self.scale, "B": self.shape}
        return {"A": self.asymptote, "D": self.gain, "tau": self.scale, "beta": self.shape}
