"""One self-contained HTML page about a fitted sweep: the answer first, then the evidence for it."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined

from ..answers.answer import Answer, Standing, as_run, called, interval, rounded
from ..answers.fitted import Fitted, conflicts
from ..contract.files import write_text
from ..data.reading import short
from ..errors import FrontierError
from ..posterior.decision import Decision
from ..posterior.posterior import AGREED
from .drawing import (
    PROBLEMS,
    alone,
    curve_panels,
    decision_figure,
    draw_best,
    draw_frontier,
    draw_regret,
    save,
    trade_figure,
    write_svg,
)

SYMBOLS = (
    "n: rollouts (responses) per problem. B_p: problems per batch. n*: the n that is expected to lose least. "
    "P(best): how likely a setting is the best of those that were run."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table on the page."""

    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A section of the page; missing parts are omitted.

    Attributes:
        figures: Images as data URIs, each with a description.
        wide: Whether an image is so wide that phones must scroll it.
        folded: Whether the table is shown only on request.
    """

    title: str
    text: str = ""
    figures: tuple[tuple[str, str], ...] = ()
    wide: bool = False
    table: Table | None = None
    lines: tuple[str, ...] = ()
    folded: bool = False

    @property
    def anchor(self) -> str:
        """Target for links to the section."""
        return "".join(c if c.isalnum() else "-" for c in self.title.lower())


def write_report(
    fitted: Fitted,
    folder: str | Path,
    *,
    budget: float | None = None,
    facts: Sequence[tuple[str, str]] = (),
    further: Sequence[Section] = (),
) -> Path:
    """Write ``report.html`` and its figures as SVG and PNG; equal arguments give equal bytes.

    Args:
        budget: The answer's budget, in the unit of the fit; by default the largest that was measured.
        facts: What distinguishes this report from others besides the runs, such as its date and the commit.
        further: Sections after those of the fit.

    Raises:
        FrontierError: The folder cannot be written to.
    """
    folder = Path(folder)
    answer = fitted.answer(budget)
    language = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    page = language.from_string(files(__package__).joinpath("report.html").read_text())
    text = page.render(
        title=answer.headline(),
        setting=_setting(answer),
        rate=answer.decision.chosen.cell.learning_rate and as_run(answer.decision.chosen.cell.learning_rate),
        symbols=f"{SYMBOLS} {fitted.metric}: {_of_metric(fitted.metric)}.",
        facts=[*fitted.about, *facts],
        answer=answer.lines(),
        sections=[*_sections(fitted, answer.decision, folder), *further],
    )
    return write_text(folder / "report.html", text + "\n", error=FrontierError)


def _setting(answer: Answer) -> str:
    """The chosen setting in symbols, with the reward it reaches if its curve fits."""
    chosen, budget = answer.decision.chosen, f"{short(answer.decision.compute)} {answer.unit}"
    rate = f", learning rate {chosen.cell.learning_rate:.3g}" if chosen.cell.learning_rate else ""
    said = f"{called(chosen.cell, several=True)}{rate}, for a budget of {budget}"
    if answer.standing is Standing.MISFIT:
        return f"{said}."
    return f"{said}: {answer.metric} {chosen.reward:.3f} (95 %: {interval(chosen.interval, digits=3)})."


def _of_metric(metric: str) -> str:
    """A metric in words, if its name is one of ours."""
    kind, _, count = metric.partition("_at_")
    # The mean is the same quantity for any number of responses.
    of = {"avg": "mean score of the", "best": f"best score of {count}", "worst": f"worst of {count}"}
    return f"{of[kind]} responses to a problem" if kind in of and count.isdigit() else "the reward"


def _sections(fitted: Fitted, decision: Decision, folder: Path) -> Iterator[Section]:
    """The sections of a fit; this saves their figures."""
    budget = decision.compute
    save(decision_figure(fitted, budget=budget), folder / "decision")
    panels = (draw_regret, "Expected regret of each n at some budgets"), (draw_best, "n* over compute, over P(best)")
    yield Section(
        title="The decision",
        text="Expected regret is what a setting loses on average to the best one. All at "
        f"{short(budget)} {fitted.unit}; the reward is of a run that does not fail, with its interval; "
        "learning rates are as they ran, to be copied.",
        figures=tuple((_embedded(alone(draw, fitted, budget=budget)), text) for draw, text in panels),
        table=options_table(decision),
    )
    if len({c.problems_per_batch for c in fitted.cells}) > 1:
        text = "Expected regret by problems per batch, and B_p* over compute"
        drawn = [_figure(decision_figure(fitted, PROBLEMS, budget=budget), folder / "b_p_star", text)]
        batches = {c.batch_rollouts for c in fitted.cells}
        if len(batches) == 1 and fitted.unit == "rollouts":
            text = "Rollouts per problem against problems per batch, at one batch"
            drawn.append(_figure(trade_figure(fitted, batches.pop()), folder / "trade", text))
        yield Section(title="Problems per batch", figures=tuple(drawn), wide=True)
    frontier = alone(draw_frontier, fitted, size=(6.2, 3.9))
    yield Section(
        title="Curves",
        text="Lines are means of the posterior, bands 95 % intervals of a setting over seeds; a marker is an "
        "evaluation, its shape the run.",
        figures=(
            _figure(frontier, folder / "frontier", "Curves, and the setting chosen at each budget"),
            _figure(curve_panels(fitted), folder / "curves", "Every setting with its runs"),
        ),
        wide=True,
    )
    rates = fitted.best_rates(fitted.largest)
    yield Section(
        title="What it rests on",
        lines=(
            *([] if rates is None else [rates.line()]),
            f"Before the data, seeds were expected to differ by "
            f"{100 * fitted.posterior.model.priors.seed_amplitude:.0f} % of the gain.",
            f"Chains agree to a split R̂ of {fitted.posterior.split_r_hat:.2f} (1 where they agree perfectly; above "
            f"{AGREED} they do not).",
            *(f"Against expectation: {line}." for line in conflicts(fitted)),
        ),
    )
    yield Section(
        title="Runs",
        text="Every run was judged before the fit.",
        folded=True,
        lines=fitted.prepared.notes,
        table=Table(
            head=("run", "what it is", "evidence"),
            rows=tuple((h.name, ", ".join(sorted(h.kinds)), h.evidence) for h in fitted.prepared.health),
        ),
    )


def options_table(decision: Decision) -> Table:
    """The settings at a budget."""
    head = ("n", "P(best)", "regret", "reward", "95 %", "learning rate", "B_p", "group", "P(fails)", "times its data")
    batches = {o.cell.problems_per_batch for o in decision.options}
    rows = tuple(
        (
            str(o.cell.rollouts_per_problem),
            rounded(o.probability_best),
            f"{o.regret:.4f}",
            f"{o.reward:.3f}",
            f"{o.interval[0]:.3f} to {o.interval[1]:.3f}",
            as_run(o.cell.learning_rate) if o.cell.learning_rate else "",
            str(o.cell.problems_per_batch) if len(batches) > 1 else "",
            o.cell.group,
            f"{o.failure:.0%}",
            f"{o.reach:.2g} ×",
        )
        for o in decision.options
    )
    used = [k for k in range(len(head)) if any(row[k] for row in rows)]
    return Table(head=tuple(head[k] for k in used), rows=tuple(tuple(row[k] for k in used) for row in rows))


def _figure(figure: Any, path: Path, text: str) -> tuple[str, str]:
    """Save a figure; return its data URI and its description."""
    save(figure, path)
    return _uri(path.with_suffix(".svg").read_bytes()), text


def _embedded(figure: Any) -> str:
    """A data URI of a figure, without writing a file."""
    stream = io.BytesIO()
    write_svg(figure, stream)
    return _uri(stream.getvalue())


def _uri(svg: bytes) -> str:
    return f"data:image/svg+xml;base64,{base64.b64encode(svg).decode()}"
