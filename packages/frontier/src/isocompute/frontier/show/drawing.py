"""Drawing: one style per n, legible in greyscale, and files that are the same every time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np

from ..contract.files import atomic_write
from ..data.reading import short
from ..errors import FrontierError

MARKERS = "osD^vPX*"
LINES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1)), (0, (1, 1)), (0, (3, 1, 1, 1, 1, 1)), (0, (8, 2)))
ACCENT = "#c05621"


STYLE: dict[Any, Any] = {"font.size": 9, "axes.spines.top": False, "axes.spines.right": False}

Drawn = TypeVar("Drawn", bound=Callable[..., Any])


def styled(draw: Drawn) -> Drawn:
    """A function that draws in our style and leaves that of the process, and its backend, alone."""

    @wraps(draw)
    def inside(*arguments: Any, **named: Any) -> Any:
        import matplotlib as mpl

        with mpl.rc_context(STYLE):
            return draw(*arguments, **named)

    return cast("Drawn", inside)


def subplots(rows: int = 1, columns: int = 1, *, figsize: tuple[float, float], **settings: Any) -> tuple[Any, Any]:
    """A figure that no window manager knows, and its axes, as of ``pyplot.subplots``."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=figsize, layout="constrained")
    return figure, figure.subplots(rows, columns, **settings)


def panels(count: int, *, height: float, more: float = 0.0) -> tuple[Any, list[Any]]:
    """A figure of as many panels of one scale, three in a row, and their axes.

    Args:
        height: Of a panel (inches).
        more: Height of the figure beyond that of its panels.
    """
    columns = min(3, count)
    rows = -(-count // columns)
    size = (3.2 * columns, height * rows + more)
    figure, axes = subplots(rows, columns, figsize=size, sharex=True, sharey=True, squeeze=False)
    for axis in axes.flat[count:]:
        axis.set_visible(False)
    return figure, list(axes.flat[:count])


def styles_by_key(keys: Iterable[Any]) -> dict[object, dict[str, Any]]:
    """``line_styles`` of distinct keys, each an n or the name of a group: numbers first, then names."""
    return line_styles(sorted(set(keys), key=lambda key: (isinstance(key, str), key)))


def line_styles(values: Sequence[object]) -> dict[object, dict[str, Any]]:
    """Colour, marker and line of each value in order: light to dark, so that they differ in greyscale too."""
    import matplotlib as mpl

    shades = mpl.colormaps["viridis_r"](np.linspace(0.15, 0.95, len(values)))
    return {
        value: {"color": shades[i], "marker": MARKERS[i % len(MARKERS)], "linestyle": LINES[i % len(LINES)]}
        for i, value in enumerate(values)
    }


def save(figure: Any, path: Path) -> list[Path]:
    """Write SVG and PNG without dates or program versions; returns both paths.

    Args:
        path: Where it goes; the suffix is replaced.

    Raises:
        FrontierError: They cannot be written.
    """
    import matplotlib as mpl

    svg, png = path.with_suffix(".svg"), path.with_suffix(".png")
    # Fixed ids, so that the same figure gives the same bytes.
    with mpl.rc_context({"svg.hashsalt": "isocompute"}), atomic_write(svg, error=FrontierError) as stream:
        figure.savefig(stream, format="svg", metadata={"Date": None, "Creator": None})
    with atomic_write(png, error=FrontierError) as stream:
        figure.savefig(stream, format="png", dpi=150, metadata={"Software": None})
    return [svg, png]


def compute_axis(axes: Any, unit: str) -> None:
    """A logarithmic axis of compute whose ticks read 2k and 1M."""
    axes.set_xscale("log")
    low, high = axes.get_xlim()
    decades = [t for t in 10.0 ** np.arange(0, 16) if low <= t <= high]
    if len(decades) < 3:
        decades = [t for d in 10.0 ** np.arange(0, 16) for t in (d, 2 * d, 5 * d) if low <= t <= high]
    axes.set_xticks(decades, [short(t) for t in decades])
    axes.minorticks_off()
    axes.set_xlabel(unit.replace("_", " "))
