"""How many files of ours one question leads through, which a reader has to open: ``-s`` lists them."""

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import yaml
from isocompute.budget.cli import main as budget
from isocompute.frontier.cli import main as frontier
from isocompute.rollout import Sampling, load_problems, open_sampler, scoring_from, source_from
from isocompute.rollout.contract import tables

from experiments.settings import load
from experiments.stages import sweep
from experiments.stages.prepare import record

from .made import BASE, PARAMS, ROOT

pytestmark = pytest.mark.slow("a model, a fit")

SETTINGS = {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1}
SOURCE = {"kind": "reasoning_gym", "task": "chain_sum", "digits": "12345", "settings": SETTINGS}


@cache
def ours(code: str) -> str | None:
    """Path of a source file in the repository: the one of ``contract/`` for each link to it, none for a test."""
    path = Path(code).resolve()
    if not path.is_relative_to(ROOT):
        return None
    top, *rest = path.relative_to(ROOT).parts
    is_source = (top == "packages" and rest[1:2] == ["src"]) or top in ("contract", "experiments")
    return path.relative_to(ROOT).as_posix() if is_source and "tests" not in rest else None


def is_aside(frame: FrameType | None) -> bool:
    """Whether a call belongs to the import of a module, or to the parser of all commands, which nobody follows."""
    while frame is not None and not frame.f_code.co_filename.startswith("<frozen importlib"):
        if frame.f_code.co_name == "_parser" and frame.f_code.co_filename.endswith("command_line.py"):
            return True
        frame = frame.f_back
    return frame is not None


@contextmanager
def walked() -> Iterator[set[str]]:
    """The files of which a function is called meanwhile, in any thread."""
    files: set[str] = set()

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and (file := ours(frame.f_code.co_filename)) not in files and file and not is_aside(frame):
            files.add(file)

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        yield files
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
        print(f"{len(files)} files:", *sorted(files), sep="\n  ")


class AskedError(BaseException):
    """The engine was asked for the first time."""


class Inline:
    """An actor of Ray, or its class, whose methods are called at once and in this process."""

    def __init__(self, of: Any) -> None:
        self._of = of

    def options(self, **_: object) -> "Inline":
        return self

    def remote(self, *arguments: Any) -> "Inline":
        return Inline(self._of(*arguments))

    def __getattr__(self, name: str) -> "Inline":
        return Inline(getattr(self._of, name))


@pytest.fixture
def inline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray, without its processes."""
    import ray

    monkeypatch.setattr(ray, "is_initialized", lambda: True)
    monkeypatch.setattr(ray, "cluster_resources", lambda: {"CPU": 8.0})
    monkeypatch.setattr(ray, "remote", Inline)
    monkeypatch.setattr(ray, "wait", lambda tasks, **_: (list(tasks), []))
    monkeypatch.setattr(ray, "get", lambda task: task._of)
    monkeypatch.setattr(ray, "kill", lambda actor: None)
    # A worker adds a finder of its own.
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])


def test_a_cell_reaches_the_engine_through_24_files(store: Path, inline: None, monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.nn.modules.module import register_module_forward_pre_hook

    params = yaml.safe_load(PARAMS.read_text())
    smoke = params["smoke"]
    smoke["sweep"]["easy"] |= {
        "rollouts_per_problem": [2],
        "seeds": [0],
        "learning_rate": {"rule": "sqrt", "learning_rate": 1e-3, "batch_rollouts": 8},
    }
    smoke["prescribe"]["easy"]["baselines"] = [2]
    smoke["base"]["model"] = str(BASE)
    smoke["resources"] |= {"workers": 1, "sampler": "transformers"}
    Path("params.yaml").write_text(yaml.safe_dump(params))
    preset = load(Path("params.yaml"), "smoke")
    record(preset.base)
    problems = load_problems(source_from({**SOURCE, "train": 12, "validation": 8}))
    tables.write(problems, "problems", Path("outputs/prepared/base/easy.parquet"))

    def end(*_: object) -> None:
        raise AskedError

    hook = register_module_forward_pre_hook(end)
    try:
        with pytest.raises(AskedError), walked() as files:
            sweep.run(preset, "easy")
    finally:
        hook.remove()
    assert len(files) <= 24


def test_a_log_becomes_an_answer_through_40_files(tmp_path: Path) -> None:
    with walked() as files:
        assert budget(["doctor", str(ROOT / "packages/budget/docs/trl"), "--out", str(tmp_path / "tables")]) == 0
        assert frontier(["fit", str(tmp_path / "tables"), "--out", str(tmp_path / "fitted")]) == 0
    assert len(files) <= 40


def test_sixteen_responses_are_sampled_and_scored_through_14_files() -> None:
    problems = load_problems(source_from({**SOURCE, "train": 1, "validation": 1})).head(1)
    # With a scorer of its own, which begins with its first process.
    sampler = open_sampler(
        "transformers", str(BASE), Sampling(max_new_tokens=8), scoring=scoring_from({"seconds": 4.0})
    )
    try:
        with walked() as files:
            assert sampler.sample(problems, samples=16, seed=0, step=0)["reward"].len() == 16
    finally:
        sampler.close()
    assert len(files) <= 14
