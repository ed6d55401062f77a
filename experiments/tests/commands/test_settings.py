"""Settings of cells that a command trains: what is refused, and what a run's identity covers."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml
from isocompute.budget.trainers.registry import TRAINERS

from experiments.errors import ExperimentError
from experiments.running.cells import CommandCell
from experiments.running.command import command_of, configuration_of, flags_of, values_of
from experiments.settings import load, reading
from experiments.settings.model import CommandTrainer
from experiments.stages import inputs, plan

from .made import SCRIPT, cells, command, preset, trainer


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


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
        ({"trainer.trainer": "slime"}, "trainer is 'slime'"),
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


def test_a_group_of_one_is_refused_by_the_translation(tmp_path: Path) -> None:
    one = cells(preset(tmp_path, {"sweep.easy.rollouts_per_problem": [4]}))[0]
    with pytest.raises(ValueError, match="num_generations of 1"):
        configuration_of(replace(one, rollouts_per_problem=1))


def test_the_command_of_a_cell_goes_on_with_the_trainers_settings(tmp_path: Path) -> None:
    one = cells(preset(tmp_path))[0]
    own = {side: tmp_path / f"{side}.jsonl" for side in ("train", "validation")}
    words = command_of(one, values_of(one, tmp_path / "home", model="base", problems=own))
    assert words[words.index("--seed") + 1] == "0"
    assert words[words.index("--eval_steps") + 1] == "2"
    assert words[words.index("--ledger") + 1] == str(tmp_path / "home" / "run.ledger")
    # 12 steps of 2 responses to each of 4 problems.
    assert (
        flags_of(one)
        == words[-14:]
        == [
            "--num_generations",
            "2",
            "--per_device_train_batch_size",
            "8",
            "--gradient_accumulation_steps",
            "1",
            "--steps_per_generation",
            "1",
            "--num_iterations",
            "1",
            "--max_steps",
            "12",
            "--learning_rate",
            "0.002",
        ]
    )


def test_the_flags_of_verl_are_hydras(tmp_path: Path) -> None:
    one = cells(preset(tmp_path, trainer="verl"))[0]
    assert "data.train_batch_size=4" in flags_of(one)
    assert "actor_rollout_ref.rollout.n=2" in flags_of(one)


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

    differs(command=command(beta="0.1"))
    differs(world_size=2)
    # A longer run does not begin as a shorter one: its schedules do not.
    differs(changes={"sweep.easy.rollouts": 192})
    (tmp_path / "own.yaml").write_text("beta: 0.2\n")
    differs()
    (tmp_path / "helper.py").write_text("SCALE = 2.0\n")
    differs()
    script = tmp_path / SCRIPT
    script.write_text(script.read_text().replace("skill + drawn.random() / 20", "skill + drawn.random() / 30"))
    differs()
    monkeypatch.setattr("experiments.running.cells.version", lambda name: "9.9")
    differs()


def test_a_comment_in_a_script_makes_no_other_run(tmp_path: Path) -> None:
    before = run_ids(tmp_path)
    script = tmp_path / SCRIPT
    script.write_text("# What it is.\n" + script.read_text() + "\n# The end.\n")
    assert run_ids(tmp_path) == before


@pytest.mark.slow
def test_a_file_or_a_library_that_is_not_there_is_said(tmp_path: Path) -> None:
    for changes, said in (
        ({"files": ["lost.py"]}, "trainer.files holds lost.py: there is no such file or folder"),
        ({"libraries": ["no-such-library"]}, "trainer.libraries holds no-such-library, which is not installed here"),
    ):
        with pytest.raises(ExperimentError, match=said):
            cells(preset(tmp_path, **changes))
    (tmp_path / "broken.py").write_text("def (:\n")
    with pytest.raises(ExperimentError, match=r"broken.py is not Python"):
        cells(preset(tmp_path, files=["broken.py"]))


@pytest.mark.slow
def test_a_preset_with_a_command_is_written_whole_by_init(tmp_path: Path) -> None:
    known = preset(tmp_path)
    raw = yaml.safe_load((tmp_path / "params.yaml").read_text())["trl"]
    (tmp_path / "mine.yaml").write_text(reading.template_text("mine", known, raw))
    written = load(tmp_path / "mine.yaml", "mine")
    assert (written.trainer, written.sweep) == (known.trainer, known.sweep)


def test_cells_share_no_first_evaluation(tmp_path: Path) -> None:
    made = cells(preset(tmp_path))
    assert all(isinstance(cell, CommandCell) and cell.start_id == "" for cell in made)


def test_the_inputs_of_the_pipeline_name_what_a_command_depends_on(tmp_path: Path) -> None:
    (tmp_path / "constraints.txt").write_text("polars==1.0\n")
    inputs.run(preset(tmp_path))
    found = json.loads(inputs.FILE.read_text())["trainer"]
    assert list(found["files"]) == [SCRIPT]
    assert list(found["libraries"]) == ["polars"]
    assert found["command"] == trainer()["command"]


def test_the_plan_counts_every_first_evaluation_and_shows_the_flags(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan.run(preset(tmp_path))
    lines = capsys.readouterr().out.splitlines()
    evaluate = next(line for line in lines if line.startswith("easy     evaluate"))
    # Four cells of 96 rollouts, evaluated at 0 and every 16, with four responses to each of 12 problems.
    assert f"{4 * 7 * 12 * 4:,} rollouts" in evaluate
    assert any("its command goes on with: --num_generations 4" in line for line in lines)
