"""What the figures share: one style per n, legible in greyscale, and files that are the same every time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np

from ..contract.files import atomic_write
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


def log_edges(values: np.ndarray) -> np.ndarray:
    """Edges of cells around points of a logarithmic grid."""
    return np.concatenate([values[:1], np.sqrt(values[1:] * values[:-1]), values[-1:]])
