"""Fits in words: what was found, how sure it is, and no claim beyond that."""

from __future__ import annotations

from collections.abc import Sequence

from ..data.units import amount
from .sweep import FittedSweep


def summary(fits: FittedSweep) -> str:
    """A table of the curves and of n*(C), with intervals, and what the data say of differences."""
    lines = [f"{fits.metric} against {fits.unit}", "   n  B_p  form   asymptote (95 %)        flags"]
    for c in fits.curves:
        head = f"{c.curve.rollouts_per_problem:4d} {c.curve.problems_per_batch:4d}"
        head += f"  {c.curve.group}" if c.curve.group else ""
        if c.parameters is None or c.asymptote_interval is None:
            lines.append(f"{head}  no fit: {c.reason}")
            continue
        low, high = c.asymptote_interval
        flags = ", ".join(f.value.replace("_", " ") for f in c.flags) or "none"
        lines.append(f"{head}  {c.parameters.form:5} {c.parameters.asymptote:.3f} ({low:.3f} to {high:.3f})  {flags}")
    if not fits.fitted:
        return "\n".join(lines)
    best_in = "best in, within-run" if fits.within_run else "best in"
    lines += ["", f"   {fits.unit:>12}   n*   {best_in:19}   95 % set         reward"]
    for cell in fits.best_cells():
        best = f"{cell.probability:.0%} of {cell.competing} n"
        n, inside = cell.rollouts_per_problem, set_of(cell.n_set)
        lines.append(f"   {amount(cell.compute):>12} {n:4d}   {best:19}   {inside:16} {cell.reward:6.3f}")
    return "\n".join([*lines, *statements(fits)])


def statements(fits: FittedSweep) -> list[str]:
    """What the data say, a sentence each: which curves differ, which n overtakes, and what intervals leave out."""
    found = undistinguished(fits)
    found += [x.summary(fits.unit) for x in fits.crossovers if x.stated or x.kind == "support_ends"]
    if len(fits.fitted) > 1 and not any(x.stated for x in fits.crossovers):
        found.append("no n is seen to overtake another")
    elif fits.saturation is not None and fits.saturation.compute is not None:
        found.append(fits.saturation.summary(fits.unit))
    if fits.within_run:
        found.append("one seed: intervals and percentages are within-run and leave out how seeds differ")
    if fits.questions_sampled:
        found.append("intervals include the luck of which questions are asked")
    else:
        found.append("intervals are for the questions evaluated; which questions are asked is not in them")
    return found


def undistinguished(fits: FittedSweep) -> list[str]:
    """Sentences that name the pairs of curves that cannot be told apart over the compute that they share."""
    if not fits.apart:
        return []
    if len(fits.alike) == len(fits.apart):
        return ["no two curves can be told apart: which n is best is not known"]
    return [f"{fits.named(a)} and {fits.named(b)} cannot be told apart over the compute that both have"
            for a, b in fits.alike]  # fmt: skip


def set_of(values: Sequence[int]) -> str:
    """A set of n, with its gaps."""
    return "{" + ", ".join(str(v) for v in values) + "}"
