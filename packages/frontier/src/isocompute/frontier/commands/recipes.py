"""What ``predict --series`` does: the recipes of one file at one asymptote."""

from __future__ import annotations

import argparse
from collections.abc import Iterable

from ..answers.efficiency import leave_one_out
from ..data.files import read_series
from ..data.one_run import one_run
from ..errors import FrontierError
from ..show.drawing import save
from ..show.panels import efficiency_panel
from .arguments import write_json


def compare_recipes(arguments: argparse.Namespace) -> Iterable[str]:
    """Print the recipes by the compute that each needs for one reward, the least first.

    Raises:
        FrontierError: R0 is not given, or the curves cannot be read, compared or drawn.
    """
    if arguments.r0 is None:
        raise FrontierError("--series compares recipes from one reward before training: give --r0")
    series = read_series(
        arguments.curve, arguments.x, arguments.y, by=arguments.series, where=dict(arguments.where),
        least=arguments.fit_min, most=arguments.fit_max,
    )  # fmt: skip
    for name in series:
        one_run(arguments.curve, arguments.x, arguments.y, {**dict(arguments.where), arguments.series: name})
    found = leave_one_out(series, r0=arguments.r0, asymptote=arguments.asymptote, target=arguments.reward)
    held = found[0].parameters
    yield (
        f"A = {held.asymptote:.4f} and R0 = {held.start:g} held for all; {arguments.x} needed for {found[0].target:.3f}"
    )
    for e in found:
        low, high = e.needed_interval
        if high is None:
            needed = f"more than {e.needed:,.5g}, four times its data"
        else:
            note = ", extrapolated" if e.standing == "extrapolated" else ""
            times = f"{e.needed / found[0].needed:.2f} times the least"
            needed = f"{e.needed:,.5g} (95 %: {low:,.5g} to {high:,.5g}{note}), {times}"
        yield f"  {e.name:24} {needed}  B {e.parameters.shape:.3f}  C_mid {e.parameters.scale:,.5g}"
    yield "one run each: the intervals leave out how seeds differ"
    if arguments.efficiency:
        save(efficiency_panel(found, arguments.x), arguments.efficiency)
    document = {"asymptote": held.asymptote, "r0": held.start, "series": [e.as_dict() for e in found]}
    write_json(document, arguments.json)
