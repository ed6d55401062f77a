"""Cells that a command trains: settings and identity, the command as a process, its death, and a sweep of them."""

import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import polars as pl
import pytest
from isocompute.budget import Counts, History, Ledger
from isocompute.budget.trainers.registry import TRAINERS

from experiments.errors import ExperimentError
from experiments.running import cell_folder
from experiments.running.cell_folder import Spool
from experiments.running.cells import CommandCell, problems_hash
from experiments.running.command import command_of, flags_of, timings_of, train, values_of, write_tables
from experiments.running.schedule import Pool, Schedule, workers
from experiments.settings import CommandTrainer
from experiments.stages import inputs, plan
from experiments.stages.sweep import collect

from .made import SCRIPT, cells, command, home_of, last_step, preset, problems, same, started, trainer

pytestmark = [pytest.mark.xdist_group("cluster"), pytest.mark.usefixtures("here")]


def test_the_trainers_are_those_whose_logs_are_read() -> None:
    named = set(get_args(CommandTrainer.model_fields["trainer"].annotation))
    assert named == {name for name, known in TRAINERS.items() if known.logs}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"trainer.command": [*command(), "{sede}"]}, "command holds {sede}"),
        ({"trainer.command": command(seed="7")}, "command lacks {seed}, the"),
        ({"trainer.command": command(ledger="a.ledger")}, "command lacks {ledger}"),
        ({"trainer.command": []}, "trainer.command"),
        ({"trainer.logs": "log.jsonl"}, "logs is 'log.jsonl'"),
        ({"trainer.trainer": "own"}, "trainer is 'own'"),
        ({"trainer.kind": "program"}, "kind is 'program'"),
        ({"trainer.script": "a.py"}, "has no setting 'script'"),
        ({"evaluation.metric": "best_at_4"}, "metric is 'best_at_4'"),
        ({"resources.keep_policies": "all"}, "keep_policies is 'all'"),
        ({"sweep.easy.learner": {"kl": {"coefficient": 0.1}}}, "learner is of our learner"),
        ({"sweep.easy.warmup_rollouts": 16}, "warmup_rollouts is of our"),
        ({"sweep.easy.evaluations_per_octave": 2}, "evaluations_per_octave is"),
    ],
)
def test_what_cannot_be_run_or_measured_is_refused(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ExperimentError) as error:
        preset(tmp_path, changes)
    assert said in str(error.value)


@pytest.mark.usefixtures("unhashed")
def test_the_command_of_a_cell_goes_on_with_the_trainers_settings(tmp_path: Path) -> None:
    one = cells(preset(tmp_path))[0]
    own = {side: tmp_path / f"{side}.jsonl" for side in ("train", "validation")}
    words = command_of(one, values_of(one, tmp_path / "home", model="base", problems=own))
    assert words[words.index("--seed") + 1] == "0"
    assert words[words.index("--eval_steps") + 1] == "2"
    assert words[words.index("--ledger") + 1] == str(tmp_path / "home" / "run.ledger")
    # 12 steps of 2 responses to each of 4 problems.
    said = {
        "num_generations": 2,
        "per_device_train_batch_size": 8,
        "gradient_accumulation_steps": 1,
        "steps_per_generation": 1,
        "num_iterations": 1,
        "max_steps": 12,
        "learning_rate": 0.002,
    }
    assert flags_of(one) == words[-14:] == [word for name, value in said.items() for word in (f"--{name}", str(value))]
    assert "data.train_batch_size=4" in flags_of(cells(preset(tmp_path, trainer="verl"))[0])


def run_ids(folder: Path, changes: dict[str, Any] | None = None, **of_trainer: Any) -> set[str]:
    return {cell.run_id for cell in cells(preset(folder, changes, **of_trainer))}


