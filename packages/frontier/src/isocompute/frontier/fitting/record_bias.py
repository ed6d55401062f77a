"""How far a fit of the record-breaking points alone would overstate a curve."""

from __future__ import annotations

from ..data.curves import Curve
from ..data.records import of_records
from .forms import Parameters
from .selection import point_fits


def records_gap(curve: Curve, best: Parameters, bin_width: float, window: int = 1) -> float | None:
    """How far above all points a fit of the records lies at the last record; None where there is no such fit.

    Args:
        best: The fit of all points.
        bin_width: Width of a record's bin of reward.
        window: Points of the running mean before records are sought.
    """
    chosen = of_records(curve, bin_width=bin_width, window=window)
    fits = point_fits(chosen, (best.form,))
    if not fits:
        return None
    # Not at the end of the run: where the last record is early, a fit of records says nothing of the end.
    last = float(chosen.compute.max())
    return float(fits[0].parameters(last) - best(last))
