"""Families of numbers that share a learned deviation: seeds, departures of single settings, what varies smoothly."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..data.curves import Array

Index = NDArray[np.int64]
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
        bend: Of single cells' e.
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
    bend: float = 0.008
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
        "shapes": _family((prior.shape,), wide[:1], centred=0.7),
        "bends": _family((prior.bend,), known[:1], centred=1.0),
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


class Scaled(NamedTuple):
    """Numbers in their own unit.

    Attributes:
        values: Of each family, shape ``(chains, rows, members)``.
        unit: What 1 in the vector is in it, of all families, shape ``(chains, numbers)``.
        whole: All numbers, likewise.
    """

    values: dict[str, Array]
    unit: Array
    whole: Array


@dataclass(frozen=True, kw_only=True)
class Families:
    """All numbers of a sweep whose deviations are learned, as one array: in their own unit, and their prior.

    Attributes:
        parts: Part of each one's numbers in the vector, and under ``_sd`` of its deviations.
    """

    families: dict[str, Family]
    parts: dict[str, slice]

    @cached_property
    def deviations(self) -> Index:
        """Indices of the deviations of all families, one for each row, shape ``(rows,)``."""
        return np.concatenate([_places(self.parts[name + "_sd"]) for name in self.families])

    @cached_property
    def numbers(self) -> Index:
        """Indices of the numbers of all families, shape ``(numbers,)``."""
        return np.concatenate([_places(self.parts[name]) for name in self.families])

    @cached_property
    def _counts(self) -> list[int]:
        """Size of each family."""
        return [self.parts[name].stop - self.parts[name].start for name in self.families]

    @cached_property
    def own(self) -> dict[str, slice]:
        """Part of each family in all ``numbers``."""
        ends = np.cumsum(self._counts).tolist()
        return {name: slice(end - many, end) for name, many, end in zip(self.families, self._counts, ends, strict=True)}

    @cached_property
    def _row(self) -> Index:
        """Row of each number, shape ``(numbers,)``."""
        rows = [len(family.median) for family in self.families.values()]
        members = [many // own for many, own in zip(self._counts, rows, strict=True) for _ in range(own)]
        return np.repeat(np.arange(len(members)), members)

    @cached_property
    def _median(self) -> Array:
        return np.concatenate([family.median for family in self.families.values()])

    @cached_property
    def _powers(self) -> tuple[Array, Array]:
        """Of e, per h: what the numbers in the vector are a multiple of, and the rest of their unit, by rows."""
        families = self.families.values()
        return (
            np.concatenate([family.centred * family.factor for family in families]),
            np.concatenate([(1 - family.centred) * family.factor for family in families]),
        )

    @cached_property
    def _heavy(self) -> tuple[Index, Array]:
        """Indices of the Student-t numbers, and their degrees of freedom."""
        degrees = np.repeat([family.degrees for family in self.families.values()], self._counts)
        heavy = np.flatnonzero(np.isfinite(degrees))
        return heavy, degrees[heavy]

    @cached_property
    def _first(self) -> Index:
        """Where each row begins among the numbers, shape ``(rows,)``."""
        return np.flatnonzero(np.diff(self._row, prepend=-1))

    @cached_property
    def _members(self) -> Array:
        """Numbers of each row, shape ``(rows,)``."""
        return np.bincount(self._row).astype(np.float64)

    def scaled(self, theta: Array) -> Scaled:
        """All numbers in their own unit."""
        unit = _taken(self._median * np.exp(self._powers[1] * _taken(theta, self.deviations)), self._row)
        whole = unit * _taken(theta, self.numbers)
        return Scaled({name: self._rows(whole, name) for name in self.families}, unit, whole)

    def deviation(self, theta: Array, name: str) -> Array:
        """Standard deviations (of the Student-t ones their scale) of a family, shape ``(chains, rows)``."""
        family = self.families[name]
        return np.asarray(family.median * np.exp(family.factor * theta[:, self.parts[name + "_sd"]]))

    def back(self, by_value: dict[str, Array], scaled: Scaled, gradient: Array) -> None:
        """Write the gradient by the vector, from that by the numbers in their own unit."""
        by_all = np.concatenate([by_value[name].reshape(len(gradient), -1) for name in self.families], axis=1)
        gradient[:, self.numbers] = by_all * scaled.unit
        gradient[:, self.deviations] = self._powers[1] * self._sums(by_all * scaled.whole)

    def prior(self, theta: Array, gradient: Array) -> Array:
        """Logarithm of the prior density of the numbers, shape ``(chains,)``, given their deviations.

        Args:
            gradient: By the vector; its numbers are written, and what deviations add to it is added.
        """
        power = self._powers[0] * _taken(theta, self.deviations)
        narrow = _taken(np.exp(-power), self._row)
        unit = _taken(theta, self.numbers) * narrow
        slope, square = -unit, unit**2
        heavy, degrees = self._heavy
        far = _taken(square, heavy)
        slope[:, heavy] *= (degrees + 1) / (degrees + far)
        square[:, heavy] = (degrees + 1) * np.log1p(far / degrees)
        gradient[:, self.numbers] = slope * narrow
        gradient[:, self.deviations] -= self._powers[0] * (self._sums(slope * unit) + self._members)
        return np.asarray(-0.5 * square.sum(axis=1) - power @ self._members)

    def _sums(self, numbers: Array) -> Array:
        """Sums over each row, shape ``(chains, rows)``."""
        return np.asarray(np.add.reduceat(numbers, self._first, axis=1))

    def _rows(self, numbers: Array, name: str) -> Array:
        """One family of all numbers, shape ``(chains, rows, members)``."""
        return numbers[:, self.own[name]].reshape(len(numbers), len(self.families[name].median), -1)


def _places(part: slice) -> Index:
    return np.arange(part.start, part.stop)


def _taken(columns: Array, which: Index) -> Array:
    """Some columns, contiguous by rows: an index would leave them contiguous by columns, and what follows slow."""
    return np.take(columns, which, axis=1)
