"""The figures of the page: a line for each unit, and the mean over units."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf, log2
from pathlib import Path
from typing import Any

import numpy as np

from ...figures import COLOURS, pyplot, save
from .advice import PROTOCOLS, failures_by_cell
from .claims import signed
from .questions import REWARD, Answer, Measured
from .statistics import Estimate, clopper_pearson, over_units
from .study import UNITS

Line = tuple[str, Sequence[float]]
"""A unit, and its number with both ends of its interval; an end may be infinite."""
HEIGHT = 0.17
"""Inches of a line."""
MARKERS = "os^"
"""By base model."""


def draw(measured: Measured, answers: Mapping[str, Answer], folder: Path) -> list[Path]:
    """Draw every figure, ``findings-NAME.svg`` and ``.png``.

    Args:
        measured: The numbers of the units.
        answers: What the panel says to each question.

    Returns:
        The ``.svg`` files.
    """
    figures = {
        "batch": _of_questions(answers, {"Q6": "reward of n = 4 with more problems − that of larger n"}, REWARD),
        "best": _of_questions(answers, {"Q7": "best@4 per octave of n", "Q8": "worst@4 per octave of n"}, 0.005),
        "difficulty": _of_difficulty(measured),
        "epochs": _of_epochs(measured),
        "failures": _of_failures(measured),
    }
    for name, figure in figures.items():
        save(figure, folder / f"findings-{name}")
    return [folder / f"findings-{name}.svg" for name in figures]


def draw_protocols(measured: Measured, path: Path) -> None:
    """Draw n* at C_max/8 and at C_max under each protocol, a line for each unit, and their mean."""
    plt = pyplot()
    figure, axes = plt.subplots(1, len(PROTOCOLS), figsize=(7.2, 3.0), sharey=True, layout="constrained")
    for axis, (protocol, title), question in zip(axes, PROTOCOLS.items(), ("Q1", "Q2", "Q3"), strict=True):
        _protocol(axis, measured, protocol)
        axis.set_title(title, fontsize=9)
        shift = _mean(
            {(unit.problem_set, unit.base_seed): measured[unit.name]["questions"][question] for unit in UNITS}
        )
        low, high = shift.interval
        axis.set_xlabel(f"{signed(shift.value, 2)} octaves ({signed(low, 2)} to {signed(high, 2)})", fontsize=9)
        axis.set_xticks([0, 1], ["C_max/8", "C_max"])
        axis.set(xlim=(-0.4, 1.4), ylim=(0.8, 5.2))
        axis.grid(axis="y", alpha=0.3)
    axes[0].set_yticks(range(1, 6), [str(2**k) for k in range(1, 6)])
    axes[0].set_ylabel("n*")
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(
        handles,
        labels,
        loc="outside lower center",
        ncols=5,
        fontsize=8,
        frameon=False,
        title_fontsize=8,
        title="Each unit with its 95 % interval (posterior), a marker for each base model, and their mean with its "
        "95 % interval (t).\nIn octaves: the mean of the units' posterior-median shifts, "
        "not the difference of the diamonds",
    )
    save(figure, path)


def _protocol(axis: Any, measured: Measured, protocol: str) -> None:
    colours = {setting: COLOURS[k % len(COLOURS)] for k, setting in enumerate(_settings())}
    pairs = {}
    for k, unit in enumerate(UNITS):
        own = np.array(measured[unit.name]["vertices"][protocol][:2])
        pairs[unit.problem_set, unit.base_seed] = own[:, 0]
        axis.errorbar(
            np.arange(2) + 0.025 * (k - (len(measured) - 1) / 2),
            own[:, 0],
            np.abs(own[:, 1:] - own[:, :1]).T,
            fmt=f"{MARKERS[unit.base_seed]}-",
            markersize=4,
            linewidth=1.2,
            alpha=0.8,
            capsize=2,
            color=colours[unit.problem_set],
            label=None if unit.base_seed else unit.problem_set,
        )
    means = [over_units({key: float(pair[side]) for key, pair in pairs.items()}) for side in (0, 1)]
    values = np.array([mean.value for mean in means])
    ends = np.array([mean.interval for mean in means])
    axis.errorbar(
        [-0.28, 1.28],
        values,
        np.abs(ends.T - values),
        fmt="D",
        color="black",
        capsize=4,
        label=f"mean of {len(pairs)} units",
    )


def _of_questions(answers: Mapping[str, Answer], titles: Mapping[str, str], least: float) -> Any:
    """Numbers of units beside each other, one panel for each question, with the least effect that counts."""
    lines = {name: _by_setting(answers[name].numbers) for name in titles}
    figure, axes = _axes(len(titles), max(map(len, lines.values())))
    for axis, (name, title) in zip(axes, titles.items(), strict=True):
        _forest(axis, lines[name], answers[name].estimate)
        axis.axvspan(-least, least, color="0.9", zorder=0)
        axis.axvline(0, color="0.6", linewidth=0.8)
        axis.set_xlabel(title)
    return figure


def _of_difficulty(measured: Measured) -> Any:
    """n* of every unit at C_max, tuned per n, by setting."""
    vertices = {(unit.problem_set, unit.base_seed): measured[unit.name]["vertices"]["tuned"][1] for unit in UNITS}
    lines = _by_setting(vertices)
    figure, (axis,) = _axes(1, len(lines))
    _forest(axis, lines, _mean(vertices))
    axis.set_xticks(range(1, 6), [str(2**k) for k in range(1, 6)])
    axis.set(xlim=(0.9, 5.1), xlabel="n* at C_max = 65,536 rollouts, each n at its best rate")
    return figure


def _of_epochs(measured: Measured) -> Any:
    """Epochs of the smaller n after which the larger leads, one panel for each pair."""
    pairs = next(iter(measured.values()))["crossings"]
    figure, axes = _axes(len(pairs), len(measured))
    for k, (axis, pair) in enumerate(zip(axes, pairs, strict=True)):
        last = log2(pair["last"])
        lines = [
            (name, [_octaves(own["crossings"][k][end]) for end in ("epochs", "low", "high")])
            for name, own in measured.items()
        ]
        _forest(axis, lines, None, end=last + 0.5)
        axis.axvline(last, color="0.6", linewidth=0.8)
        axis.set_xlim(log2(pair["first"]) - 0.5, last + 1)
        ticks = range(round(log2(pair["first"])), round(last) + 1, 2)
        axis.set_xticks(ticks, [str(2**tick) for tick in ticks])
        axis.set_title(f"{pair['few']} → {pair['many']}", fontsize=9)
    figure.supxlabel("epochs of the smaller n; right of the line: not within the data", fontsize=9)
    return figure


def _octaves(epochs: float | None) -> float:
    return inf if epochs is None else log2(epochs)


def _of_failures(measured: Measured) -> Any:
    """Share of runs that collapsed or never took off, by n and factor on the √B rule."""
    counted = failures_by_cell(measured)
    figure, (axis,) = _axes(1, 10)
    factors = sorted({factor for _, factor in counted})
    for k, factor in enumerate(factors):
        own = {n: cell for (n, each), cell in counted.items() if each == factor}
        at = np.array([log2(n) for n in own]) + 0.12 * (k - (len(factors) - 1) / 2)
        shares = np.array([cell[2] / cell[0] for cell in own.values()])
        ends = np.array([clopper_pearson(cell[2], cell[0]) for cell in own.values()])
        axis.errorbar(
            at,
            shares,
            np.abs(ends.T - shares),
            fmt="o",
            markersize=4,
            capsize=2,
            color=COLOURS[k],
            label=f"× {factor:g}",
        )
    axis.set_xticks(range(1, 6), [str(2**k) for k in range(1, 6)])
    axis.set(xlabel="n", ylabel="share of runs that fail", ylim=(-0.03, 1.03))
    handles, labels = axis.get_legend_handles_labels()
    figure.legend(
        handles,
        labels,
        loc="outside upper center",
        ncols=3,
        frameon=False,
        fontsize=8,
        title_fontsize=8,
        title="factor on the rate of the √B rule",
    )
    return figure


def _axes(count: int, lines: int) -> tuple[Any, Any]:
    """A figure of panels beside each other, as high as its lines need."""
    size = (7.2, 1.0 + HEIGHT * (lines + 1))
    figure, axes = pyplot().subplots(1, count, figsize=size, sharey=True, layout="constrained", squeeze=False)
    return figure, axes[0]


def _forest(axis: Any, lines: Sequence[Line], mean: Estimate | None, *, end: float = inf) -> None:
    """Numbers with their intervals from top to bottom, and their mean below.

    Args:
        end: Where what is infinite is drawn, with an arrow.
    """
    settings = _settings()
    for k, (name, number) in enumerate(lines):
        value, low, high = (min(each, end) for each in number)
        colour = COLOURS[settings.index(name.rpartition("-")[0])]
        axis.plot([min(low, end), high], [-k, -k], color=colour, linewidth=1.2, alpha=0.8)
        axis.plot(value, -k, marker="o" if value < end else ">", markersize=4, color=colour)
    labels = [name for name, _ in lines]
    if mean:
        axis.plot(mean.interval, [-len(lines)] * 2, color="black")
        axis.plot(mean.value, -len(lines), marker="D", markersize=5, color="black")
        labels.append("mean, 95 %")
    axis.set_yticks([-k for k in range(len(labels))], labels, fontsize=8)
    axis.set_ylim(0.5 - len(labels), 0.5)
    axis.tick_params(labelsize=8)
    axis.xaxis.label.set_size(9)
    axis.grid(axis="x", alpha=0.3)


def _mean(numbers: Mapping[tuple[str, int], Sequence[float]]) -> Estimate:
    """The mean of the numbers of units, whatever the intervals that each of them has."""
    return over_units({unit: float(own[0]) for unit, own in numbers.items()})


def _by_setting(numbers: Mapping[tuple[str, int], Sequence[float]]) -> list[Line]:
    """Lines of units, those of one setting below each other."""
    order = _settings()
    units = sorted(numbers, key=lambda unit: (order.index(unit[0]), unit[1]))
    return [(f"{setting}-{base}", numbers[setting, base]) for setting, base in units]


def _settings() -> list[str]:
    return list(dict.fromkeys(unit.problem_set for unit in UNITS))
