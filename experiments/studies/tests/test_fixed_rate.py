"""The study of one learning rate or the best: a cell from nothing, what is read off tables, and what decides."""

from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest

from experiments.studies.fixed_rate import cells, page
from experiments.studies.fixed_rate.reading import (
    LAST,
    RATES,
    SETS,
    Key,
    Reading,
    Rewards,
    at_best_rate,
    at_rate,
    highest,
    rewards_of,
)
from experiments.studies.panel.prepare import INPUTS
from experiments.studies.panel.statistics import Estimate, Verdict
from experiments.studies.panel.study import Unit

BASE = 0.1
GRID = cells.GRID["easy"]


def table(reward: Callable[[int, float, int], float]) -> pl.DataFrame:
    """Every run of a unit, by n, rate and rollouts; the same at both evaluations up to a budget."""
    rows = [
        {
            "rollouts_per_problem": n,
            "learning_rate": rate,
            "rollouts": at,
            "avg_at_4": reward(n, rate, at) if at else BASE,
        }
        for n, rate in GRID
        for at in (0, 6144, 8192, 12288, 16384, 49152, 65536)
    ]
    return pl.DataFrame(rows)


def parabola(n: int, top: float) -> float:
    return 0.6 - 0.02 * (n.bit_length() - 1 - top) ** 2


PINNED = Reading()


def units(*runs: Callable[[int, float, int], float], reading: Reading = PINNED) -> dict[Key, Rewards]:
    return {("easy", base): rewards_of(table(reward), reading) for base, reward in enumerate(runs)}


def moves(n: int, rate: float, at: int) -> float:
    """From n = 4 to 16 at 2.5e-4, where n = 2 fails; not at half the rate, which is better."""
    if rate == RATES[2]:
        return BASE if n == 2 else parabola(n, 2 + 2 * (at > 16384))
    return parabola(n, 2) + {RATES[0]: -0.05, RATES[1]: 0.2, RATES[3]: -0.3}[rate]


def test_n_star_moves_at_one_rate_and_not_at_the_best_as_the_rewards_do() -> None:
    found = units(moves, moves)
    assert [each.fixed for each in found.values()] == [2, 2]
    assert at_rate(found, PINNED) == pytest.approx({("easy", 0): 2, ("easy", 1): 2})
    assert at_rate(found, PINNED, 0) == pytest.approx({("easy", 0): 0, ("easy", 1): 0}, abs=1e-9)
    assert at_best_rate(found, PINNED) == pytest.approx({("easy", 0): 0, ("easy", 1): 0}, abs=1e-9)
    rough = Reading(top=highest)
    assert at_rate(units(moves, moves, reading=rough), rough) == {("easy", 0): 2, ("easy", 1): 2}


def mean(value: float) -> Estimate:
    return Estimate(value=value, error=0.1, freedom=6, units=7)


@pytest.mark.parametrize(
    ("fixed", "best", "difference", "verdict"),
    [
        (1.0, 0.0, 1.0, Verdict.SUPPORTED),
        (1.0, 0.4, 0.6, Verdict.UNDECIDED),
        (1.0, 0.0, 0.2, Verdict.UNDECIDED),
        (0.4, 0.0, 0.4, Verdict.UNDECIDED),
        (0.0, 0.0, 0.0, Verdict.CONTRADICTED),
        (1.0, 1.0, 0.0, Verdict.CONTRADICTED),
    ],
)
def test_the_sentence_is_decided_by_both_readings_and_their_difference(
    fixed: float, best: float, difference: float, verdict: Verdict
) -> None:
    assert page.decided(mean(fixed), mean(best), mean(difference)) is verdict
    assert page.decided(mean(fixed), None, None) is Verdict.UNDECIDED


@pytest.mark.slow("trains")
def test_a_cell_is_trained_from_nothing_and_found_by_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cells, "INPUTS", INPUTS)
    monkeypatch.setitem(cells.SETTINGS, "sampler", "transformers")
    monkeypatch.setitem(cells.SETTINGS, "sweep", {"rollouts": 96, "evaluate_every": 32})
    monkeypatch.setitem(cells.GRID, "easy", [(2, 1.25e-4)])
    unit = Unit(task="chains", problem_set="easy", base_seed=0)
    (line,) = cells.run(tmp_path / "work", tmp_path / "results", [unit])
    assert "0 left" in line
    rows = cells.read(unit, tmp_path / "results")
    assert rows["rollouts"].to_list() == [0, 32, 64, 96]
    assert rows["run_id"].n_unique() == 1
    assert not cells.missing(unit, tmp_path / "results")
    # What is there is not trained again.
    assert list(cells.run(tmp_path / "work", tmp_path / "results", [unit])) == []
    monkeypatch.setattr(page, "UNITS", (unit,))
    assert "**1 of 1 cells" in page.text(tmp_path / "results")


def test_the_committed_tables_are_of_the_grid_and_the_page_is_made_of_them() -> None:
    for path in cells.RESULTS.glob("*.csv"):
        (unit,) = (unit for unit in cells.UNITS if unit.name == path.stem)
        rows = cells.read(unit)
        runs = rows.group_by(cells.KEYS).agg(pl.col("run_id").n_unique(), pl.col("rollouts").max(), pl.len())
        assert set(runs.select(cells.KEYS).iter_rows()) <= set(cells.GRID[unit.problem_set])
        assert set(runs["run_id"]) == {1}
        assert rows["run_id"].n_unique() == len(runs)
        ended = runs.filter(pl.col("rollouts") == LAST)
        assert len(ended) + rows.filter("diverged")["run_id"].n_unique() == len(runs)
    assert page.text(cells.RESULTS) == page.PAGE.read_text()
    assert set(SETS) == {"hard", "easy"}
