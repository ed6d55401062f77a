"""Draws ``docs/parts.svg``: how the four packages meet, in tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

OUT = Path("docs") / "parts.svg"
WIDTH, HEIGHT = 960, 410
INK, QUIET, LINE = "#1f2933", "#52606d", "#829ab1"
FILL = {"package": "#e6f0fa", "outside": "#f5f7fa"}
STROKE = {"package": "#2f6fad", "outside": "#9fb3c8"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """A part: a package of ours, or something outside.

    Attributes:
        x: Left edge, in pixels.
        y: Upper edge.
        width: Width.
        title: Name.
        lines: What it does, one line per entry.
        kind: ``package`` or ``outside``.
    """

    x: int
    y: int
    width: int
    title: str
    lines: tuple[str, ...]
    kind: str = "package"
    height: int = 84

    def drawn(self) -> str:
        """The box as SVG."""
        middle = self.x + self.width // 2
        text = [_text(middle, self.y + 26, self.title, size=16, weight="600")]
        text += [_text(middle, self.y + 48 + 18 * i, line, color=QUIET) for i, line in enumerate(self.lines)]
        return (
            f'<rect x="{self.x}" y="{self.y}" width="{self.width}" height="{self.height}" rx="8" '
            f'fill="{FILL[self.kind]}" stroke="{STROKE[self.kind]}" stroke-width="1.5"/>' + "".join(text)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrow:
    """What passes from one part to another.

    Attributes:
        points: Corners of the line, in pixels; the head is at the last one.
        label: The table or the value that passes.
        at: Middle of the label's base line.
    """

    points: Sequence[tuple[int, int]]
    label: str
    at: tuple[int, int]

    def drawn(self) -> str:
        """The line, its head and its label as SVG."""
        path = " ".join(f"{x},{y}" for x, y in self.points)
        return (
            f'<polyline points="{path}" fill="none" stroke="{LINE}" stroke-width="1.8" marker-end="url(#head)"/>'
            + _text(*self.at, self.label, size=13, color=INK, style="italic")
        )


BOXES = (
    Box(x=20, y=40, width=150, title="problems", lines=("your task, a dataset,", "a file"), kind="outside"),
    Box(x=240, y=40, width=190, title="rollout", lines=("samples n responses,", "verifies them")),
    Box(x=560, y=40, width=190, title="learner", lines=("one policy update,", "verified weight sync")),
    Box(x=385, y=190, width=212, title="budget", lines=("admits and charges rollouts,", "converts settings")),
    Box(x=730, y=190, width=210, title="frontier", lines=("fits curves with intervals,", "finds n*(C), forecasts")),
    Box(x=20, y=310, width=300, title="TRL · veRL · OpenRLHF · prime-rl", lines=("runs that you train elsewhere",),
        kind="outside", height=72),
)  # fmt: skip
ARROWS = (
    Arrow(points=[(170, 82), (238, 82)], label="problems", at=(204, 74)),
    Arrow(points=[(430, 68), (558, 68)], label="rollouts", at=(494, 60)),
    Arrow(points=[(560, 104), (432, 104)], label="weights", at=(496, 122)),
    Arrow(points=[(335, 124), (335, 232), (383, 232)], label="counts", at=(358, 224)),
    Arrow(points=[(655, 124), (655, 212), (728, 212)], label="evals", at=(692, 204)),
    Arrow(points=[(730, 246), (599, 246)], label="prescription", at=(663, 264)),
    Arrow(points=[(495, 274), (495, 334), (322, 334)], label="settings: n, B_p, M", at=(408, 326)),
    Arrow(points=[(320, 362), (835, 362), (835, 276)], label="logs, read as evals", at=(578, 380)),
)  # fmt: skip


def drawing() -> str:
    """The whole picture as SVG."""
    head = (
        '<defs><marker id="head" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" '
        f'orient="auto-start-reverse"><path d="M0 0 10 5 0 10z" fill="{LINE}"/></marker></defs>'
    )
    parts = [box.drawn() for box in BOXES] + [arrow.drawn() for arrow in ARROWS]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
        'role="img" font-family="Helvetica, Arial, sans-serif">'
        "<title>How the parts of IsoCompute meet</title>"
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>{head}{"".join(parts)}</svg>\n'
    )


def _text(
    x: int, y: int, text: str, *, size: int = 14, color: str = INK, weight: str = "400", style: str = "normal"
) -> str:
    return (
        f'<text x="{x}" y="{y}" text-anchor="middle" font-size="{size}" font-weight="{weight}" '
        f'font-style="{style}" fill="{color}">{escape(text)}</text>'
    )


if __name__ == "__main__":
    OUT.write_text(drawing(), encoding="utf-8")
    print(f"drawn: {OUT}")
