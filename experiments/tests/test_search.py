"""The search for learning rates: grids that go on, and what is said of them."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import yaml
from isocompute.rollout import EvaluationResult
from isocompute.rollout.contract import tables

from experiments.errors import ExperimentError
from experiments.running import work
from experiments.running.cells import Cell, Origin, Surroundings
from experiments.running.design import Design, Evaluation, Pilot
from experiments.settings import load
from experiments.stages.sweep import chosen_lines, find, first_score, rates_figure

from .made import SURROUNDINGS

pytestmark = pytest.mark.slow("runs of a stage")

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
        problem_set="easy",
        base_model="base",
        base="b",
        problems="p",
        generation=preset.generation,
        surroundings=Surroundings(**SURROUNDINGS),
    )
    return Design(preset=preset, sweep=preset.sweep["easy"], origin=origin)


class Trained:
    """Writes cells as workers leave them; ``ends`` gives the score of a cell, None one that diverges at once."""

    def __init__(self, ends: Scores) -> None:
        self.ends, self.asked, self.waves = ends, [], []  # type: ignore[var-annotated]

    def __call__(self, cells: Sequence[Cell]) -> None:
        self.waves.append(len(cells) - len(self.asked))
        self.asked = list(cells)
        for cell in cells:
            self.write(cell)

    def write(self, cell: Cell) -> None:
        folder, score = work.folder_of(cell), self.ends(cell)
        steps = 1 if score is None else cell.rollouts // cell.batch_rollouts
        ledger = [(cell.run_id, step, "trained", cell.batch_rollouts, 4, 4) for step in range(1, steps + 1)]
        if score is not None:
            ledger.append((cell.run_id, steps, "eval", 400, 4, 4))
        columns = ["run_id", "step", "cohort", "rollouts", "prompt_tokens", "response_tokens"]
        tables.write(pl.DataFrame(ledger, schema=columns, orient="row"), "ledger", folder / "ledger.parquet")
        rows = [
            {
                "run_id": cell.run_id,
                "step": step,
                "rollouts": step * cell.batch_rollouts,
                "tokens": 4 * step,
                "rollouts_per_problem": cell.rollouts_per_problem,
                "problems_per_batch": cell.problems_per_batch,
                "seed": cell.seed,
                "problem_set": "easy",
                "split": "validation",
                "questions": 100,
                "samples": 4,
                "avg_at_4": BASE.score if step == 0 else score,
            }
            for step in ((0,) if score is None else (0, steps))
        ]
        tables.write(pl.DataFrame(rows), "evals", folder / "evals.parquet")
        rates = [{"run_id": cell.run_id, "step": 0, "problem_id": "p", "successes": 1, "samples": 4}]
        tables.write(pl.DataFrame(rates), "pass_rates", folder / "pass_rates.parquet")
        at = 1 if score is None else None
        work.set_done(folder, work.Done(rollouts=cell.rollouts, step=steps, diverged_at=at))


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
    pilot, cells = find(made, Trained(rising), BASE)
    # At 0.008 the score is that of 0.004, of which the lower rate is chosen: an inner one.
    assert tried(pilot) == {2: [*GRID, *further], 4: GRID}
    assert {cell.seed for cell in cells} == {900, 901}
    assert all(cell.purpose == "pilot" for cell in cells)
    assert len(cells) == 2 * (6 + len(further))
    assert pilot.rates().at(4, 4) == 1e-3
    assert pilot.rates().at(2, 4) == ([*GRID, *further[:1]])[-1]


def test_what_is_found_is_said_with_its_standard_error_and_its_edge(tmp_path: Path) -> None:
    pilot, _ = find(design(tmp_path, learning_rates=GRID, extensions=0), Trained(rising), BASE)
    assert list(chosen_lines(pilot)) == [
        "n = 2, B_p = 4: learning rate 0.002, the highest rate tried (0.500 ± 0.025)",
        "n = 4, B_p = 4: learning rate 0.001 (0.500 ± 0.025)",
    ]


def test_a_search_where_every_rate_diverges_goes_below_and_then_says_so(tmp_path: Path) -> None:
    made = design(tmp_path, learning_rates=GRID, extensions=1)
    with pytest.raises(ExperimentError, match=r"n = 2, B_p = 4 diverged \(0.00025, 0.0005, 0.001, 0.002\): give lower"):
        find(made, Trained(lambda cell: None), BASE)
    pilot, _ = find(made, Trained(lambda cell: 0.5 if cell.learner.learning_rate < 4e-4 else None), BASE)
    assert pilot.rates().at(2, 4) == 2.5e-4


def test_a_metric_of_the_best_response_is_held_against_the_first_evaluations(tmp_path: Path) -> None:
    made = design(tmp_path, seeds=[900, 901])
    cells = made.trials([1e-3])
    for cell, score in zip(cells[::2], (0.4, 0.6), strict=True):
        rates = pl.DataFrame({"problem_id": ["p"], "successes": [1], "samples": [4]})
        answered = pl.DataFrame({"prompt_ids": [[1]] * 4, "response_ids": [[1]] * 4})
        start = EvaluationResult(
            metrics={"best_at_4": score}, questions=100, samples=4, rollouts=answered, pass_rates=rates
        )
        work.write_baseline(work.start_of(cell), start)
    found = first_score(cells, "best_at_4")
    assert found.score == pytest.approx(0.5)
    # Each question's best is one draw: sqrt(0.4 · 0.6 / 100), of two seeds.
    assert found.standard_error == pytest.approx((0.24 / 100 / 2) ** 0.5)


def test_the_figure_and_the_document_are_the_same_every_time(tmp_path: Path) -> None:
    made = design(tmp_path, learning_rates=GRID, extensions=0)
    ends: Mapping[float, float | None] = {5e-4: 0.5, 1e-3: 0.1, 2e-3: None}
    pilot, _ = find(made, Trained(lambda cell: ends[cell.learner.learning_rate]), BASE)
    for name in ("one", "other"):
        work.write_json(tmp_path / name / "pilot.json", pilot.document())
        rates_figure(pilot, tmp_path / name / "rates")
    for name in ("pilot.json", "rates.svg", "rates.png"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "other" / name).read_bytes()
