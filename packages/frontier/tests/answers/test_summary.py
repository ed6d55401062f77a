"""What is printed of a fit: sets with their gaps, who competed, within-run, one n*."""

from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from isocompute.frontier import FitConfig, Fits, fit, prescribe
from isocompute.frontier.show.figures import n_star

EXP = FitConfig(form="exp", bootstrap=60)


def joined(table: pl.DataFrame) -> pl.DataFrame:
    """n = 4 and 64 alike, n = 16 far below."""
    own = table.filter(pl.col("rollouts_per_problem") == 4)
    return pl.concat(
        [
            own.with_columns(rollouts_per_problem=pl.lit(n), avg_at_4=pl.col("avg_at_4") - lower)
            for n, lower in ((4, 0.0), (16, 0.15), (64, 0.0))
        ]
    )


@pytest.fixture(scope="module")
def joint() -> Fits:
    """Three cells: n = 16 is best most often over both its B_p, n = 4 in the best cell."""
    compute = np.arange(1, 21) * 1024
    rows = pl.concat(
        pl.DataFrame({"rollouts": compute, "avg_at_4": 0.5 - 0.2 * np.exp(-compute / 4000)}).with_columns(
            rollouts_per_problem=pl.lit(n), problems_per_batch=pl.lit(size), seed=pl.lit(0), problem_set=pl.lit("easy"),
            split=pl.lit("validation"), questions=pl.lit(300), samples=pl.lit(4),
        )
        for n, size in ((4, 8), (16, 8), (16, 16))
    )  # fmt: skip
    fits = fit(rows, EXP)
    share = {(4, 8): 0.4, (16, 8): 0.3, (16, 16): 0.3}
    cells = tuple(share[c.curve.rollouts_per_problem, c.curve.problems_per_batch] for c in fits.fitted)
    return replace(fits, frontier=tuple(replace(point, shares=cells) for point in fits.frontier))


def test_the_95_percent_set_has_its_gaps(table: pl.DataFrame) -> None:
    fits = fit(joined(table), EXP)
    last = fits.n_star_table().row(-1, named=True)
    assert last["n_set"] == [4, 64]
    assert last["competing"] == 3
    assert "{4, 64}" in fits.summary()
    assert "of 3 n" in fits.summary()
    assert fits.frontier_table()["n_set"][-1].to_list() == [4, 64]


def test_an_n_competes_from_its_first_evaluation_on(table: pl.DataFrame) -> None:
    late = table.filter((pl.col("rollouts_per_problem") == 4) | (pl.col("rollouts") >= 8 * 1024))
    competing = fit(late, EXP).n_star_table()["competing"]
    assert (competing[0], competing[-1]) == (1, 2)
    ended = table.filter((pl.col("rollouts_per_problem") == 4) | (pl.col("rollouts") <= 8 * 1024))
    assert fit(ended, EXP).n_star_table()["competing"].to_list() == [2] * 5


def test_n_star_of_a_joint_sweep_is_that_of_the_best_cell_everywhere(joint: Fits) -> None:
    assert joint.n_star_table()["n"].unique().to_list() == [4]
    assert joint.frontier_table()["n"].unique().to_list() == [4]
    axis = n_star(joint).axes[0]
    line = next(line for line in axis.lines if str(line.get_label()).startswith("n*"))
    names = [text.get_text() for text in axis.get_yticklabels()]
    assert {names[int(y)] for y in line.get_ydata()} == {"4"}


def test_one_seed_says_within_run_wherever_a_percentage_stands(table: pl.DataFrame) -> None:
    one = fit(table.filter(pl.col("seed") == 0), EXP)
    assert "best in, within-run" in one.summary()
    assert "within-run and leave out how seeds differ" in one.summary()
    allocation = prescribe(one, budget=20_000)
    assert "of refits, within-run," in allocation.summary()
    assert "best in, within-run" in allocation.table()
    colour_bar = n_star(one).axes[1].get_ylabel()
    assert "within-run" in colour_bar
    two = fit(table, EXP)
    assert "within-run" not in two.summary()
    assert "within-run" not in prescribe(two, budget=20_000).summary()
    assert "of refits against 1 other, expected" in prescribe(two, budget=20_000).summary()
