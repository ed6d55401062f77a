"""What is kept of cells: records, outcomes within a budget, checkpoints under a disk limit, base models."""

import json
import os
import shutil
from pathlib import Path

import polars as pl
import pytest
from isocompute.learner.records.steps import Mean, StepRecord, UpdateReport
from isocompute.rollout.contract import tables
from safetensors.torch import load_file, save_file

from experiments.errors import ExperimentError
from experiments.running import cell_folder
from experiments.running.cell_folder import Spool
from experiments.running.cells import Cell
from experiments.running.tracker import health_of, health_text
from experiments.settings import ModelConfig, load
from experiments.stages import prepare
from experiments.stages.sweep import collect

from .made import BASE, PARAMS, cell, ended, evaluation_record, kept_checkpoint, step_record

pytestmark = pytest.mark.usefixtures("here")


def test_a_longer_run_holds_the_shorter_one() -> None:
    folder = ended(cell(rollouts=192), budget=192)
    assert cell_folder.finished(cell(rollouts=96), folder)
    assert cell_folder.finished(cell(rollouts=192), folder)
    assert not cell_folder.finished(cell(rollouts=256), folder)
    found = cell_folder.outcome(cell(rollouts=96))
    assert found.read("evals")["rollouts"].to_list() == [0, 32, 64, 96]
    assert found.read("ledger").filter(pl.col("cohort") == "trained")["rollouts"].sum() == 96
    assert set(found.read("pass_rates")["step"]) == {0, 4, 8, 12}
    assert found.step == 12


def test_a_run_that_diverged_is_finished_at_every_budget_and_diverged_only_within_it() -> None:
    folder = ended(cell(rollouts=192), budget=160, diverged_at=20)
    for budget, diverged in ((96, False), (160, True), (192, True), (4096, True)):
        one = cell(rollouts=budget)
        assert cell_folder.finished(one, folder)
        assert cell_folder.outcome(one).diverged == diverged


def test_a_pilot_with_filtered_groups_is_one_row_a_step(tmp_path: Path) -> None:
    """`filter_zero_variance` gives a step two cohorts, which are both the pilot's."""
    pilot, swept = cell(purpose="pilot", seed=900), cell()
    ended(pilot, budget=96, cohorts=("trained", "filtered"))
    ended(swept, budget=96)
    collect([swept], tmp_path / "out", pilot=[pilot])
    ledger = tables.read(tmp_path / "out" / "ledger.parquet", "ledger")
    spent = ledger.group_by("cohort").agg(pl.col("rollouts").sum()).sort("cohort").rows()
    # 3 evaluations of 32 each, and the first of each seed once.
    assert spent == [("eval", 2 * 96 + 2 * 32), ("pilot", 96), ("trained", 96)]


def keep_policy(one: Cell, *, step: int) -> None:
    """What a worker leaves of a cell's policy."""
    policy = cell_folder.policy_of(cell_folder.folder_of(one))
    policy.mkdir(parents=True)
    (policy / "model.safetensors").write_bytes(b"\0" * 500)
    cell_folder.set_policy(cell_folder.folder_of(one), step)


def test_a_damaged_table_among_many_is_named(tmp_path: Path) -> None:
    cells = [cell(seed=seed) for seed in range(3)]
    damaged = [ended(one, budget=96) for one in cells][1] / "pass_rates.parquet"
    damaged.write_bytes(damaged.read_bytes()[:-20])
    with pytest.raises(ValueError, match=f"^{damaged}: not readable as parquet"):
        collect(cells, tmp_path / "out")


def test_checkpoints_go_before_policies_those_of_the_sweep_last_and_those_of_cells_that_run_never() -> None:
    running, own, old, new = cells = [cell(seed=seed) for seed in range(4)]
    for age, one in enumerate(cells):
        # The one that runs was finished to a smaller budget, and goes on from its checkpoint.
        folder = ended(one, budget=96)
        kept_checkpoint(folder)
        if one is not running:
            keep_policy(one, step=12)
        os.utime(folder / "done.json", (age, age))

    def pruned(gigabytes: float) -> list[str]:
        return cell_folder.prune(gigabytes, last={own.run_id}, keep={running.run_id})

    # Four checkpoints of 1,000 bytes, and three policies of 500.
    assert pruned(5.6e-6) == []
    assert pruned(4.5e-6) == [f"{old.run_id}/checkpoints"]
    assert pruned(2.6e-6) == [f"{one.run_id}/checkpoints" for one in (new, own)]
    assert pruned(2e-6) == [f"{old.run_id}/policy"]
    assert pruned(0.0) == [f"{new.run_id}/policy"]
    assert [cell_folder.has_policy(cell_folder.folder_of(one)) for one in cells] == [False, True, False, False]
    assert cell_folder.newest_checkpoint(cell_folder.folder_of(running))


