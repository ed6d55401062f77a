"""What ``dvc repro`` would not notice by itself: each such change is another ``outputs/inputs.json``."""

import json
import re
import socket
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import yaml

from experiments.errors import ExperimentError
from experiments.running import cells
from experiments.running.cells import problems_hash
from experiments.settings import load
from experiments.stages import inputs

pytestmark = pytest.mark.slow("hashes of all code, again and again")

ROOT = Path(__file__).parents[2]
SOURCE = {"kind": "file", "path": "data.jsonl", "verifier": "python:judging.mine:judge", "train": 1, "validation": 1}


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a data set, a verifier in two modules, a base model that is a folder, and a preset of them."""
    monkeypatch.chdir(tmp_path)
    pinned = [f"{name}=={version(name).partition('+')[0]}" for name in ("polars", "torch", "numpy")]
    (tmp_path / "constraints.txt").write_text("\n".join(pinned))
    (tmp_path / "data.jsonl").write_text('{"prompt": "1+1=", "answer": "2"}\n{"prompt": "2+1=", "answer": "3"}\n')
    (tmp_path / "judging").mkdir()
    (tmp_path / "judging" / "__init__.py").write_text("")
    (tmp_path / "judging" / "mine.py").write_text(
        "from judging.helper import same\n\n\ndef judge(response, answer, metadata):\n"
        "    return same(response, answer)\n"
    )
    (tmp_path / "judging" / "helper.py").write_text('def same(one, other):\n    """Say."""\n    return one == other\n')
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    smoke = yaml.safe_load((ROOT / "params.yaml").read_text())["smoke"]
    smoke |= {"problems": [SOURCE], "base": {"kind": "model", "model": "model"}}
    smoke["resources"] = {"workers": 1, "sampler": "vllm"}
    (tmp_path / "params.yaml").write_text(
        yaml.safe_dump({"preset": "smoke", "problem_sets": [], "tested_sets": [], "smoke": smoke})
    )
    return tmp_path


def written() -> str:
    inputs.run(load(preset="smoke"))
    return inputs.FILE.read_text()


def edit(path: str, old: str, new: str) -> Callable[[], None]:
    def change() -> None:
        text = Path(path).read_text()
        assert old in text
        Path(path).write_text(text.replace(old, new))

    return change


def resources(**changes: Any) -> Callable[[], None]:
    def change() -> None:
        params = yaml.safe_load(Path("params.yaml").read_text())
        params["smoke"]["resources"] |= changes
        Path("params.yaml").write_text(yaml.safe_dump(params))

    return change


@pytest.mark.parametrize(
    "change",
    [
        edit("data.jsonl", "1+1", "1+ 1"),
        edit("judging/helper.py", "one == other", "one != other"),
        edit("judging/mine.py", "same(response", "not same(response"),
        edit("model/config.json", "{}", '{"a": 1}'),
        resources(device="cuda"),
        resources(sampler="transformers"),
        resources(device="cuda", dtype="float32"),
        resources(learner_ranks=2),
        resources(placement="separate"),
        resources(placement="separate", replicas=2),
        resources(engine={"max_concurrent": 8}),
    ],
)
def test_a_change_that_results_depend_on_changes_the_file(change: Callable[[], None]) -> None:
    before = written()
    assert written() == before
    change()
    assert written() != before


@pytest.mark.parametrize(
    "change",
    [
        edit("judging/helper.py", '"""Say."""', '"""Say it."""'),
        resources(workers=2, reverse=True, stall_seconds=60.0, keep_policies="all"),
    ],
)
def test_a_change_that_no_result_depends_on_does_not(change: Callable[[], None]) -> None:
    before = written()
    change()
    assert written() == before


def test_it_names_no_machine_and_no_folder(here: Path) -> None:
    text = written()
    assert str(here) not in text
    libraries = json.loads(text)["libraries"]
    assert f'"{socket.gethostname()}"' not in text
    assert "/" not in "".join(f"{name}{there}" for name, there in libraries.items())


def test_another_version_of_a_library_is_noted_and_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before = written()
    assert "polars" in json.loads(before)["libraries"]
    monkeypatch.setattr(cells, "version", lambda name: "0.0.1" if name == "polars" else version(name))
    capsys.readouterr()
    assert written() != before
    assert "polars 0.0.1 for" in capsys.readouterr().out


def test_the_code_of_a_verifier_is_part_of_every_run_id() -> None:
    row = {"problem_id": "a", "prompt": "1+1=", "answer": "2", "verifier": SOURCE["verifier"], "source": "s"}
    table = pl.DataFrame([{**row, "split": "train"}])
    before = problems_hash(table)
    edit("judging/helper.py", "one == other", "one != other")()
    assert problems_hash(table) != before


def test_a_verifier_or_a_data_set_that_is_not_there_is_named(here: Path) -> None:
    edit("params.yaml", "judging.mine", "judged.mine")()
    with pytest.raises(ExperimentError, match=r"python:judged.mine:judge .*cannot be found"):
        written()
    edit("params.yaml", "judged.mine", "judging.mine")()
    (here / "data.jsonl").unlink()
    with pytest.raises(ExperimentError, match=r"data\.jsonl: no such file"):
        written()


def test_the_constraints_are_complete_and_name_no_place() -> None:
    """Each line pins one version; those of a machine like this one hold what its environment holds."""
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")]
    assert len(lines) > 200
    assert all(re.fullmatch(r"[\w.-]+==[\w.!]+", line) for line in lines)
    direct = dict(line.split("==") for line in (ROOT / "constraints-direct.txt").read_text().split() if "==" in line)
    assert len(direct) > 10
    everything = dict(line.split("==") for line in lines)
    assert {name: everything[name] for name in direct} == direct
