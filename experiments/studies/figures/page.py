"""The drawings of figures and the gallery, ``docs/figures.md``: made of committed tables alone."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from isocompute.rollout.contract.files import write_text

from ...figures import COLOURS, pyplot, save
from ..panel.advice import table
from ..panel.study import ROOT
from .cells import RESULTS, missing, read
from .figure import Comparison, Figure, Side, figure_of, names
from .reading import LAST, WORDS, Found, came_out, frame, paragraph, resolutions

PAGE = ROOT / "docs" / "figures.md"
PICTURES = ROOT / "docs" / "figures"
TEMPLATE = Path(__file__).with_name("page.template")
COMMAND = "python -m experiments figure"
CELL = ["arm", "set", "base_seed", "seed", "rollouts_per_problem", "problems_per_batch", "rate_factor"]


def draw(figure: Figure, path: Path, done: pl.DataFrame) -> None:
    """Draw a figure, with a panel for each problem set; of a page one for each of its figures.

    Args:
        path: File name without its ending.
        done: The scores of every finished cell, as ``read`` gives them.
    """
    parts = parts_of(figure)
    panels = [(part, name) for part in parts for name in part.sets]
    rows = -(-len(panels) // 2)
    size = (4 * min(2, len(panels)) + 0.5, 3.2 * rows)
    whole, axes = pyplot().subplots(rows, min(2, len(panels)), figsize=size, layout="constrained", squeeze=False)
    for own in axes.flat[len(panels) :]:
        own.set_axis_off()
    for own, (part, name) in zip(axes.flat, panels, strict=False):
        drawn = frame(part, done).filter(pl.col("set") == name)
        {"curves": _curves, "ends": _ends, "bars": _bars}[part.draw](own, part, drawn)
        own.set_title(name if len(parts) == 1 else f"{part.name}, {name}", fontsize=9)
        own.legend(framealpha=0.8, edgecolor="none", fontsize=7)
    save(whole, path)


def _curves(axes: Any, figure: Figure, rows: pl.DataFrame) -> None:
    """Scores against rollouts: the mean over pairs, and their deviation as a band."""
    own = rows.filter(pl.col("problem_set") == "")
    kinds = ["arm", "rollouts_per_problem", "problems_per_batch"]
    several = own.select(kinds).n_unique() > own["arm"].n_unique()
    for i, (key, run) in enumerate(own.group_by(kinds, maintain_order=True)):
        arm, n, size = key
        band = run.group_by("rollouts").agg(pl.col("avg_at_4").mean().alias("mean"), pl.col("avg_at_4").std())
        at, mean, width = (band.sort("rollouts")[name].fill_null(0).to_numpy() for name in band.columns)
        label = f"{arm}, n = {n}, B_p = {size}" if several else arm
        axes.plot(at, mean, color=COLOURS[i % len(COLOURS)], lw=1.3, ls="-" if i < len(COLOURS) else "--", label=label)
        axes.fill_between(at, mean - width, mean + width, color=COLOURS[i % len(COLOURS)], alpha=0.1, lw=0)
    axes.set(xlabel="rollouts generated, C", ylabel="avg@4")


def _ends(axes: Any, figure: Figure, rows: pl.DataFrame) -> None:
    """Ends against n or B_p, a line for each arm."""
    for (arm, side), colour in zip(_sides(figure).items(), COLOURS, strict=False):
        own = _last(rows.filter(pl.col("arm") == arm), side)
        if len(own):
            means = own.group_by(side.over).agg(pl.col(side.metric).mean()).sort(side.over)
            axes.plot(means[side.over], means[side.metric], "o-", ms=3, lw=1.3, color=colour, label=arm)
            axes.scatter(own[side.over], own[side.metric], s=4, color=colour, alpha=0.4)
    overs = {side.over for side in _sides(figure).values()}
    symbols = {"rollouts_per_problem": "n", "problems_per_batch": "B_p"}
    metric = next(iter(_sides(figure).values())).metric.replace("_at_", "@")
    axes.set_xscale("log", base=2)
    ticks = sorted({value for side in _sides(figure).values() for value in rows[side.over].unique()})
    axes.set_xticks(ticks, [f"{value}" for value in ticks])
    axes.set(xlabel=" or ".join(symbols[name] for name in sorted(overs)), ylabel=f"{metric} at the end")


def _bars(axes: Any, figure: Figure, rows: pl.DataFrame) -> None:
    """Ends of every arm and n on every further set, or by every score where there are none."""
    sets = figure.evaluate or ("",)
    metrics = ["avg_at_4"] if figure.evaluate else ["best_at_4", "worst_at_4"]
    kinds = list(rows.select("arm", "rollouts_per_problem").unique(maintain_order=True).iter_rows())
    shown = [(name, metric) for name in sets for metric in metrics]
    for i, (arm, n) in enumerate(kinds):
        heights = []
        for name, metric in shown:
            own = rows.filter(pl.col("arm") == arm, pl.col("rollouts_per_problem") == n)
            heights.append(_last(own, Side(arm=arm, of=name, metric=metric))[metric].to_numpy().mean())
        at = np.arange(len(shown)) + 0.8 * i / len(kinds)
        label = f"{arm}, n = {n}" if len(kinds) > len(figure.arms) else arm
        axes.bar(at, heights, width=0.75 / len(kinds), color=COLOURS[i % len(COLOURS)], label=label)
    labels = [name.replace("-", "\n") or metric.replace("_at_", "@") for name, metric in shown]
    axes.set_xticks(np.arange(len(shown)) + 0.35, labels)
    axes.set(ylabel="score at the end")


def _sides(figure: Figure) -> dict[str, Side]:
    """Of each arm the side of a comparison that it is on first, or its own."""
    asked = [side for one in figure.compare for side in (one.of, one.less) if side]
    return {arm: next((side for side in asked if side.arm == arm), Side(arm=arm)) for arm in figure.arms}


def _last(rows: pl.DataFrame, side: Side) -> pl.DataFrame:
    """The end of each cell."""
    own = rows.filter(pl.col("problem_set") == side.of).sort("rollouts")
    return own.group_by(CELL, maintain_order=True).agg(pl.col(side.metric).tail(1 if side.of else LAST).mean())


def parts_of(figure: Figure) -> list[Figure]:
    """The figures that have its cells: others of a page, else itself."""
    return [figure_of(name) for name in figure.page_of] or [figure]


def finished(figure: Figure, done: pl.DataFrame) -> bool:
    """Return whether all its cells are there, or all those of its parts."""
    return all(part.runnable and not missing(part, done) for part in parts_of(figure))


def costs() -> tuple[list[list[str]], float]:
    """A row for each figure with its cells and what they cost (CPU-minutes), and CPU-hours of all.

    A cell that several figures have is counted for the first.
    """
    seen: set[str] = set()
    rows, total = [], 0.0
    for figure in map(figure_of, names()):
        new = {cell.definition: cell for cell in figure.cells if figure.runnable and cell.definition not in seen}
        seen |= set(new)
        seconds = sum(cell.seconds for cell in new.values())
        total += seconds / 3600
        own = {cell.definition for cell in figure.cells}
        kind = "decides" if figure.decides else "illustration"
        if not figure.runnable:
            kind = "a page of others" if figure.page_of else "not here"
        numbers = [f"{len(own)}", f"{len(new)}", f"{seconds / 60:.0f}"] if figure.runnable else ["–", "–", "–"]
        rows.append([figure.name, kind, *numbers])
    return rows, total


def resolvables() -> Iterator[list[str]]:
    """A row for each comparison of a figure that decides: what it can resolve."""
    for figure in map(figure_of, names()):
        if figure.decides:
            for says, pairs, deviation, least in resolutions(figure):
                yield [figure.name, says, f"{pairs}", f"{deviation:.4f}", f"{least:.3f}"]


def section(figure: Figure, done: pl.DataFrame, came: Sequence[tuple[Comparison, Found]]) -> str:
    """A figure on the page: what it says, how it is made, and the drawing where all its cells are there."""
    command = f"    {COMMAND} {figure.name}"
    parts = parts_of(figure)
    left = {cell.definition: cell.seconds for part in parts for cell in missing(part, done)}
    total = len({cell.definition for part in parts for cell in part.cells})
    # A star after a symbol is no emphasis of Markdown's.
    said = re.sub(r"\b(n|B_p)\*", r"\1\\*", paragraph(figure, done, came))
    made = f"{total - len(left)} of {total} cells are there; the others take {sum(left.values()) / 60:.0f} CPU-minutes:"
    if figure.needs:
        made = f"Needs: {figure.needs}. On a cluster:"
        command = f"    {figure.cluster or f'{command.strip()} --preset paper'}"
    elif not left:
        made = f"![{figure.title}](figures/{figure.name}.svg)\n\nMade by"
    anchors = [f'<a id="{each}"></a>' for each in (figure.name, *figure.also)]
    return "\n".join([*anchors, f"## {figure.title}", "", said, "", made, "", command])


def text(results: Path = RESULTS) -> str:
    """The gallery."""
    done = read(results)
    rows, hours = costs()
    every = [figure_of(name) for name in names()]
    came = [came_out(figure, done) for figure in every]
    words = [Counter(found.word for _, found in each) for each in came]
    header = ["figure", "kind", "cells", "of its own", "CPU-minutes", "came out"]
    links = [[f"[{row[0]}](#{row[0]})", *row[1:], counted(own) or "–"] for row, own in zip(rows, words, strict=True)]
    whole = sum(words, Counter[str]())
    deciding = sum((own for own, figure in zip(words, every, strict=True) if figure.decides), Counter[str]())
    return TEMPLATE.read_text("utf-8").format(
        comparisons=whole.total(),
        whole=counted(whole),
        deciding=counted(deciding),
        costs=table(header, links),
        hours=f"{hours:.1f}",
        sections="\n\n".join(section(figure, done, own) for figure, own in zip(every, came, strict=True)),
    )


def counted(words: Counter[str]) -> str:
    """How often each verdict came out."""
    return ", ".join(f"{words[word]} {word}" for word in WORDS.values() if words[word])


def write(results: Path = RESULTS, page: Path = PAGE, pictures: Path = PICTURES) -> Iterator[str]:
    """Draw every figure whose cells are all there, and write the page.

    Yields:
        A line for each file.
    """
    done = read(results)
    for figure in map(figure_of, names()):
        if finished(figure, done):
            pictures.mkdir(parents=True, exist_ok=True)
            draw(figure, pictures / figure.name, done)
            (pictures / f"{figure.name}.png").unlink()
            yield f"{pictures / figure.name}.svg"
    write_text(page, text(results))
    yield str(page)


def lines_of(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Rows as columns of text."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(each.ljust(width) for each, width in zip(row, widths, strict=True)).rstrip()
