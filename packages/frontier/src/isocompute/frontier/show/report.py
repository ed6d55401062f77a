"""One self-contained HTML page about a fitted sweep."""

from __future__ import annotations

import base64
from html import escape
from pathlib import Path

from ..answers.results import Fits
from ..answers.summary import set_of, statements
from ..contract.files import write_text
from ..data.units import amount
from ..errors import MEANING, FrontierError

STYLE = """
body{font:16px/1.55 system-ui,sans-serif;max-width:52rem;margin:2rem auto;padding:0 1rem;color:#1a202c}
h2{margin-top:2rem;border-bottom:1px solid #e2e8f0}img{max-width:100%}
table{border-collapse:collapse;margin:1rem 0;font-variant-numeric:tabular-nums}
td,th{padding:.3rem .8rem;text-align:right;border-bottom:1px solid #edf2f7}
td:first-child,th:first-child{text-align:left}
.caveat{background:#fffaf0;border-left:4px solid #c05621;padding:.4rem 1rem;margin:.4rem 0}
"""


OPTIONAL_FIGURES = {
    "b_p_star": "How often each number of problems per batch is best",
    "trade": "Rollouts per problem against problems per batch, at one batch",
    "sensitivity": "What another n or B_p would cost",
    "gap": "Train minus validation",
}


def write_report(fits: Fits, folder: str | Path) -> Path:
    """Write ``report.html`` beside the figures; the same fits give the same bytes.

    Args:
        folder: Where the figures are and the report goes.

    Raises:
        FrontierError: The folder cannot be written to.
    """
    folder = Path(folder)
    parts = [
        f"<h1>{escape(fits.metric)} against {escape(fits.unit)}</h1>",
        "<h2>Curves</h2>", _curves(fits), _image(folder / "curves.png", "Evaluations and fitted curves"),
    ]  # fmt: skip
    if fits.fitted:
        parts += [
            "<h2>Frontier</h2><p>The best reward at each budget, over the compute that was measured.</p>",
            _image(folder / "frontier.png", "Envelope of the curves"),
            _n_star(fits),
            _image(folder / "n_star.png", "How often each n is best"),
            _statements(fits),
        ]
        parts += [_titled(folder / f"{name}.png", title) for name, title in OPTIONAL_FIGURES.items()]  # fmt: skip
    parts += ["<h2>Caveats</h2>", _caveats(fits)]
    page = (
        '<!doctype html><html lang="en"><meta charset="utf-8"><title>IsoCompute frontier</title>'
        f"<style>{STYLE}</style><body>{''.join(parts)}</body></html>\n"
    )
    return write_text(folder / "report.html", page, error=FrontierError)


def _table(head: tuple[str, ...], rows: list[tuple[object, ...]]) -> str:
    first = "".join(f"<th>{escape(h)}</th>" for h in head)
    rest = "".join("<tr>" + "".join(f"<td>{escape(str(v))}</td>" for v in row) + "</tr>" for row in rows)
    return f"<table><tr>{first}</tr>{rest}</table>"


def _image(path: Path, text: str) -> str:
    if not path.exists():
        return ""
    data = base64.b64encode(path.read_bytes()).decode()
    return f'<p><img alt="{escape(text)}" src="data:image/png;base64,{data}"></p>'


def _titled(path: Path, title: str) -> str:
    image = _image(path, title)
    return f"<h2>{escape(title)}</h2>{image}" if image else ""


def _curves(fits: Fits) -> str:
    rows: list[tuple[object, ...]] = []
    for c in fits.curves:
        head = (c.curve.label, c.curve.problems_per_batch, c.curve.seeds)
        if c.parameters is None or c.asymptote_interval is None:
            rows.append((*head, "no fit", c.reason, "", "", "", ""))
            continue
        low, high = c.asymptote_interval
        gaps = ["—" if g is None else f"{g:+.3f}" for g in (c.records_gap, c.smoothed_records_gap)]
        profile = "—" if c.profile is None else f"{c.profile.interval[0]:.3f} to {c.profile.interval[1]:.3f}"
        rows.append(
            (*head, c.parameters.form, f"{c.parameters.asymptote:.3f}", f"{low:.3f} to {high:.3f}", profile, *gaps)
        )
    return _table(
        ("curve", "B_p", "seeds", "form", "levels off at", "95 %", "95 %, profile", "records would say", "smoothed"),
        rows,
    )


def _n_star(fits: Fits) -> str:
    rows: list[tuple[object, ...]] = [
        (amount(cell.compute), cell.rollouts_per_problem, f"{cell.probability:.0%} of {cell.competing} n",
         set_of(cell.n_set), f"{cell.reward:.3f}")
        for cell in fits.best_cells()
    ]  # fmt: skip
    best_in = "best in, within-run" if fits.within_run else "best in"
    return _table((fits.unit, "n*", best_in, "95 % set", "reward"), rows)


def _statements(fits: Fits) -> str:
    return "<ul>" + "".join(f"<li>{escape(line)}</li>" for line in statements(fits)) + "</ul>"


def _caveats(fits: Fits) -> str:
    found = [(c.curve.label, MEANING[flag]) for c in fits.curves for flag in c.flags]
    found += [("n*(C)", MEANING[flag]) for flag in fits.n_star.flags]
    if not found:
        return "<p>None.</p>"
    return "".join(f'<p class="caveat"><b>{escape(subject)}</b>: {escape(meaning)}.</p>' for subject, meaning in found)