@pytest.mark.slow
def test_a_change_of_what_a_run_depends_on_makes_other_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "helper.py").write_text("SCALE = 1.0\n")
    (tmp_path / "own.yaml").write_text("beta: 0.0\n")
    files = ["helper.py", "own.yaml"]
    first = run_ids(tmp_path, files=files)
    assert run_ids(tmp_path, files=files) == first
    assert len(first) == 4
    seen = [first]

    def differs(**changes: Any) -> None:
        found = run_ids(tmp_path, files=files, **changes)
        assert not any(found & before for before in seen)
        seen.append(found)

    script = tmp_path / SCRIPT
    script.write_text("# What it is.\n" + script.read_text() + "\n# The end.\n")
    assert run_ids(tmp_path, files=files) == first
    differs(command=command(beta="0.1"))
    differs(world_size=2)
    # A longer run does not begin as a shorter one: its schedules do not.
    differs(changes={"sweep.easy.rollouts": 192})
    (tmp_path / "own.yaml").write_text("beta: 0.2\n")
    differs()
    (tmp_path / "helper.py").write_text("SCALE = 2.0\n")
    differs()
    script.write_text(script.read_text().replace("skill + drawn.random() / 20", "skill + drawn.random() / 30"))
    differs()
    monkeypatch.setattr("experiments.running.identity.version", lambda name: "9.9")
    differs()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"files": ["lost.py"]}, "trainer.files holds lost.py: there is no such file or folder"),
        ({"libraries": ["no-such-library"]}, "trainer.libraries holds no-such-library, which is not installed here"),
        ({"files": ["broken.py"]}, "broken.py is not Python"),
    ],
)
def test_a_file_or_a_library_that_is_not_there_is_said(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    (tmp_path / "broken.py").write_text("def (:\n")
    with pytest.raises(ExperimentError, match=said):
        cells(preset(tmp_path, **changes))


@pytest.mark.usefixtures("unhashed")
def test_the_inputs_of_the_pipeline_name_what_a_command_depends_on(tmp_path: Path) -> None:
    (tmp_path / "constraints.txt").write_text("polars==1.0\n")
    inputs.run(preset(tmp_path))
    found = json.loads((inputs.FOLDER / "sweep.json").read_text())["trainer"]
    assert list(found["files"]) == [SCRIPT]
    assert list(found["libraries"]) == ["polars"]
    assert found["command"] == trainer()["command"]


@pytest.mark.usefixtures("unhashed")
def test_the_plan_counts_every_first_evaluation_and_shows_the_flags(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # A library that a run needs and a plan does not.
    plan.run(preset(tmp_path, libraries=["no-such-library"]))
    lines = capsys.readouterr().out.splitlines()
    evaluate = next(line for line in lines if line.startswith("easy     evaluate"))
    # Four cells of 96 rollouts, evaluated at 0 and every 16, with four responses to each of 12 problems.
    assert f"{4 * 7 * 12 * 4:,} rollouts" in evaluate
    assert any("its command goes on with: --num_generations 4" in line for line in lines)


def charge(path: Path, steps: range, *, seconds: float = 1.0, rollouts: int = 8) -> None:
    """An attempt that takes some steps."""
    with Ledger.open(path, run_id="r", resumed_from=steps.start - 1) as ledger:
        for step in steps:
            ledger.charge(step, {"trained": Counts(rollouts=rollouts)}, device_seconds=seconds)


def test_the_time_of_a_step_is_that_of_the_attempt_that_counts(tmp_path: Path) -> None:
    path = tmp_path / "run.ledger"
    charge(path, range(1, 6), seconds=1.0)
    charge(path, range(4, 7), seconds=3.0)
    found = timings_of(History.read(path), "id", devices=2)
    assert found["device_seconds"].to_list() == [1.0, 1.0, 1.0, 3.0, 3.0, 3.0]
    assert found["seconds"].to_list() == [0.5, 0.5, 0.5, 1.5, 1.5, 1.5]


@pytest.mark.slow
def test_a_run_beyond_its_budget_is_refused(tmp_path: Path) -> None:
    one = cells(preset(tmp_path))[0]
    charge(tmp_path / "run.ledger", range(1, 13), rollouts=9)
    with pytest.raises(ExperimentError, match=r"its command ended with 108 of 96 rollouts in 12 of 12 steps"):
        write_tables(one, tmp_path, {}, logs=str(tmp_path / "checkpoints"), questions=8)


@pytest.mark.usefixtures("unhashed")
def test_a_script_that_changes_under_a_sweep_is_refused(tmp_path: Path) -> None:
    one = cells(preset(tmp_path))[0]
    script = tmp_path / SCRIPT
    script.write_text(script.read_text().replace("/ 20", "/ 30"))
    with pytest.raises(ExperimentError, match=r"stand_in.py changed since the sweep began"):
        train({"b": "."}, one, problems(), home_of(one))


def trained(cell: CommandCell) -> Path:
    """Train a cell; returns its folder."""
    home = home_of(cell)
    home.mkdir(parents=True, exist_ok=True)
    train({"b": "."}, cell, problems(), home)
    return home


@pytest.mark.slow
def test_a_command_leaves_the_tables_of_a_cell_and_is_not_run_again(tmp_path: Path) -> None:
    one = cells(preset(tmp_path))[0]
    home = trained(one)
    evals, ledger = (pl.read_parquet(home / f"{name}.parquet") for name in ("evals", "ledger"))
    assert evals["run_id"].unique().to_list() == ledger["run_id"].unique().to_list() == [one.run_id]
    assert evals["step"].to_list() == [0, 2, 4, 6, 8, 10, 12]
    assert one.baseline_id == ""
    assert evals["rollouts"].to_list() == [8 * step for step in evals["step"]]
    trained_tokens = ledger.filter(cohort="trained")["response_tokens"]
    assert evals["tokens"].to_list() == [int(trained_tokens[:step].sum()) for step in evals["step"]]
    (row,) = evals.filter(step=4).drop("avg_at_4", "tokens").to_dicts()
    wanted = one.evals_row(step=4, rollouts=32, tokens=0, questions=8, scores={})
    assert row == {name: value for name, value in wanted.items() if name != "tokens"}
    assert ledger.filter(cohort="eval")["rollouts"].to_list() == [32] * 7
    timings = pl.read_parquet(home / "timings.parquet")
    assert timings["device_seconds"].to_list() == [0.25] * 12
    assert not (home / "pass_rates.parquet").exists()
    assert cell_folder.finished(one, home)
    assert [record.rollouts for record in Spool(home).records()] == evals["rollouts"].to_list()
    before = (home / "output.log").stat().st_mtime_ns
    assert (trained(one) / "output.log").stat().st_mtime_ns == before
    # Joined, without what no log gives.
    collect([one], tmp_path / "out")
    names = ["cells.json", "evals.parquet", "ledger.parquet"]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == names


@pytest.mark.slow
def test_a_command_that_dies_or_is_asked_to_stop_goes_on_from_its_checkpoints_to_the_same_tables(
    tmp_path: Path,
) -> None:
    alone = trained(cells(preset(tmp_path))[0])
    # The flag is part of the command, so that the run is another one.
    dying = cells(preset(tmp_path, command=command(kill_after="7")))[0]
    with pytest.raises(ExperimentError, match="exit code 137"):
        trained(dying)
    home = home_of(dying)
    cell_folder.request_stop(home)
    trained(dying)
    assert not cell_folder.finished(dying, home)
    cell_folder.clear_stop(home)
    assert same(trained(dying), alone)
    assert History.read(home / "run.ledger").totals().lost_training.rollouts >= 8


@pytest.mark.slow
def test_killed_with_its_worker_a_cell_ends_as_one_left_alone(tmp_path: Path) -> None:
    """SIGKILL of the worker alone: the command ends with it, or two would write one ledger."""
    one = cells(preset(tmp_path, command=command(pause="0.1")))[0]
    home = home_of(one)
    process = started(one, problems(), base=".")
    while last_step(home) < 5:
        assert process.poll() is None
        time.sleep(0.02)
    process.kill()
    process.wait()
    train({"b": "."}, one, problems(), home)
    assert len(History.read(home / "run.ledger").resumed_from) == 2
    assert same(home, trained(cells(preset(tmp_path))[0]))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"command": command(fault="fails")}, "its command ended with exit code 1; what it printed is in"),
        ({"command": ["no-program", *command()[1:]]}, "no-program cannot be started: No such file or directory"),
        ({"command": command(fault="no ledger")}, "wrote no ledger, so that nobody counted what it generated"),
        ({"command": command(fault="ends early")}, "its command ended with 88 of 96 rollouts in 11 of 12 steps"),
        ({"command": command(fault="no evaluations"), "log_settings": {}}, "holds no evaluation that TRL would have"),
        ({"command": command(fault="no first evaluation")}, "has no evaluation at step 0 (there are 2, 4, 6,"),
        ({"command": command(fault="other settings")}, "per_device_train_batch_size is 16 in the trainer's"),
        ({"log_settings": {"num_generations_eval": "8"}}, "has avg_at_8, and avg_at_4 is asked for"),
    ],
)
def test_a_command_that_is_no_run_of_its_cell_is_refused(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError) as error:
        trained(cells(preset(tmp_path, **changes))[0])
    assert said in str(error.value)


