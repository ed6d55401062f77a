"""What makes two runs one and the same, and what does not; what ``dvc repro`` would not notice by itself."""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache, partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import yaml
from isocompute.budget.contract import files
from isocompute.learner.config import ObjectiveConfig, OptimizerConfig
from isocompute.rollout import RolloutError
from isocompute.rollout.scoring.code import source_hash

from experiments.errors import ExperimentError
from experiments.running import cell_folder, cells, identity
from experiments.running.cells import problems_hash
from experiments.running.identity import CARRIES_NO_RESULT, LOOP
from experiments.settings import ResourcesConfig, load
from experiments.stages import inputs

from .made import ROOT, cell, edit, params

pytestmark = pytest.mark.slow("hashes of all code, again and again")


def test_the_budget_and_the_purpose_are_no_part_of_the_identity() -> None:
    one = cell()
    assert one.run_id == cell(rollouts=192).run_id == cell(purpose="prescribe").run_id
    others = [
        cell(seed=8),
        cell(rollouts_per_problem=8),
        cell(evaluate_every=96),
        cell(base="retrained"),
        cell(learner=replace(one.learner, optimizer=OptimizerConfig(decay="cosine", decay_steps=12))),
        cell(learner=replace(one.learner, objective=ObjectiveConfig(std="population"))),
        cell(surroundings={"device": "cuda"}),
        cell(surroundings={"engine": {"dtype": "bfloat16"}}),
        cell(surroundings={"code": "other"}),
        cell(surroundings={"versions": {"torch": "9"}}),
        cell(surroundings={"learner_ranks": 2}),
    ]
    assert len({one.run_id, *(other.run_id for other in others)}) == 1 + len(others)


def test_a_first_evaluation_is_shared_by_all_n_of_a_seed_and_by_no_other_seed() -> None:
    one = cell()
    assert one.baseline_id == cell(rollouts_per_problem=8).baseline_id == cell(problems_per_batch=4).baseline_id
    assert len({one.baseline_id, cell(seed=8).baseline_id, cell(base="c").baseline_id}) == 3


def test_the_number_of_engines_is_part_of_the_identity_and_one_engine_adds_nothing_to_it() -> None:
    own = {"sampler": "transformers", "placement": "separate"}
    one, two = (cells.computing(ResourcesConfig(**own, replicas=n)) for n in (2, 3))
    assert one != two
    alone = cells.computing(ResourcesConfig(sampler="transformers"))
    assert alone["placement"] == "colocated"
    assert set(alone) == {"sampler", "device", "engine", "placement", "learner_ranks"}


def test_the_text_of_an_error_is_no_code_and_what_is_computed_for_it_is(tmp_path: Path) -> None:
    path = tmp_path / "module.py"

    def hashed(text: str) -> str:
        path.write_text(text)
        return source_hash(path)

    refusals = (ROOT / "packages/learner/src/isocompute/learner/updates/learner.py").read_text()
    texts = re.findall(r'raise \w+\(\s*f?"([^"{]+)', refusals)
    assert texts
    assert hashed(refusals.replace(texts[0], f"Said otherwise: {texts[0]}")) == hashed(refusals)
    with_a_print = refusals + '\n\nif __name__ == "never":\n    print("a", f"b {1 + 1}")\n'
    assert hashed(with_a_print) != hashed(refusals)
    assert hashed(with_a_print.replace('"a", f"b {1 + 1}"', '"c", f"d {1 + 1} e"')) == hashed(with_a_print)
    assert hashed(with_a_print.replace("1 + 1", "1 + 2")) != hashed(with_a_print)


def test_the_code_of_a_cell_is_the_loop_and_what_it_needs() -> None:
    found = {name for name, names in identity.reached(LOOP, without=CARRIES_NO_RESULT).names.items() if names}
    needed = """
        isocompute.learner.objective.loss isocompute.learner.objective.prepare isocompute.learner.training.loop
        isocompute.learner.ranks.group isocompute.rollout.samplers.vllm.sampler isocompute.rollout.scoring.judges.tasks
        isocompute.rollout.scoring.sandbox.child isocompute.rollout.scoring.evaluation isocompute.budget.ledger.meter
        isocompute.rollout.scoring.sandbox.boot experiments.running.worker"""
    free = """
        experiments.report experiments.settings.preset isocompute.learner.saving.export
        isocompute.rollout.problems.loading isocompute.rollout.problems.named isocompute.budget.contract.tracking
        experiments.running.tracker experiments.running.pilots experiments.running.schedule"""
    assert {*needed.split()} <= found
    assert not {*free.split()} & found


def test_a_model_retrained_in_place_is_another_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "retrained"
    folder.mkdir()
    weights = folder / "model.safetensors"
    # Large enough for its hash to be remembered, which must not outlive the file.
    weights.write_bytes(b"\0" * cell_folder.LARGE)
    before = cell_folder.content(folder)
    assert cell_folder.content(folder) == before
    changed = bytearray(weights.read_bytes())
    changed[5] = 1
    weights.write_bytes(changed)
    assert cell_folder.content(folder) != before


def test_how_hard_a_problem_was_found_to_be_is_not_read_by_a_cell() -> None:
    row = {"problem_id": "a", "prompt": "1+1=", "answer": "2", "verifier": "exact", "source": "s", "split": "train"}
    table = pl.DataFrame([row | {"pass_rate": 0.5}])
    assert problems_hash(table) == problems_hash(table.with_columns(pass_rate=pl.lit(0.25)))
    assert problems_hash(table) != problems_hash(table.with_columns(answer=pl.lit("3")))


