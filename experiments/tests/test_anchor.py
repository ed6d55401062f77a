"""The search for learning rates: grids that go on, and a budget that admits no further pilot."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import yaml
from isocompute.rollout.contract import tables

from experiments.__main__ import main
from experiments.errors import ExperimentError
from experiments.rates.record import Pilot
from experiments.rates.trials import Evaluation
from experiments.running import starts, work
from experiments.running.cells import Cell, Origin
from experiments.running.design import Design
from experiments.running.identity import Surroundings
from experiments.settings import load
from experiments.stages import anchor
from experiments.stages.search import Searched, chosen_lines, find, first_score

from .made import SURROUNDINGS

PARAMS = Path(__file__).parents[2] / "params.yaml"
BASE = Evaluation(score=0.3, standard_error=0.01)
Scores = Callable[[Cell], float | None]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def design(tmp_path: Path, **changes: Any) -> Design:
    """The set ``easy`` of ``smoke``, with changes of its search."""
    raw = yaml.safe_load(PARAMS.read_text())
    raw["smoke"]["sweep"]["easy"]["learning_rate"] |= {"rollouts": 32, **changes}
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(raw))
    preset = load(tmp_path / "params.yaml", "smoke")
    origin = Origin(
        problem_set="easy", base_model="base", base="b", problems="p", generation=preset.generation,
        surroundings=Surroundings(**SURROUNDINGS),
    )  # fmt: skip
    return Design(preset=preset, sweep=preset.sweep["easy"], origin=origin)


class Trained:
    """Writes cells as workers leave them; ``ends`` gives the score of a cell, None one that diverges at once."""

    def __init__(self, ends: Scores) -> None:
        self.ends, self.asked, self.waves = ends, [], []  # type: ignore[var-annotated]

    def __call__(self, cells: Sequence[Cell]) -> dict[str, Path]:
        self.waves.append(len(cells) - len(self.asked))
        self.asked = list(cells)
        return {cell.run_id: self.write(cell) for cell in cells}

    def write(self, cell: Cell) -> Path:
        folder, score = work.folder_of(cell), self.ends(cell)
        steps = 1 if score is None else cell.rollouts // cell.batch_rollouts
        ledger = [(cell.run_id, step, "trained", cell.batch_rollouts, 4, 4) for step in range(1, steps + 1)]
        if score is not None:
            ledger.append((cell.run_id, steps, "eval", 400, 4, 4))
        columns = ["run_id", "step", "cohort", "rollouts", "prompt_tokens", "response_tokens"]
        tables.write(pl.DataFrame(ledger, schema=columns, orient="row"), "ledger", folder / "ledger.parquet")
        rows = [
            {"run_id": cell.run_id, "step": step, "rollouts": step * cell.batch_rollouts, "tokens": 4 * step,
             "rollouts_per_problem": cell.rollouts_per_problem, "problems_per_batch": cell.problems_per_batch,
             "seed": cell.seed, "problem_set": "easy", "split": "validation", "questions": 100, "samples": 4,
             "avg_at_4": BASE.score if step == 0 else score}
            for step in ((0,) if score is None else (0, steps))
        ]  # fmt: skip
        tables.write(pl.DataFrame(rows), "evals", folder / "evals.parquet")
        rates = [{"run_id": cell.run_id, "step": 0, "problem_id": "p", "successes": 1, "samples": 4}]
        tables.write(pl.DataFrame(rates), "pass_rates", folder / "pass_rates.parquet")
        paid = {"rollouts": 0, "prompt_tokens": 0, "response_tokens": 0}
        at = 1 if score is None else None
        work.set_done(folder, work.Done(rollouts=cell.rollouts, step=steps, diverged_at=at, paid=paid, lost=paid))
        return folder


def tried(pilot: Pilot) -> dict[int, list[float]]:
    return {each.rollouts_per_problem: [line.learning_rate for line in each.grid] for each in pilot.searches}


def rising(cell: Cell) -> float:
    """The higher the rate the better, up to 0.004; n = 4 is best at the middle of its grid."""
    rate = cell.learner.learning_rate
    if cell.rollouts_per_problem == 4:
        return 0.5 if rate == 1e-3 else 0.4
    return 0.4 + 50 * min(rate, 4e-3)


GRID = [5e-4, 1e-3, 2e-3]


@pytest.mark.parametrize(("extensions", "further"), [(0, []), (1, [4e-3]), (2, [4e-3, 8e-3]), (9, [4e-3, 8e-3])])
def test_a_grid_goes_on_where_its_best_rate_is_at_the_edge_and_up_to_its_limit(
    tmp_path: Path, extensions: int, further: list[float]
) -> None:
    made = design(tmp_path, learning_rates=GRID, extensions=extensions, seeds=[900, 901])
    searched = find(made, Trained(rising), BASE)
    pilot, cells = searched.pilot, searched.trained
    # At 0.008 the score is that of 0.004, of which the lower rate is chosen: an inner one.
    assert tried(pilot) == {2: [*GRID, *further], 4: GRID}
    assert {cell.seed for cell in cells} == {900, 901}
    assert all(cell.purpose == "pilot" for cell in cells)
    assert len(cells) == 2 * (6 + len(further))
    assert pilot.rollouts == 32 * len(cells)
    assert pilot.rates().at(4, 4).learning_rate == 1e-3
    assert pilot.rates().at(2, 4).learning_rate == ([*GRID, *further[:1]])[-1]


def test_what_is_found_is_said_with_its_standard_error_and_its_edge(tmp_path: Path) -> None:
    pilot = find(design(tmp_path, learning_rates=GRID, extensions=0), Trained(rising), BASE).pilot
    assert chosen_lines(pilot) == [
        "n = 2, B_p = 4: learning rate 0.002, the highest rate tried (0.500 ± 0.025)",
        "n = 4, B_p = 4: learning rate 0.001 (0.500 ± 0.025)",
    ]


def test_a_search_where_every_rate_diverges_goes_below_and_then_says_so(tmp_path: Path) -> None:
    made = design(tmp_path, learning_rates=GRID, extensions=1)
    with pytest.raises(ExperimentError, match=r"n = 2, B_p = 4 diverged \(0.00025, 0.0005, 0.001, 0.002\): give lower"):
        find(made, Trained(lambda cell: None), BASE)
    pilot = find(made, Trained(lambda cell: 0.5 if cell.learner.learning_rate < 4e-4 else None), BASE).pilot
    assert pilot.rates().at(2, 4).learning_rate == 2.5e-4


def test_a_metric_of_the_best_response_is_held_against_the_first_evaluations(tmp_path: Path) -> None:
    made = design(tmp_path, seeds=[900, 901])
    cells = made.trials([1e-3])
    for cell, score in zip(cells[::2], (0.4, 0.6), strict=True):
        rates = pl.DataFrame({"problem_id": ["p"], "successes": [1], "samples": [4]})
        cost = {"rollouts": 4, "prompt_tokens": 4, "response_tokens": 4}
        start = starts.Start(metrics={"best_at_4": score}, questions=100, samples=4, cost=cost, pass_rates=rates)
        starts.write(work.start_of(cell), start)
    found = first_score(cells, "best_at_4")
    assert found.score == pytest.approx(0.5)
    # Each question's best is one draw: sqrt(0.4 · 0.6 / 100), of two seeds.
    assert found.standard_error == pytest.approx((0.24 / 100 / 2) ** 0.5)


def searched(made: Design, trained: Trained, budget: int | None, together: int = 2) -> Searched:
    with anchor.metered(trained, budget, together=together, search="s") as some:
        return find(made, some, BASE)


@pytest.mark.parametrize(("budget", "pilots"), [(32, 1), (95, 2), (96, 3), (160, 5), (192, 6), (None, 7)])
def test_a_budget_admits_whole_pilots_and_what_it_does_not_is_left_out(
    tmp_path: Path, budget: int | None, pilots: int
) -> None:
    made = design(tmp_path, learning_rates=GRID, extensions=1)
    found = searched(made, Trained(rising), budget)
    pilot, cells = found.pilot, found.trained
    assert len(cells) == pilots
    # The grid of n = 2 goes on once the pilots of the others are trained.
    further = made.trials([4e-3], at=[(2, 4)]) if pilots >= 6 else []
    planned = {cell.run_id for cell in [*made.trials(GRID), *further]}
    assert {cell.run_id for cell in found.left_out} == planned - {cell.run_id for cell in cells}
    assert pilot.rollouts == 32 * pilots
    every = [rate for rates in tried(pilot).values() for rate in rates]
    assert sorted(every) == sorted(cell.learner.learning_rate for cell in cells)
    # The same again: what is finished is paid for as it was the first time.
    again = searched(made, Trained(rising), budget).trained
    assert [cell.run_id for cell in again] == [cell.run_id for cell in cells]


def test_every_rate_has_a_seed_before_one_has_two(tmp_path: Path) -> None:
    made = design(tmp_path, learning_rates=GRID, extensions=0, seeds=[900, 901], rollouts_per_problem=[4])
    cells = searched(made, Trained(rising), 128).trained
    assert [(cell.learner.learning_rate, cell.seed) for cell in cells] == [
        (5e-4, 900), (1e-3, 900), (2e-3, 900), (5e-4, 901),
    ]  # fmt: skip


def test_a_pilot_that_diverged_is_charged_what_it_generated(tmp_path: Path) -> None:
    """One step of 8 instead of 32 leaves room for one more pilot."""
    made = design(tmp_path, learning_rates=[8e-3, *GRID], extensions=0, rollouts_per_problem=[2])
    trained = Trained(lambda cell: None if cell.learner.learning_rate > 4e-3 else 0.5)
    found = searched(made, trained, 32 + 32 + 8, together=1)
    assert len(found.trained) == 3
    assert found.pilot.rollouts == 8 + 32 + 32
    assert trained.waves == [1, 1, 1]


def test_pilots_are_trained_as_many_at_a_time_as_there_are_workers(tmp_path: Path) -> None:
    trained = Trained(rising)
    searched(design(tmp_path, learning_rates=GRID, extensions=0), trained, 5 * 32)
    assert trained.waves == [2, 2, 1]


def test_the_table_has_every_rate_and_the_figure_is_the_same_every_time(tmp_path: Path) -> None:
    made = design(tmp_path, learning_rates=GRID, extensions=0)
    ends: Mapping[float, float | None] = {5e-4: 0.5, 1e-3: 0.1, 2e-3: None}
    pilot = find(made, Trained(lambda cell: ends[cell.learner.learning_rate]), BASE).pilot
    for name in ("one", "other"):
        anchor._write(pilot, tmp_path / name)
    table = pl.read_csv(tmp_path / "one" / "rates.csv")
    own = table.filter(pl.col("rollouts_per_problem") == 2).drop("rollouts_per_problem", "problems_per_batch")
    assert own.select("learning_rate", "avg_at_4", "diverged", "collapsed", "chosen").rows() == [
        (5e-4, 0.5, 0, 0, True), (1e-3, 0.1, 0, 1, False), (2e-3, None, 1, 0, False),
    ]  # fmt: skip
    assert Pilot.read(json.loads((tmp_path / "one" / "pilot.json").read_text())) == pilot
    for name in ("rates.svg", "rates.png"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "other" / name).read_bytes()


def test_pilots_that_a_budget_left_out_are_named_and_a_rate_without_its_seeds_is_not_chosen(tmp_path: Path) -> None:
    """Both seeds of the two lower rates are trained, and one of the highest, which would lead."""
    made = design(tmp_path, learning_rates=GRID, extensions=1, seeds=[900, 901], rollouts_per_problem=[2])
    found = searched(made, Trained(rising), 160)
    assert [(line.learning_rate, line.seeds) for line in found.pilot.searches[0].grid] == [
        (5e-4, 2), (1e-3, 2), (2e-3, 1),
    ]  # fmt: skip
    assert found.pilot.rates().at(2, 4).learning_rate == 1e-3
    assert anchor.spent_lines(found, 160) == [
        "5 pilots: 160 rollouts of training (budget 160) and 2,000 responses of evaluation, which the budget does not "
        "count",
        "the budget left out 1 of 6 pilots:",
        "  n = 2, B_p = 4: learning rate 0.002 (seed 901)",
        "a rate that lacks a seed is chosen only where every rate of that n lacks one",
    ]


def test_an_n_without_a_pilot_is_named(tmp_path: Path) -> None:
    found = searched(design(tmp_path, learning_rates=GRID, extensions=0), Trained(rising), 32)
    _, left, two, four, _ = anchor.spent_lines(found, 32)
    assert left == "the budget left out 5 of 6 pilots:"
    assert two == "  n = 2, B_p = 4: learning rate 0.001 (seed 900), 0.002 (seed 900)"
    assert four.endswith("0.002 (seed 900); none was trained, so that it has no rate of its own")
    assert "n = 4, B_p = 4" in four


def test_without_a_budget_nothing_is_left_out_and_evaluation_is_counted_with_the_first_one_once(tmp_path: Path) -> None:
    made = design(tmp_path, learning_rates=GRID, extensions=0)
    first = work.start_of(made.trials(GRID)[0])
    rates = pl.DataFrame({"problem_id": ["p"], "successes": [1], "samples": [4]})
    cost = {"rollouts": 48, "prompt_tokens": 4, "response_tokens": 4}
    start = starts.Start(metrics={"avg_at_4": 0.3}, questions=12, samples=4, cost=cost, pass_rates=rates)
    starts.write(first, start)
    found = searched(made, Trained(rising), None)
    assert found.pilot.evaluated == 6 * 400 + 48
    assert anchor.spent_lines(found, None) == [
        "6 pilots: 192 rollouts of training and 2,448 responses of evaluation, which no budget counts"
    ]


@pytest.mark.parametrize("budget", ["0", "-4", "4k", "1e4"])
def test_a_budget_that_is_no_number_of_rollouts_is_refused(budget: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["anchor", "easy", "--budget", budget])
    assert "it must be a whole number of rollouts" in capsys.readouterr().err


def test_only_the_anchor_has_a_budget(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["sweep", "easy", "--budget", "64"])
    assert "--budget is an option of anchor" in capsys.readouterr().err
