"""Cells that a command trains, on real Ray workers: one that fails is listed, the others are finished and sent."""

import contextlib
import io
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from experiments.errors import ExperimentError
from experiments.running import work
from experiments.running.cells import CommandCell, problems_hash
from experiments.running.schedule import Pool, Run, workers
from experiments.running.tracker import Tracker
from experiments.settings import Preset

from .made import cells, command, preset, problems

pytestmark = pytest.mark.slow("Ray")


@pytest.fixture
def of(store: Path, monkeypatch: pytest.MonkeyPatch) -> Preset:
    """A preset whose cells of one seed fail, in a folder with an MLflow store."""
    monkeypatch.setenv("RAY_TMPDIR", os.environ.get("RAY_TMPDIR", "/tmp"))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.delenv("ISOCOMPUTE_SESSION", raising=False)
    Path("model").mkdir()
    (Path("model") / "config.json").write_text("{}")
    return preset(Path.cwd(), command=command(fails_at="2"))


@pytest.fixture
def pool(of: Preset) -> Iterator[Pool]:
    place = Path("model").resolve()
    with workers(of, {work.content_hash(place): str(place)}, training=True) as opened:
        yield opened


def run(made: list[CommandCell], pool: Pool) -> str:
    """Run cells; returns what was said, an error included."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        tracker = Tracker("commands")
        try:
            Run(made, {problems_hash(problems()): problems()}, pool, tracker, title="cells").finish()
        except ExperimentError as error:
            print(error)
        assert not tracker.drain()
        tracker.close()
    return said.getvalue()


def test_a_command_that_fails_is_listed_and_the_other_cells_are_finished_and_sent(of: Preset, pool: Pool) -> None:
    from mlflow import MlflowClient

    base = work.content_hash(Path("model"))
    made = [replace(cell, origin=replace(cell.origin, base=base)) for cell in cells(of)[:2]]
    made.append(replace(made[0], seed=2))
    said = run(made, pool)
    assert "3 cells: 0 finished, 0 continued, 3 from the base model" in said
    assert "1 of 3 cells failed; the others are finished, and the same command tries these again" in said
    (listed,) = [line for line in said.splitlines() if line.startswith("  n=2 Bp=4 lr=0.002 base seed=2: ")]
    assert "ended with exit code 1" in listed
    assert listed.endswith("the second line | the third line | ValueError: the reward is not defined")
    assert [work.finished(cell, work.folder_of(cell)) for cell in made] == [True, True, False]
    client = MlflowClient()
    found = client.search_runs([client.get_experiment_by_name("commands").experiment_id])
    ended = {r.info.run_name: r for r in found if r.info.status == "FINISHED"}
    assert set(ended) == {cell.name for cell in made[:2]}
    scores = client.get_metric_history(ended[made[0].name].info.run_id, "eval/avg_at_4")
    assert sorted(score.step for score in scores) == [0, 16, 32, 48, 64, 80, 96]