SOURCE = {"kind": "file", "path": "data.jsonl", "verifier": "python:judging.mine:judge", "train": 1, "validation": 1}


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a data set, a verifier in two modules, a base model that is a folder, and a preset of them."""
    monkeypatch.chdir(tmp_path)
    pinned = [f"{name}=={version(name).partition('+')[0]}" for name in ("polars", "torch", "numpy")]
    (tmp_path / "constraints.txt").write_text("\n".join(pinned))
    (tmp_path / "data.jsonl").write_text('{"prompt": "1+1=", "answer": "2"}\n{"prompt": "2+1=", "answer": "3"}\n')
    imports, body = "from judging.helper import same\n\n\n", "    return same(response, answer)\n"
    judge = f"{imports}def judge(response, answer, metadata):\n{body}"
    helper = 'def same(one, other):\n    """Say."""\n    return one == other\n'
    own = {"judging/__init__.py": "", "judging/mine.py": judge, "judging/helper.py": helper, "model/config.json": "{}"}
    for name, text in own.items():
        files.write_text(tmp_path / name, text)
    smoke = params()["smoke"]
    smoke |= {"problems": [SOURCE], "base": {"kind": "model", "model": "model"}}
    smoke["resources"] = {"workers": 1, "sampler": "vllm"}
    (tmp_path / "params.yaml").write_text(
        yaml.safe_dump({"preset": "smoke", "problem_sets": [], "tested_sets": [], "smoke": smoke})
    )
    return tmp_path


def written() -> dict[str, Any]:
    """What each stage depends on."""
    inputs.run(load(preset="smoke"))
    return {path.stem: json.loads(path.read_text()) for path in inputs.FOLDER.iterdir()}


@cache
def written_at_first() -> Mapping[str, str]:
    """The files of the folder above before any change, which are the same wherever it is."""
    written()
    return {path.name: path.read_text() for path in inputs.FOLDER.iterdir()}


def edited(path: str, old: str, new: str) -> Callable[[], None]:
    return partial(edit, path, old, new)


def resources(**changes: Any) -> Callable[[], None]:
    def change() -> None:
        params = yaml.safe_load(Path("params.yaml").read_text())
        params["smoke"]["resources"] |= changes
        Path("params.yaml").write_text(yaml.safe_dump(params))

    return change


def unseen() -> None:
    """Change what no stage depends on."""
    edit("judging/helper.py", '"""Say."""', '"""Say it."""')
    resources(workers=2, reverse=True, stall_seconds=60.0, keep_policies="all")()


COMPUTE = {"prepare", "sweep", "prescribe"}


@pytest.mark.parametrize(
    ("change", "stages"),
    [
        (edited("data.jsonl", "1+1", "1+ 1"), {"prepare"}),
        (edited("judging/helper.py", "one == other", "one != other"), COMPUTE),
        (edited("model/config.json", "{}", '{"a": 1}'), {"prepare"}),
        (resources(device="cuda"), COMPUTE),
        (unseen, set()),
    ],
)
def test_a_change_is_written_down_for_the_stages_that_depend_on_it(
    change: Callable[[], None], stages: set[str], capsys: pytest.CaptureFixture[str]
) -> None:
    for name, text in written_at_first().items():
        files.write_text(inputs.FOLDER / name, text)
    before = {path.stem: (path.read_text(), path.stat().st_mtime_ns) for path in inputs.FOLDER.iterdir()}
    change()
    capsys.readouterr()
    now = written()
    assert {stage for stage in now if now[stage] != json.loads(before[stage][0])} == stages
    assert {path.stem for path in inputs.FOLDER.iterdir() if path.stat().st_mtime_ns != before[path.stem][1]} == stages
    assert {*re.findall(r"^inputs: (\w+) has other", capsys.readouterr().out, re.MULTILINE)} == stages


def test_another_version_of_a_library_is_noted_where_it_is_used_and_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before = written()
    for name, stages in (("torch", COMPUTE), ("polars", {*COMPUTE, "frontier"})):
        assert {stage for stage in before if name in before[stage]["libraries"]} == stages
        with monkeypatch.context() as patch:
            patch.setattr(identity, "version", lambda asked, name=name: "0.0.1" if asked == name else version(asked))
            capsys.readouterr()
            now = written()
        assert {stage for stage in now if now[stage] != before[stage]} == stages
        assert f"{name} 0.0.1 for" in capsys.readouterr().out
        before = written()


def test_the_code_of_a_verifier_is_part_of_every_run_id() -> None:
    row = {"problem_id": "a", "prompt": "1+1=", "answer": "2", "verifier": SOURCE["verifier"], "source": "s"}
    table = pl.DataFrame([{**row, "split": "train"}])
    before = problems_hash(table)
    edit("judging/helper.py", "one == other", "one != other")
    assert problems_hash(table) != before


def test_a_verifier_or_a_data_set_that_is_not_there_is_named(here: Path) -> None:
    edit("params.yaml", "judging.mine", "judged.mine")
    with pytest.raises(RolloutError, match=r"python:judged.mine:judge .*cannot be found"):
        written()
    edit("params.yaml", "judged.mine", "judging.mine")
    (here / "data.jsonl").unlink()
    with pytest.raises(ExperimentError, match=r"data\.jsonl: no such file"):
        written()
