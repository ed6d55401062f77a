"""What is expected before the data: deviations that are learned from all runs together, known to a factor each."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..data.curves import Array

DEPARTURE_DEGREES, SEED_DEGREES = 4.0, 6.0
"""Of freedom of Student's t, of single settings and of seeds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Priors:
    """Medians of what is learned from all runs together; a deviation is known to a factor, given as its logarithm.

    Attributes:
        seed_amplitude: Standard deviation of seeds, as a share of the gain. With one seed per setting the data say
            nothing of it, and this decides.
        seed_factor: Logarithm of the factor to which it is known.
        seed_timing: Standard deviation of seeds in the logarithm of compute.
        smooth: Of the Gaussian process: of the amplitude's logit, and of the logarithm of the half compute.
        departure: Of single cells, likewise.
        departure_factor: Logarithm of the factor to which it is known.
        shape: Of single cells' s, in logarithms.
        base_level: Of base models, where there are several: of the amplitude's logit, and of the logarithm of the half
            compute.
        base_slope: Of how base models differ per octave of n, B_p and rate, likewise.
        base_departure: Of single settings of single base models, likewise.
        wide: Logarithm of the factor of ``smooth``, ``seed_timing`` and those of base models.
    """

    seed_amplitude: float = 0.06
    seed_factor: float = 0.7
    seed_timing: float = 0.08
    smooth: tuple[float, float] = (0.3, 0.4)
    departure: tuple[float, float] = (0.3, 0.3)
    departure_factor: float = 0.6
    shape: float = 0.1
    base_level: tuple[float, float] = (0.4, 0.4)
    base_slope: tuple[float, float] = (0.08, 0.1)
    base_departure: tuple[float, float] = (0.06, 0.08)
    wide: float = 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """Numbers that share a deviation: ``median · k``, with ``k = exp(factor · h)`` and h standard normal.

    Attributes:
        median: Of the deviation, shape ``(rows,)``.
        factor: Logarithm of the factor to which it is known, shape ``(rows,)``.
        centred: The numbers are sampled in units of ``k`` to the power of one minus this: 1 where the data say much
            of each, 0 where they say little.
        degrees: Of freedom of Student's t; infinite for a normal distribution.
    """

    median: Array
    factor: Array
    centred: float
    degrees: float


def families(prior: Priors, *, slopes: int = 0, bases: bool = False) -> dict[str, Family]:
    """The numbers of a sweep whose deviation is learned.

    Args:
        slopes: Axes along which base models may differ.
    """
    wide = (prior.wide, prior.wide)
    known = (prior.departure_factor, prior.departure_factor)
    seeds = (prior.seed_amplitude, prior.seed_timing)
    made = {
        "smooth": _family(prior.smooth, wide, centred=1.0),
        "departure": _family(prior.departure, known, centred=1.0, degrees=DEPARTURE_DEGREES),
        "shapes": _family((prior.shape,), wide[:1], centred=0.0),
        "seeds": _family(seeds, (prior.seed_factor, prior.wide), centred=1.0, degrees=SEED_DEGREES),
    }
    if bases:
        both = [(level, *(slope,) * slopes) for level, slope in zip(prior.base_level, prior.base_slope, strict=True)]
        medians = (*both[0], *both[1])
        made["bases"] = _family(medians, (prior.wide,) * len(medians), centred=1.0)
        made["own"] = _family(prior.base_departure, wide, centred=0.0)
    return made


def _family(median: tuple[float, ...], factor: tuple[float, ...], *, centred: float, degrees: float = np.inf) -> Family:
    return Family(median=np.array(median), factor=np.array(factor), centred=centred, degrees=degrees)
