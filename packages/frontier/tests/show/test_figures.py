from pathlib import Path

import numpy as np
import polars as pl
import pytest
from isocompute.frontier import Fit, PaperConfig, fit_as_paper
from isocompute.frontier.show.drawing import line_styles
from isocompute.frontier.show.paper import paper_figures

from ..conftest import evals, quick

pytestmark = pytest.mark.slow("every figure")


def joint(table: pl.DataFrame) -> pl.DataFrame:
    """Every n with two B_p."""
    return pl.concat([table.with_columns(problems_per_batch=pl.lit(size)) for size in (8, 32)])


@pytest.fixture(scope="module")
def fit() -> Fit:
    """Two n, and one all of whose runs collapsed."""
    table, late = evals(), pl.col("rollouts") > 8192
    other = {"rollouts_per_problem": pl.lit(64, pl.Int64), "run_id": "lost " + pl.col("run_id")}
    lost = table.filter(rollouts_per_problem=16).with_columns(**other, avg_at_4=pl.col("avg_at_4") * (1 - late))
    return quick(pl.concat([table, lost]))


def names(folder: Path) -> set[str]:
    return {p.stem for p in folder.glob("*.svg")}


def test_the_same_fit_is_drawn_the_same_and_without_a_date(fit: Fit, tmp_path: Path) -> None:
    for name in ("a", "b"):
        fit.report(tmp_path / name)
    assert names(tmp_path / "a") == {"curves", "frontier", "decision"}
    first = {p.name: p.read_bytes() for p in (tmp_path / "a").iterdir()}
    assert first == {p.name: p.read_bytes() for p in (tmp_path / "b").iterdir()}
    assert all(b"<dc:date>" not in content for content in first.values())


def test_a_report_has_the_setting_first_all_digits_below_and_problems_per_batch_where_they_differ(
    table: pl.DataFrame, tmp_path: Path
) -> None:
    # n = 4 with B_p = 32 and n = 16 with B_p = 8 are both batches of 128.
    traded = joint(table).filter(pl.col("rollouts_per_problem") * pl.col("problems_per_batch") == 128)
    fit = quick(traded.with_columns(learning_rate=pl.col("rollouts_per_problem").sqrt() * pl.lit(2.83885e-5)))
    fit.report(tmp_path, facts=[("made", "today")])
    assert names(tmp_path) == {"curves", "frontier", "decision", "b_p_star", "trade"}
    page = (tmp_path / "report.html").read_text()
    assert (page.count("data:image/svg"), "<script" in page) == (6, False)
    first, _, below = page.partition("<details")
    chosen = fit.best(fit.largest)
    low, high = chosen.interval
    assert "n = 16, B_p = 8, learning rate 0.000114, for " in first
    assert f"{chosen.reward:.3f} (95\u00a0%: {low:.3f} to {high:.3f})" in first
    assert "<dd>today</dd>" in first
    assert "<td>0.000113554</td>" in below


def test_figures_draw_on_axes_of_a_notebook_and_leave_its_settings_alone(fit: Fit) -> None:
    import matplotlib as mpl
    from matplotlib.figure import Figure

    before, backend = dict(mpl.rcParams), mpl.get_backend()
    axes = Figure().subplots()
    assert fit.plot_frontier(ax=axes) is axes
    for draw in (fit.plot_frontier, fit.plot_regret, fit.plot_n_star):
        assert draw().get_title()
    assert (dict(mpl.rcParams), mpl.get_backend()) == (before, backend)


def test_regret_is_drawn_at_the_budget_that_is_decided_about(fit: Fit) -> None:
    for budget in (None, fit.largest / 4):
        decided = fit.decide(budget or fit.largest)
        axes = fit.plot_regret(budget=budget)
        thick, ring = axes.lines[0], axes.lines[1]
        assert list(thick.get_ydata()) == [
            min(each.regret for each in decided.options if each.cell.rollouts_per_problem == n) for n in (4, 16, 64)
        ]
        assert (list(ring.get_xdata()), list(ring.get_ydata())) == (
            [decided.chosen.cell.rollouts_per_problem],
            [decided.chosen.regret],
        )


def test_the_paper_s_figures(table: pl.DataFrame, tmp_path: Path) -> None:
    assert paper_figures(fit_as_paper(table.head(1)), tmp_path) == []
    paper_figures(fit_as_paper(joint(table), PaperConfig(unit="tokens")), tmp_path)
    assert names(tmp_path) == {"curves", "frontier", "n_star", "b_p_star"}


def test_line_styles_differ_in_greyscale_by_lightness_marker_and_line() -> None:
    found = list(line_styles([4, 8, 16, 32, 64, 128, 256, 512]).values())
    grey = [float(np.dot(look["color"][:3], (0.299, 0.587, 0.114))) for look in found]
    assert (np.diff(grey) < 0).all()
    assert len({look["marker"] for look in found}) == len({str(look["linestyle"]) for look in found}) == 8
