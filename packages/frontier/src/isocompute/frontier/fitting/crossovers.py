"""Where one n overtakes another along the envelope."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..data.curves import Array, Mask
from ..data.units import amount
from .differences import Difference
from .envelope import winners
from .intervals import ends


@dataclass(frozen=True, slots=True, kw_only=True)
class Crossover:
    """A change of the best n along the envelope.

    Attributes:
        before: Rollouts per problem below it.
        after: Rollouts per problem above it.
        compute: Where it lies, in the unit of the fit.
        interval: 95 % interval of where. An end is None where more than 2.5 % of the refits have no crossing on that
            side: the second curve is ahead from the start, or never. None altogether where a curve's data end.
        kind: ``crossing``, or ``support_ends`` where the data of one of the two do not reach.
        stated: Whether the data tell the curves apart above it, the second ahead; only then is it stated.
        before_name: Name of the curve below it.
        after_name: Name of the curve above it.
    """

    before: int
    after: int
    compute: float
    interval: tuple[float | None, float | None] | None
    kind: str
    stated: bool = False
    before_name: str = ""
    after_name: str = ""

    def as_dict(self) -> dict[str, Any]:
        """As in ``fits.json``."""
        return {
            "from": self.before,
            "to": self.after,
            "compute": self.compute,
            "interval": list(self.interval) if self.interval else None,
            "kind": self.kind,
            "stated": self.stated,
            "from_curve": self.before_name,
            "to_curve": self.after_name,
        }

    def summary(self, unit: str) -> str:
        """One line to be printed."""
        if self.kind == "support_ends":
            where = f"{amount(self.compute)} {unit}, where one of the two has no data"
            return f"{self.after_name} passes {self.before_name} at {where}"
        low, high = self.interval or (None, None)
        if low is None and high is None:
            span = "95 %: anywhere"
        elif low is None or high is None:
            span = f"95 %: above {amount(low)}" if low is not None else f"95 %: below {amount(high or 0.0)}"
        else:
            span = f"95 %: {amount(low)} to {amount(high)}"
        return f"{self.after_name} overtakes {self.before_name} at {amount(self.compute)} {unit} ({span})"


def crossovers(
    compute: Array, point: Array, draws: Array, within: Mask, apart: Sequence[Difference], labels: list[int],
    names: list[str],
) -> list[Crossover]:  # fmt: skip
    """Find the transitions of the envelope.

    Args:
        compute: Grid, shape ``(points,)``.
        point: Best fitted rewards up to each compute, shape ``(curves, points)``.
        draws: The same of the refits, shape ``(refits, curves, points)``.
        within: Whether each curve's own data reach each compute, shape ``(curves, points)``.
        apart: From ``differences``.
        labels: n of each curve.
        names: What each curve is called.
    """
    signs = {(d.first, d.second): d.sign for d in apart}
    signs |= {(d.second, d.first): -d.sign for d in apart}
    best = winners(point)
    found = []
    for i in np.flatnonzero(best[1:] != best[:-1]):
        a, b = int(best[i]), int(best[i + 1])
        kind = "crossing" if within[a, i + 1] and within[b, i] else "support_ends"
        both = within[a] & within[b]
        crosses = kind == "crossing"
        lead = draws[:, b][:, both] - draws[:, a][:, both]
        found.append(
            Crossover(
                before=labels[a], after=labels[b], compute=float(np.sqrt(compute[i] * compute[i + 1])),
                interval=_crossing_interval(compute[both], lead) if crosses else None,
                kind=kind, stated=crosses and bool((signs[a, b][i + 1 :] > 0).any()), before_name=names[a],
                after_name=names[b],
            )
        )  # fmt: skip
    return found


def _crossing_interval(compute: Array, lead: Array) -> tuple[float | None, float | None]:
    """95 % interval of where refits pass from behind to ahead for the last time; an end is None where they do not."""
    change = (lead[:, :-1] <= 0) & (lead[:, 1:] > 0)
    last = compute[1:][change.shape[1] - 1 - change[:, ::-1].argmax(axis=1)]
    where = np.where(change.any(axis=1), last, -np.inf)
    # Behind at the end is never ahead, whatever happened before.
    where = np.where(lead[:, -1] <= 0, np.inf, where)
    low, high = ends(where, method="inverted_cdf")
    return (float(low) if np.isfinite(low) else None, float(high) if np.isfinite(high) else None)
