"""Forms of reward against compute: R(C) = R0 + G · rise(C), rising from 0 to 1, monotone by construction.

* ``exp``: rise = 1 − exp(−C/τ), so R = A − D·exp(−C/τ) (what the figures of the IsoCompute Playbook draw).
* ``hill``: rise = 1 / (1 + (C_mid/C)^B), R0 fixed at the reward before training (ScaleRL, equation 1).
* ``power``: rise = 1 − (1 + C/τ)^−β.

``scale`` is τ or C_mid, ``shape`` is B or β (1 for ``exp``, unused). A = R0 + G is the asymptote. Another form
is an entry of ``FORMS``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from ..data.curves import Array
from ..errors import FrontierError

# Three counts of parameters, each behind degrees of freedom of another kind:
# Form.free_parameters   those that the data of one curve decide, R0 among them: 3 or 4. AICc, the profile interval and
#                        the variance about one fitted curve use it.
# SEARCHED               those of the simplest case, whatever the form: 3. The autocorrelation pooled over curves of any
#                        form and the scatter of a forecast's single run use it.
# FREE                   those left where A and R0 are held for all recipes, C_mid and B: 2. leave_one_out uses it.
SEARCHED = 3
"""Parameters that a fit searches for in its simplest case, whatever the form: ``hill`` with R0 held, or ``exp``."""
FREE = 2
"""Parameters searched for where A and R0 are held: C_mid and B."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """A form of reward against compute: all that is known of it.

    Attributes:
        name: What it is called on the command line and in results.
        shapes: Range searched for the shape; two equal ends where the form has none.
        rise: Share of the gain made, from 0 to 1 and never falling, of compute, scale and shape; broadcasts.
        half: Compute at which half of the gain is made, in scales, of the shape.
        names: What results call the gain or the start (``D`` or ``R0``), the scale and the shape.
        start_is_measured: Whether R0 is held at the reward at zero compute where there is one.
    """

    name: str
    shapes: tuple[float, float]
    rise: Callable[[Array, Array, Array], Array]
    half: Callable[[float], float]
    names: tuple[str, str, str]
    start_is_measured: bool = False

    @property
    def has_shape(self) -> bool:
        """Whether the shape is searched for."""
        return self.shapes[0] < self.shapes[1]

    @property
    def free_parameters(self) -> int:
        """Parameters that the data decide, R0 among them, whether it is searched for or measured."""
        return 4 if self.has_shape else 3


FORMS = {
    form.name: form
    for form in (
        Form(
            name="exp", shapes=(1.0, 1.0), names=("D", "tau", ""), half=lambda _: float(np.log(2.0)),
            rise=lambda compute, scale, _: -np.expm1(-compute / scale),
        ),
        Form(
            name="hill", shapes=(0.3, 6.0), names=("R0", "C_mid", "B"), half=lambda _: 1.0, start_is_measured=True,
            rise=lambda compute, scale, shape: 1.0 / (1.0 + (scale / compute) ** shape),
        ),
        Form(
            name="power", shapes=(0.1, 5.0), names=("D", "tau", "beta"),
            half=lambda shape: float(2.0 ** (1.0 / shape) - 1.0),
            rise=lambda compute, scale, shape: 1.0 - (1.0 + compute / scale) ** -shape,
        ),
    )
}  # fmt: skip
"""Every form by its name."""


def form_of(name: str) -> Form:
    """The form of a name.

    Raises:
        FrontierError: There is no such form.
    """
    if name not in FORMS:
        raise FrontierError(f"the form {name!r} is unknown; it must be one of {', '.join(FORMS)}")
    return FORMS[name]


def rise(form: str, compute: Array, scale: Array, shape: Array) -> Array:
    """Share of the gain made at some compute; broadcasts over its arguments.

    Args:
        scale: τ or C_mid, in the unit of compute.
        shape: B or β; unused by ``exp``.

    Raises:
        FrontierError: There is no such form.
    """
    with np.errstate(divide="ignore", over="ignore"):
        return np.asarray(form_of(form).rise(compute, scale, shape))


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameters:
    """One fitted curve.

    Attributes:
        form: Name of its form.
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

    @classmethod
    def of(cls, form: str, named: Mapping[str, float]) -> Parameters:
        """The curve of the parameters that ``named`` gives.

        Raises:
            FrontierError: There is no such form.
            KeyError: A parameter is missing.
        """
        level, scale, shape = form_of(form).names
        gain = named["A"] - named[level] if level == "R0" else named[level]
        return cls(form=form, start=named["A"] - gain, gain=gain, scale=named[scale],
                   shape=named[shape] if shape else 1.0)  # fmt: skip

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
        return self.scale * form_of(self.form).half(self.shape)

    def named(self) -> dict[str, float]:
        """The parameters by the names of the papers."""
        level, scale, shape = form_of(self.form).names
        found = {"A": self.asymptote, level: self.start if level == "R0" else self.gain, scale: self.scale}
        return {**found, shape: self.shape} if shape else found
