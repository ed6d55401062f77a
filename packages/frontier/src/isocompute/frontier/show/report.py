"""One self-contained HTML page about a fitted sweep: the answer first, then what it rests on."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from jinja2 import Environment, StrictUndefined

from ..answers.fitted import Fitted
from ..answers.results import Fits
from ..answers.summary import set_of, statements
from ..contract.files import write_text
from ..data.units import amount
from ..errors import MEANING, FrontierError
from ..posterior.decision import Decision

OPTIONAL_FIGURES = {
    "b_p_star": "How often each number of problems per batch is best",
    "trade": "Rollouts per problem against problems per batch, at one batch",
    "sensitivity": "What another n or B_p would cost",
    "gap": "Train minus validation",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table of the page.

    Attributes:
        head: Titles of the columns.
        rows: Text, one row each.
    """

    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A section of the page; what it has not is left out.

    Attributes:
        figure: A picture as a data URI, with what it shows.
        lines: A list.
    """

    title: str
    text: str = ""
    figure: tuple[str, str] | None = None
    table: Table | None = None
    lines: tuple[str, ...] = ()

    @property
    def anchor(self) -> str:
        """Where links to it point."""
        return "".join(c if c.isalnum() else "-" for c in self.title.lower())


def write_report(fits: Fits, folder: str | Path, *, fitted: Fitted | None = None) -> Path:
    """Write ``report.html`` beside the figures; the same fits give the same bytes.

    Args:
        folder: Where the figures are and the report goes.
        fitted: The posterior of the sweep, whose answer the page begins with.

    Raises:
        FrontierError: The folder cannot be written to.
    """
    folder = Path(folder)
    sections = [*([] if fitted is None else _decided(fitted, folder)), *_separate(fits, folder)]
    template = files(__package__).joinpath("report.html").read_text()
    page = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True).from_string(
        template
    )
    text = page.render(
        title=f"{fits.metric} against {fits.unit}", sections=sections,
        answer=[] if fitted is None else fitted.answer().lines(),
    )  # fmt: skip
    return write_text(folder / "report.html", text + "\n", error=FrontierError)


def _decided(fitted: Fitted, folder: Path) -> list[Section]:
    decision = fitted.decide(fitted.largest)
    return [
        Section(
            title="The decision",
            text="Expected regret is what a setting loses on average to the best one. All at "
            f"{amount(decision.compute)} {fitted.unit}; the reward is of a run that does not fail, with its interval.",
            figure=_image(folder / "decision.png", "Expected regret by n, and n* over compute"),
            table=options_table(decision),
        ),
        Section(
            title="Runs",
            text="Every run was judged before the fit.",
            table=Table(
                head=("run", "what it is", "evidence"),
                rows=tuple((h.name, ", ".join(sorted(h.kinds)), h.evidence) for h in fitted.prepared.health),
            ),
            lines=fitted.prepared.notes,
        ),
    ]


def options_table(decision: Decision) -> Table:
    """The settings at a budget."""
    head = ("n", "B_p", "learning rate", "group", "reward", "95 %", "regret", "P(best)", "P(fails)", "of its data")
    rows = tuple(
        (
            str(o.cell.rollouts_per_problem), str(o.cell.problems_per_batch),
            f"{o.cell.learning_rate:.3g}" if o.cell.learning_rate else "", o.cell.group, f"{o.reward:.3f}",
            f"{o.interval[0]:.3f} to {o.interval[1]:.3f}", f"{o.regret:.4f}", f"{o.probability_best:.0%}",
            f"{o.failure:.0%}", f"{o.reach:.2g} ×",
        )
        for o in decision.options
    )  # fmt: skip
    used = [k for k in range(len(head)) if any(row[k] for row in rows)]
    return Table(head=tuple(head[k] for k in used), rows=tuple(tuple(row[k] for k in used) for row in rows))


def _separate(fits: Fits, folder: Path) -> list[Section]:
    """What each curve says alone."""
    found = [
        Section(
            title="Curves, each fitted alone", table=_curves(fits),
            figure=_image(folder / "curves.png", "Evaluations and fitted curves"),
        ),
    ]  # fmt: skip
    if fits.fitted:
        found += [
            Section(title="Envelope", text="The best reward at each budget, over the compute that was measured.",
                    figure=_image(folder / "frontier.png", "Envelope of the curves"), table=_n_star(fits)),
            Section(title="How often each n is best", figure=_image(folder / "n_star.png", "How often each n is best"),
                    lines=tuple(statements(fits))),
        ]  # fmt: skip
        for name, title in OPTIONAL_FIGURES.items():
            image = _image(folder / f"{name}.png", title)
            found += [Section(title=title, figure=image)] if image else []
    caveats = [f"{c.curve.label}: {MEANING[flag]}" for c in fits.curves for flag in c.flags]
    caveats += [f"n*(C): {MEANING[flag]}" for flag in fits.n_star.flags]
    return [*found, Section(title="Caveats of the separate fits", lines=tuple(caveats) or ("none",))]


def _image(path: Path, text: str) -> tuple[str, str] | None:
    if not path.exists():
        return None
    return f"data:image/png;base64,{base64.b64encode(path.read_bytes()).decode()}", text


def _curves(fits: Fits) -> Table:
    rows: list[tuple[str, ...]] = []
    for c in fits.curves:
        head = (c.curve.label, str(c.curve.problems_per_batch), str(c.curve.seeds))
        if c.parameters is None or c.asymptote_interval is None:
            rows.append((*head, "no fit", c.reason, "", "", "", ""))
            continue
        low, high = c.asymptote_interval
        gaps = ["—" if g is None else f"{g:+.3f}" for g in (c.records_gap, c.smoothed_records_gap)]
        profile = "—" if c.profile is None else f"{c.profile.interval[0]:.3f} to {c.profile.interval[1]:.3f}"
        rows.append(
            (*head, c.parameters.form, f"{c.parameters.asymptote:.3f}", f"{low:.3f} to {high:.3f}", profile, *gaps)
        )
    return Table(
        head=(
            "curve",
            "B_p",
            "seeds",
            "form",
            "levels off at",
            "95 %",
            "95 %, profile",
            "records would say",
            "smoothed",
        ),
        rows=tuple(rows),
    )


def _n_star(fits: Fits) -> Table:
    best_in = "best in, within-run" if fits.within_run else "best in"
    return Table(
        head=(fits.unit, "n*", best_in, "95 % set", "reward"),
        rows=tuple(
            (amount(cell.compute), str(cell.rollouts_per_problem), f"{cell.probability:.0%} of {cell.competing} n",
             set_of(cell.n_set), f"{cell.reward:.3f}")
            for cell in fits.best_cells()
        ),
    )  # fmt: skip
