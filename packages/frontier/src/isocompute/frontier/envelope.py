"""The upper envelope over supported compute, its crossovers, and n*(C) as frequencies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from .curves import Array

LEVEL = 0.95


def supported(compute: Array, supports: Array) -> Array:
    """Whether each curve's data reach each compute, shape ``(curves, points)``; supports are (first, last)."""
    return np.asarray((compute >= supports[:, :1] * (1 - 1e-9)) & (compute <= supports[:, 1:] * (1 + 1e-9)))


def winners(rewards: Array, within: Array) -> np.ndarray:
    """Index of the best supported curve at each point, −1 where none is.

    Args:
        rewards: Shape ``(..., curves, points)``.
        within: From ``supported``, shape ``(curves, points)``.
    """
    best = np.where(within, rewards, -np.inf).argmax(axis=-2)
    return np.where(within.any(axis=0), best, -1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Crossover:
    """A change of the best n along the envelope.

    Attributes:
        before: Rollouts per problem below it.
        after: Rollouts per problem above it.
        compute: Where.
        interval: 95 % interval of where, or None when fewer than half of the refits have it.
        kind: ``crossing``, or ``support_ends`` where the better curve's data end.
        before_name: The curve below it, for people.
        after_name: The curve above it.
    """

    before: int
    after: int
    compute: float
    interval: tuple[float, float] | None
    kind: str
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
            "from_curve": self.before_name,
            "to_curve": self.after_name,
        }


def crossovers(
    compute: Array, point: Array, draws: Array, within: Array, labels: list[int], names: list[str] | None = None
) -> list[Crossover]:
    """Find the transitions of the envelope.

    Args:
        compute: Grid, shape ``(points,)``.
        point: Fitted rewards, shape ``(curves, points)``.
        draws: Refitted rewards, shape ``(refits, curves, points)``.
        within: From ``supported``.
        labels: n of each curve.
        names: What each curve is called.
    """
    names = names or [f"n = {n}" for n in labels]
    best = winners(point, within)
    found = []
    for i in np.flatnonzero(best[1:] != best[:-1]):
        a, b = int(best[i]), int(best[i + 1])
        if a < 0 or b < 0:
            continue
        kind = "crossing" if within[a, i + 1] and within[b, i] else "support_ends"
        interval = None
        if kind == "crossing":
            both = within[a] & within[b]
            lead = draws[:, b][:, both] - draws[:, a][:, both]
            grid = compute[both]
            # The last change from behind to ahead is where the refit passes from one to the other.
            change = (lead[:, :-1] <= 0) & (lead[:, 1:] > 0)
            has = change.any(axis=1)
            if has.mean() >= 0.5:
                where = grid[1:][change.shape[1] - 1 - change[:, ::-1].argmax(axis=1)[has]]
                low, high = np.quantile(where, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
                interval = (float(low), float(high))
        found.append(
            Crossover(
                before=labels[a], after=labels[b], compute=float(np.sqrt(compute[i] * compute[i + 1])),
                interval=interval, kind=kind, before_name=names[a], after_name=names[b],
            )
        )  # fmt: skip
    return found
