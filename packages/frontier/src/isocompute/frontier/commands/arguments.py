"""Types of arguments, the document behind ``--json``, and the comparison of ``predict --series``."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ..answers.forecast import leave_one_out
from ..contract.files import write_text
from ..data.reading import one_run, read_series
from ..errors import FrontierError
from ..show.drawing import save
from ..show.panels import efficiency_panel


def assignment(text: str) -> tuple[str, str]:
    """An argument such as ``NAME=VALUE``.

    Raises:
        argparse.ArgumentTypeError: It does not look like that.
    """
    name, equals, value = text.partition("=")
    if not name or not equals or not value:
        raise argparse.ArgumentTypeError(f"{text!r} must look like NAME=VALUE")
    return name, value


SUFFIXES = {"k": 1e3, "m": 1e6, "b": 1e9, "t": 1e12}


def positive(text: str) -> float:
    """A finite amount above 0, such as 50000, 2k, 16M or 1.5B.

    Raises:
        argparse.ArgumentTypeError: It is not such an amount.
    """
    scale = SUFFIXES.get(text[-1:].lower())
    try:
        value = float(text if scale is None else text[:-1]) * (scale or 1.0)
    except ValueError:
        value = 0.0
    if not (np.isfinite(value) and value > 0):
        raise argparse.ArgumentTypeError(f"{text!r} is not an amount above 0, such as 50000, 2k, 16M or 1.5B")
    return value


def write_json(document: Mapping[str, Any], path: Path | None) -> None:
    """Write a document where a path is given.

    Args:
        path: The file, or None to write nothing.

    Raises:
        FrontierError: The file cannot be written.
    """
    if path is not None:
        write_text(path, json.dumps(document, indent=1, sort_keys=True) + "\n", error=FrontierError)


def compare_recipes(arguments: argparse.Namespace) -> Iterable[str]:
    """Print the recipes by the compute that each needs for one reward, the least first.

    Raises:
        FrontierError: R0 is not given, or the curves cannot be read, compared or drawn.
    """
    if arguments.r0 is None:
        raise FrontierError("--series compares recipes from one reward before training: give --r0")
    series = read_series(
        arguments.curve,
        arguments.x,
        arguments.y,
        by=arguments.series,
        where=dict(arguments.where),
        least=arguments.fit_min,
        most=arguments.fit_max,
    )
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