@pytest.fixture
def pool(store: Path, cluster: None) -> Iterator[Pool]:
    """Workers in a folder with an MLflow store, for a preset whose cells of one seed fail."""
    model = Path("model").resolve()
    model.mkdir()
    (model / "config.json").write_text("{}")
    of = preset(Path.cwd(), command=command(fails_at="2"))
    with workers(of, {cell_folder.content_hash(model): str(model)}, training=True) as opened:
        yield opened


@pytest.mark.slow
def test_a_command_that_fails_is_listed_and_the_other_cells_are_finished_and_sent(
    pool: Pool, capsys: pytest.CaptureFixture[str]
) -> None:
    from mlflow import MlflowClient

    base = cell_folder.content_hash(Path("model"))
    of = preset(Path.cwd(), command=command(fails_at="2"))
    made = [replace(cell, origin=replace(cell.origin, base=base)) for cell in cells(of)[:2]]
    made.append(replace(made[0], run=replace(made[0].run, seed=2)))
    schedule = Schedule(made, {problems_hash(problems()): problems()}, pool, "commands", title="cells")
    with pytest.raises(ExperimentError) as failed:
        schedule.finish()
    assert not schedule.tracker.drain()
    schedule.tracker.close()
    assert "3 cells: 0 finished, 0 continued, 3 from the base model" in capsys.readouterr().out
    said, listed = str(failed.value).splitlines()
    assert "1 of 3 cells failed; the others are finished, and the same command tries these again" in said
    assert listed.startswith("  n=2 Bp=4 lr=0.002 base seed=2: ")
    assert "ended with exit code 1" in listed
    assert listed.endswith("the second line | the third line | ValueError: the reward is not defined")
    assert [cell_folder.finished(cell, cell_folder.folder_of(cell)) for cell in made] == [True, True, False]
    client = MlflowClient()
    found = client.search_runs([client.get_experiment_by_name("commands").experiment_id])
    ended = {r.info.run_name: r for r in found if r.info.status == "FINISHED"}
    assert set(ended) == {cell.name for cell in made[:2]}
    scores = client.get_metric_history(ended[made[0].name].info.run_id, "eval/avg_at_4")
    assert sorted(score.step for score in scores) == [0, 16, 32, 48, 64, 80, 96]