@pytest.mark.parametrize(
    ("which", "kept"), [("none", ()), ("last", ("prescribe",)), ("all", ("prescribe", "sweep", "pilot"))]
)
def test_whose_policy_is_kept_and_saved_later_from_its_checkpoint(which: str, kept: tuple[str, ...]) -> None:
    for seed, purpose in enumerate(("prescribe", "sweep", "pilot")):
        one = cell(purpose=purpose, seed=seed)
        folder = ended(one, budget=96)
        assert cell_folder.keeps_policy(one, which) == (purpose in kept)
        # Without a checkpoint there is nothing to save.
        assert not cell_folder.lacks_policy(one, folder, which)
        kept_checkpoint(folder)
        assert cell_folder.lacks_policy(one, folder, which) == (purpose in kept)
        keep_policy(one, step=12)
        assert not cell_folder.lacks_policy(one, folder, which)
        ended(one, budget=96, diverged_at=12)
        assert not cell_folder.lacks_policy(one, folder, which)


def test_the_cells_that_are_listed_name_their_policy_where_it_is_of_their_budget(tmp_path: Path) -> None:
    one = cell(purpose="prescribe", rollouts=192)
    ended(one, budget=192)
    keep_policy(one, step=24)
    for rollouts, which, kept in ((192, "last", True), (192, "none", False), (96, "last", False)):
        collect([cell(purpose="prescribe", rollouts=rollouts)], tmp_path / "out", keep_policies=which)
        (state,) = json.loads((tmp_path / "out" / "cells.json").read_text())["cells"]
        assert state["policy"] == (f"work/cells/{one.run_id}/policy" if kept else None)
        assert (state["health"], state["judged"]) == ([], False)


@pytest.mark.parametrize(
    ("grows_at", "steps", "names", "judged"),
    [
        # A run of 48 steps is flagged, its first 24 steps are not.
        (24, 24, [], True),
        (24, 48, ["length_explosion"], True),
        # 19 steps are neither healthy nor not; one more, and they are judged.
        (9, 19, [], False),
        (9, 20, ["length_explosion"], True),
    ],
)
def test_a_cell_is_listed_with_its_health_within_its_budget_if_it_is_long_enough(
    tmp_path: Path, grows_at: int, steps: int, names: list[str], judged: bool
) -> None:
    """Responses four times as long from some step on."""
    short, spool = cell(rollouts=8 * steps), Spool(ended(cell(rollouts=384), budget=384))
    for step in range(1, 49):
        spool.write(step_record(step, length=40.0 if step > grows_at else 10.0))
    collect([short], tmp_path / "out")
    (state,) = json.loads((tmp_path / "out" / "cells.json").read_text())["cells"]
    assert ([flag["name"] for flag in state["health"]], state["judged"]) == (names, judged)
    assert health_text(*health_of(short)) == (", ".join(names) or ("no flags" if judged else "too short to judge"))


def test_a_cell_is_not_continued_with_other_prompts() -> None:
    folder = cell_folder.folder_of(cell())
    for _ in range(2):
        cell_folder.check_prompts(folder, "of today")
    with pytest.raises(ExperimentError, match=r"cells/[0-9a-f]+: the prompts differ from those that it began with"):
        cell_folder.check_prompts(folder, "of tomorrow")


def test_records_are_read_as_they_were_written(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    update = UpdateReport(
        objective={"loss": Mean(total=1 / 3, count=1.0)},
        gradient_norm=2.0,
        learning_rate=1e-3,
        sync_error=1e-7,
        skipped=Mean(total=3.0, count=8.0),
    )
    whole = StepRecord(step=2, rollouts=16, sample_seconds=0.1, update_seconds=0.2, update=update, gradient_retries=1)
    written = [evaluation_record(0, 0.25), step_record(1), whole]
    for record in written:
        spool.write(record)
    assert spool.records() == written


def test_only_what_is_new_is_read_also_of_steps_that_are_taken_again(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    assert spool.since() == []
    assert not spool.path.exists()
    for step in (1, 2, 3):
        spool.write(step_record(step))
    before = spool.since()
    spool.rewind(16)
    assert spool.since() == before[:2]
    for step in (3, 4):
        spool.write(step_record(step, reward=0.123456))
    assert [spooled.record.step for spooled in spool.since(before[-1].id)] == [3, 4]
    assert [spooled.time for spooled in spool.since()] == sorted(spooled.time for spooled in spool.since())


def test_another_base_model_than_was_prepared_is_noticed() -> None:
    """One of another name, and a folder whose model was trained again in place."""
    shutil.copytree(BASE, "model")
    preset = load(PARAMS, "smoke").model_copy(update={"base": ModelConfig(model="model")})
    prepare.record(preset.base)
    model, before = cell_folder.model_of(preset)
    assert Path(model) == Path("model").resolve()
    shutil.copytree("model", "other")
    with pytest.raises(ExperimentError, match=r"records the model model, and the preset names .*other: run `prepare`"):
        cell_folder.model_of(preset.model_copy(update={"base": ModelConfig(model="other")}))
    weights = Path("model") / "model.safetensors"
    save_file({name: tensor + 1 for name, tensor in load_file(weights).items()}, weights, {"format": "pt"})
    with pytest.raises(ExperimentError, match="has changed since the stage `prepare` recorded it"):
        cell_folder.model_of(preset)
    prepare.record(preset.base)
    assert cell_folder.model_of(preset)[1] != before
