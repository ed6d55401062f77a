"""All numbers of a sweep whose deviations are learned, as one array: in their own unit, and their prior.

What a step of the chains costs is mostly numpy's calls, so that all families are computed in the same ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..data.curves import Array
from .priors import Family

Index = NDArray[np.int64]


class Scaled(NamedTuple):
    """Numbers in their own unit.

    Attributes:
        values: Of each family, shape ``(chains, rows, members)``.
        unit: What 1 in the vector is in it, of all families, shape ``(chains, numbers)``.
    """

    values: dict[str, Array]
    unit: Array


@dataclass(frozen=True, kw_only=True)
class Families:
    """Families of numbers and their places in the vector that is sampled.

    Attributes:
        families: What is known of each before the data.
        parts: Where each one's numbers stand in the vector, and under ``_sd`` its deviations.
    """

    families: dict[str, Family]
    parts: dict[str, slice]

    @cached_property
    def deviations(self) -> Index:
        """Where the deviations of all families stand, one for each row, shape ``(rows,)``."""
        return np.concatenate([_places(self.parts[name + "_sd"]) for name in self.families])

    @cached_property
    def numbers(self) -> Index:
        """Where the numbers of all families stand, shape ``(numbers,)``."""
        return np.concatenate([_places(self.parts[name]) for name in self.families])

    @cached_property
    def _counts(self) -> list[int]:
        """How many numbers each family has."""
        return [self.parts[name].stop - self.parts[name].start for name in self.families]

    @cached_property
    def own(self) -> dict[str, slice]:
        """Where each family stands among all ``numbers``."""
        ends = np.cumsum(self._counts).tolist()
        return {name: slice(end - many, end) for name, many, end in zip(self.families, self._counts, ends, strict=True)}

    @cached_property
    def _row(self) -> Index:
        """Which row each number is of, shape ``(numbers,)``."""
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
        """Which numbers are Student-t, and their degrees of freedom."""
        degrees = np.repeat([family.degrees for family in self.families.values()], self._counts)
        heavy = np.flatnonzero(np.isfinite(degrees))
        return heavy, degrees[heavy]

    def scaled(self, theta: Array) -> Scaled:
        """All numbers in their own unit."""
        unit = _taken(self._median * np.exp(self._powers[1] * _taken(theta, self.deviations)), self._row)
        values = unit * _taken(theta, self.numbers)
        return Scaled({name: self._rows(values, name) for name in self.families}, unit)

    def deviation(self, theta: Array, name: str) -> Array:
        """Standard deviations (of the Student-t ones their scale) of a family, shape ``(chains, rows)``."""
        family = self.families[name]
        return np.asarray(family.median * np.exp(family.factor * theta[:, self.parts[name + "_sd"]]))

    def back(self, by_value: dict[str, Array], scaled: Scaled, gradient: Array) -> None:
        """Write the gradient by the vector, from that by the numbers in their own unit."""
        by_all = np.empty_like(scaled.unit)
        for name, own in self.own.items():
            by_all[:, own] = by_value[name].reshape(len(gradient), -1)
            family, deviation = self.families[name], self.parts[name + "_sd"]
            gradient[:, deviation] = 0.0
            if family.centred < 1:
                turned = (by_value[name] * scaled.values[name]).sum(axis=2)
                gradient[:, deviation] = (1 - family.centred) * family.factor * turned
        gradient[:, self.numbers] = by_all * scaled.unit

    def prior(self, theta: Array, gradient: Array) -> Array:
        """Logarithm of the prior density of the numbers, shape ``(chains,)``, given their deviations.

        Args:
            gradient: By the vector; its numbers are written, and what deviations add to it is added.
        """
        scale = np.exp(self._powers[0] * _taken(theta, self.deviations))
        wide = _taken(scale, self._row)
        unit = _taken(theta, self.numbers) / wide
        density, slope = -0.5 * unit**2, -unit
        heavy, degrees = self._heavy
        far = _taken(unit, heavy)
        square = far**2
        density[:, heavy] = -0.5 * (degrees + 1) * np.log1p(square / degrees)
        slope[:, heavy] = -(degrees + 1) * far / (degrees + square)
        density -= _taken(np.log(scale), self._row)
        gradient[:, self.numbers] = slope / wide
        turned = slope * unit
        total = np.zeros(len(theta))
        for name, family in self.families.items():
            total += self._rows(density, name).sum(axis=(1, 2))
            if family.centred > 0:
                rows = self._rows(turned, name)
                power = family.centred * family.factor
                gradient[:, self.parts[name + "_sd"]] -= power * (rows.sum(axis=2) + rows.shape[2])
        return total

    def _rows(self, numbers: Array, name: str) -> Array:
        """One family of all numbers, shape ``(chains, rows, members)``."""
        return numbers[:, self.own[name]].reshape(len(numbers), len(self.families[name].median), -1)


def _places(part: slice) -> Index:
    return np.arange(part.start, part.stop)


def _taken(columns: Array, which: Index) -> Array:
    """Some columns, contiguous by rows: an index would leave them contiguous by columns, and what follows slow."""
    return np.take(columns, which, axis=1)
