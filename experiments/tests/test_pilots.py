"""From the settings of a sweep to its cells: learning rates that are declared, and those that are searched."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import sqrt
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.errors import ExperimentError
from experiments.running import cell_folder
from experiments.running.cells import Cell, Design, Generation, Rates
from experiments.running.pilots import (
    Pilot,
    Score,
    Search,
    Trial,
    Tried,
    extension,
    find,
    first_score,
    rates_figure,
    sampled,
    tried,
)
from experiments.settings import Preset, load
from experiments.stages import plan

from .made import PARAMS, evaluated, first_evaluation, keep, origin_of, passed, smoke, spent

pytestmark = pytest.mark.usefixtures("here")

BASE = Score(score=0.3, standard_error=0.01)
SCORES = st.floats(0.0, 1.0)


def line(rate: float, score: float | None, *, error: float = 0.01, diverged: int = 0, collapsed: int = 0) -> Tried:
    """One rate, of one seed."""
    failed = {"diverged": diverged, "collapsed": collapsed, "seeds": 1}
    return Tried(learning_rate=rate, score=score, standard_error=None if score is None else error, **failed)


def found(n: int, grid: list[Tried], *, size: int = 8) -> Search:
    """The search of some n."""
    return Search(grid=tuple(grid), rollouts_per_problem=n, problems_per_batch=size)


@st.composite
def grids(draw: st.DrawFn, least: int = 1) -> list[Tried]:
    """Grids of one ratio, some of whose rates diverged or collapsed, though not all of them diverged."""
    count = draw(st.integers(least, 6))
    failed = st.fixed_dictionaries({name: st.sampled_from([0, 0, 1]) for name in ("diverged", "collapsed")})
    lines = [line(1e-4 * 2**i, draw(SCORES), error=draw(st.floats(0.0, 0.1)), **draw(failed)) for i in range(count)]
    return lines if not all(each.diverged for each in lines) else [line(5e-5, draw(SCORES)), *lines[1:]]


SIZES = st.integers(1, 2048)
RATE = st.floats(1e-7, 1e-1)


def rates(rule: str, *points: tuple[int, int, float]) -> Rates:
    return Rates(rule=rule, found={(n, size): rate for n, size, rate in points})


@given(SIZES, SIZES, SIZES, SIZES, RATE)
def test_a_rule_scales_with_the_batch_and_gives_the_anchor_at_its_own(
    n: int, size: int, other: int, more: int, rate: float
) -> None:
    ratio = other * more / (n * size)
    for rule, factor in (("constant", 1.0), ("linear", ratio), ("sqrt", sqrt(ratio))):
        anchored = rates(rule, (n, size, rate))
        assert anchored.at(n, size) == rate
        assert anchored.at(other, more) == pytest.approx(rate * factor)


def test_each_b_p_has_its_own_rates_and_another_b_p_those_of_the_nearest() -> None:
    tuned = rates("tuned", (4, 8, 1e-4), (4, 32, 3e-4))
    assert [tuned.at(4, size) for size in (4, 8, 15, 17, 32, 64)] == [1e-4, 1e-4, 1e-4, 3e-4, 3e-4, 3e-4]
    # Between two n it is linear in the logarithms.
    assert rates("tuned", (4, 8, 1e-4), (64, 8, 1e-2)).at(16, 8) == pytest.approx(1e-3)


@given(st.dictionaries(SIZES, RATE, min_size=1, max_size=5), st.data())
def test_a_tuned_rate_is_given_exactly_and_another_is_that_of_its_neighbours_or_between(
    points: dict[int, float], data: st.DataObject
) -> None:
    n = data.draw(st.sampled_from(sorted(points)) | SIZES)
    rate = rates("tuned", *((each, 8, rate) for each, rate in points.items())).at(n, 8)
    near = [points[max(k for k in points if k <= n)]] if any(k <= n for k in points) else []
    near += [points[min(k for k in points if k >= n)]] if any(k >= n for k in points) else []
    assert min(near) <= rate <= max(near)


@pytest.mark.parametrize(
    ("lines", "edge", "further"),
    [
        # A rate that diverged beyond is no edge; one rate has no step.
        ([line(1e-4, 0.4), line(2e-4, 0.6), line(4e-4, None, diverged=1)], None, None),
        ([line(1e-4, 0.5)], "both", None),
        # The steps of a grid need not be equal: the one at the edge is repeated. Of a round grid it is round.
        ([line(1e-4, 0.5), line(2e-4, 0.5), line(1e-3, 0.6)], "highest", 5e-3),
        ([line(2.5e-4, 0.1), line(5e-4, 0.5)], "highest", 1e-3),
    ],
)
def test_a_grid_goes_on_by_one_step_beyond_its_best_edge(
    lines: list[Tried], edge: str | None, further: float | None
) -> None:
    assert found(4, lines).edge == edge
    assert extension(lines) == further


@given(grids())
def test_no_rate_as_good_is_passed_over(lines: list[Tried]) -> None:
    result = found(4, lines)
    stable = [each for each in lines if each.stable]
    assert result.chosen.stable == bool(stable)
    assert not result.chosen.diverged
    for each in stable:
        assert each.score is not None
        assert result.chosen.score is not None
        assert each.score <= result.chosen.score
        if each.score == result.chosen.score:
            assert each.learning_rate >= result.chosen.learning_rate


@given(grids(least=2))
def test_a_grid_goes_on_exactly_where_its_best_stable_rate_is_an_edge_or_there_is_none(lines: list[Tried]) -> None:
    further, rates = extension(lines), [each.learning_rate for each in lines]
    result = found(4, lines)
    assert (further is None) == (result.chosen.stable and result.edge is None)
    if further is not None:
        # Below where no rate is stable.
        below = not result.chosen.stable or result.edge == "lowest"
        assert further == pytest.approx(rates[0] ** 2 / rates[1] if below else rates[-1] ** 2 / rates[-2])


def trial(rate: float, *scores: float, error: float = 0.01, diverged: bool = False, every: int = 100) -> Trial:
    """A cell of 100 rollouts, evaluated at its end, or from its first ``every`` rollouts on."""
    made = {every * (i + 1): Score(score=score, standard_error=error) for i, score in enumerate(scores)}
    return Trial(learning_rate=rate, budget=100, evaluations=made, diverged=diverged)


@pytest.mark.parametrize(
    ("every", "scores", "diverged", "end"),
    [
        # At 10, 20, … 100 rollouts, of which 80, 90 and 100 are later than 75; each was sampled by itself.
        (10, (0.1, *[0.9] * 6, 0.4, 0.5, 0.6), False, (0.5, 0.01 / sqrt(3))),
        # Half way, or at three quarters, is no end.
        (50, (0.1, 0.6), False, (0.6, 0.01)),
        (25, (0.1, 0.1, 0.1, 0.6), False, (0.6, 0.01)),
        (10, (0.6, 0.4), True, (0.4, 0.01)),
        (10, (), True, None),
    ],
)
def test_a_trials_end_is_the_mean_of_the_last_quarter_of_its_budget_or_where_it_ended(
    every: int, scores: tuple[float, ...], diverged: bool, end: tuple[float, float] | None
) -> None:
    found = trial(1e-3, *scores, every=every, diverged=diverged).end()
    assert (found and (found.score, found.standard_error)) == (end and pytest.approx(end))


def test_the_binomial_error_counts_responses_or_the_questions_of_a_best_one() -> None:
    mean_of_all = sampled(0.2, questions=100, samples=4, metric="avg_at_4")
    assert mean_of_all.standard_error == pytest.approx(sqrt(0.2 * 0.8 / 400))
    best = sampled(0.2, questions=100, samples=4, metric="best_at_4")
    assert best.standard_error == pytest.approx(sqrt(0.2 * 0.8 / 100))


def test_rates_are_joined_over_seeds_lowest_first() -> None:
    low, high = tried([trial(2e-3, 0.5), trial(1e-3, 0.4), trial(1e-3, 0.6)], BASE)
    assert (low.learning_rate, low.score, low.seeds) == (1e-3, 0.5, 2)
    assert (high.learning_rate, high.score, high.seeds) == (2e-3, 0.5, 1)
    # Two seeds that differ by 0.2 say more than the sampling of each: sd 0.141 over the root of 2.
    assert low.standard_error == pytest.approx(0.1)
    assert high.standard_error == pytest.approx(0.01)


def test_an_end_below_the_base_by_more_than_its_noise_is_a_collapse() -> None:
    noise = 2 * sqrt(2) * 0.01
    (dip,) = tried([trial(1e-3, BASE.score - 0.9 * noise)], BASE)
    (fall,) = tried([trial(1e-3, BASE.score - 1.1 * noise)], BASE)
    assert (dip.collapsed, dip.stable) == (0, True)
    assert (fall.collapsed, fall.stable) == (1, False)
    # One of two seeds is enough, whatever their mean.
    (half,) = tried([trial(1e-3, 0.9), trial(1e-3, 0.1)], BASE)
    assert half.score is not None
    assert half.score > BASE.score
    assert (half.collapsed, half.stable) == (1, False)


def test_a_seed_that_diverged_makes_a_rate_unstable_with_or_without_a_score() -> None:
    late, early = tried([trial(1e-3, 0.5, diverged=True), trial(2e-3, diverged=True), trial(2e-3, 0.5)], BASE)
    assert (late.score, late.diverged, late.stable) == (0.5, 1, False)
    assert (early.score, early.diverged, early.stable) == (None, 1, False)


SETTING = "sweep.easy.learning_rate"


def design(preset: Preset) -> Design:
    """The set ``easy``."""
    return Design(preset=preset, sweep=preset.sweep["easy"], origin=origin_of(generation=Generation.of(preset)))


def declared(tmp_path: Path, **changes: Any) -> Preset:
    """``smoke``, whose set ``easy`` has a declared rate."""
    return smoke(tmp_path, {SETTING: {"rule": "sqrt", "learning_rate": 1.0e-6, **changes}})


def searched(tmp_path: Path, **changes: Any) -> Design:
    """The set ``easy`` of ``smoke``, with changes of its search."""
    return design(smoke(tmp_path, {f"{SETTING}.{name}": value for name, value in {"rollouts": 32, **changes}.items()}))


def test_every_cell_has_the_declared_rate_scaled_to_its_batch_and_there_are_no_pilots(tmp_path: Path) -> None:
    made = design(declared(tmp_path, batch_rollouts=32))
    rates = made.declared_rates()
    assert rates is not None
    cells = made.cells(rates)
    assert {cell.run.batch_rollouts for cell in cells} == {8, 16}
    for cell in cells:
        assert cell.learner.learning_rate == pytest.approx(1e-6 * sqrt(cell.run.batch_rollouts / 32))
    assert made.trials() == made.trials([1e-3]) == []
    assert design(load(PARAMS, "smoke")).declared_rates() is None


@pytest.mark.slow
def test_the_plan_has_no_row_of_pilots_and_names_the_rate_of_each_cell(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan.run(declared(tmp_path, batch_rollouts=16))
    lines = capsys.readouterr().out.splitlines()
    # Of the other set there is a search.
    assert [line.split()[0] for line in lines if " pilot " in line and "cells" in line] == ["hard"]
    first = next(i for i, line in enumerate(lines) if "learning rate" in line)
    # n, B_p, B, steps, rate, and two seeds of each.
    assert [line.split() for line in lines[first + 1 : first + 3]] == [
        ["2", "4", "8", "12", "7.07e-07", "2"],
        ["4", "4", "16", "6", "1e-06", "2"],
    ]
    evaluate = next(line for line in lines if line.startswith("easy     evaluate"))
    # Four cells of 96 rollouts and six, evaluated every 16 and 32, with four responses to each of 12 problems.
    assert f"{(4 * 6 + 6 * 3) * 12 * 4:,} rollouts" in evaluate


def test_every_cell_is_trained_at_each_factor_of_its_rate(tmp_path: Path) -> None:
    """A factor of 1 changes no rate, so that it changes no run either."""
    known = declared(tmp_path, batch_rollouts=8)
    sweep = known.sweep["easy"].model_copy(update={"rate_factors": (0.5, 1.0)})
    made = replace(design(known), sweep=sweep)
    rates = made.declared_rates()
    assert rates is not None
    both, alone = made.cells(rates), design(known).cells(rates)
    assert len(both) == 2 * len(alone)
    assert {cell.run_id for cell in alone} < {cell.run_id for cell in both}
    assert {cell.learner.learning_rate for cell in both if cell.run.batch_rollouts == 8} == {5e-7, 1e-6}


class Trained:
    """Writes cells as workers leave them; ``ends`` gives the score of a cell, None one that diverges at once."""

    def __init__(self, ends: Callable[[Cell], float | None]) -> None:
        self.ends = ends

    def __call__(self, cells: Sequence[Cell]) -> None:
        for cell in cells:
            folder, score = cell_folder.folder_of(cell), self.ends(cell)
            steps = 1 if score is None else cell.rollouts // cell.run.batch_rollouts
            charged = [spent(cell.run_id, step, rollouts=cell.run.batch_rollouts) for step in range(1, steps + 1)]
            evals = [evaluated(cell, 0, BASE.score, 100)]
            if score is not None:
                charged.append(spent(cell.run_id, steps, "eval", 400))
                evals.append(evaluated(cell, steps, score, 100))
            keep(folder, "ledger", *charged)
            keep(folder, "evals", *evals)
            keep(folder, "pass_rates", passed(cell, 0))
            done = cell_folder.Done(rollouts=cell.rollouts, step=steps, diverged_at=1 if score is None else None)
            cell_folder.set_done(folder, done)


def grids_of(pilot: Pilot) -> dict[int, list[float]]:
    return {each.rollouts_per_problem: [line.learning_rate for line in each.grid] for each in pilot.searches}


def rising(cell: Cell) -> float:
    """The higher the rate the better, up to 0.004; n = 4 is best at the middle of its grid."""
    rate = cell.learner.learning_rate
    if cell.run.rollouts_per_problem == 4:
        return 0.5 if rate == 1e-3 else 0.4
    return 0.4 + 50 * min(rate, 4e-3)


GRID = [5e-4, 1e-3, 2e-3]


@pytest.mark.slow
@pytest.mark.parametrize(("extensions", "further"), [(0, []), (1, [4e-3]), (9, [4e-3, 8e-3])])
def test_a_grid_goes_on_where_its_best_rate_is_at_the_edge_and_up_to_its_limit(
    tmp_path: Path, extensions: int, further: list[float]
) -> None:
    made = searched(tmp_path, learning_rates=GRID, extensions=extensions, seeds=[900, 901])
    pilot, cells = find(made, Trained(rising), BASE)
    # At 0.008 the score is that of 0.004, of which the lower rate is chosen: an inner one.
    assert grids_of(pilot) == {2: [*GRID, *further], 4: GRID}
    assert {cell.run.seed for cell in cells} == {900, 901}
    assert all(cell.purpose == "pilot" for cell in cells)
    assert len(cells) == 2 * (6 + len(further))
    assert pilot.rates().at(4, 4) == 1e-3
    assert pilot.rates().at(2, 4) == ([*GRID, *further[:1]])[-1]


def test_a_search_where_every_rate_diverges_goes_below_and_then_says_so(tmp_path: Path) -> None:
    made = searched(tmp_path, learning_rates=GRID, extensions=1)
    with pytest.raises(ExperimentError, match=r"n = 2, B_p = 4 diverged \(0.00025, 0.0005, 0.001, 0.002\): give lower"):
        find(made, Trained(lambda cell: None), BASE)
    pilot, _ = find(made, Trained(lambda cell: 0.5 if cell.learner.learning_rate < 4e-4 else None), BASE)
    assert pilot.rates().at(2, 4) == 2.5e-4


def test_a_metric_of_the_best_response_is_held_against_the_first_evaluations(tmp_path: Path) -> None:
    made = searched(tmp_path, seeds=[900, 901])
    cells = made.trials([1e-3])
    for cell, score in zip(cells[::2], (0.4, 0.6), strict=True):
        cell_folder.write_baseline(cell_folder.baseline_of(cell), first_evaluation({"best_at_4": score}, 100))
    found = first_score(cells, "best_at_4")
    assert found.score == pytest.approx(0.5)
    # Each question's best is one draw: sqrt(0.4 · 0.6 / 100), of two seeds.
    assert found.standard_error == pytest.approx((0.24 / 100 / 2) ** 0.5)


@pytest.mark.slow
def test_the_figure_and_the_document_are_the_same_every_time(tmp_path: Path) -> None:
    made = searched(tmp_path, learning_rates=GRID, extensions=0)
    ends: Mapping[float, float | None] = {5e-4: 0.5, 1e-3: 0.1, 2e-3: None}
    pilot, _ = find(made, Trained(lambda cell: ends[cell.learner.learning_rate]), BASE)
    for name in ("one", "other"):
        cell_folder.write_json(tmp_path / name / "pilot.json", pilot.document())
        rates_figure(pilot, tmp_path / name / "rates")
    for name in ("pilot.json", "rates.svg", "rates.png"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "other" / name).read_bytes()
