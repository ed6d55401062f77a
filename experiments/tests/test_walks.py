"""How many files of ours one question leads through, which a reader must open: ``-s`` lists them."""

import re
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from isocompute.budget.cli import main as budget
from isocompute.frontier.cli import main as frontier
from isocompute.rollout import Sampling, open_sampler, scoring_from
from isocompute.rollout.contract import tables
from transformers import LlamaForCausalLM

from experiments.stages import sweep
from experiments.stages.prepare import record

from .made import BASE, ROOT, smoke, sums

pytestmark = pytest.mark.slow("a model, a fit")


@cache
def ours(code: str) -> str | None:
    """A source file's path in the repository: the one of ``contract/`` for each link to it, none for a test."""
    path = Path(code).resolve()
    name = path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else ""
    return name if re.match(r"(packages/\w+/src|contract|experiments)/(?!(.*/)?tests/)", name) else None


def is_aside(frame: FrameType | None) -> bool:
    """Whether a call belongs to the import of a module, or to the parser of all commands, which nobody follows."""
    while frame is not None and not frame.f_code.co_filename.startswith("<frozen importlib"):
        if frame.f_code.co_name == "_parser" and frame.f_code.co_filename.endswith("command_line.py"):
            return True
        frame = frame.f_back
    return frame is not None


@contextmanager
def walked(most: int) -> Iterator[None]:
    """Count the files of which a function is called meanwhile, in any thread."""
    files: set[str] = set()

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and (file := ours(frame.f_code.co_filename)) and file not in files and not is_aside(frame):
            files.add(file)

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        yield
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
        print(f"{len(files)} files:", *sorted(files), sep="\n  ")
    assert len(files) <= most


class Inline:
    """An actor of Ray, or its class, whose methods are called at once and in this process."""

    def __init__(self, of: Any) -> None:
        self.of, self.options = of, lambda **_: self

    def remote(self, *arguments: Any) -> "Inline":
        return Inline(self.of(*arguments))

    def __getattr__(self, name: str) -> "Inline":
        return Inline(getattr(self.of, name))


def test_a_cell_reaches_the_engine_through_25_files(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Ray, without its processes.
    fakes = {"remote": Inline, "get": lambda task: task.of, "wait": lambda tasks, **_: (list(tasks), [])}
    fakes |= {"is_initialized": lambda: True, "cluster_resources": lambda: {"CPU": 8.0}, "kill": lambda actor: None}
    for name, fake in fakes.items():
        monkeypatch.setattr(f"ray.{name}", fake)
    # A worker adds a finder of its own.
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    rate = {"rule": "sqrt", "learning_rate": 1e-3, "batch_rollouts": 8}
    of_sweep = {"rollouts_per_problem": [2], "seeds": [0], "learning_rate": rate}
    own = {"base.model": str(BASE), "resources.workers": 1, "resources.sampler": "transformers"}
    changes = {f"sweep.easy.{name}": value for name, value in of_sweep.items()}
    preset = smoke(Path(), {**changes, **own, "prescribe.easy.baselines": [2]})
    record(preset.base)
    tables.write(sums(12, 8), "problems", Path("outputs/prepared/base/easy.parquet"))

    # Where the engine is called for the first time.
    monkeypatch.setattr(LlamaForCausalLM, "forward", lambda *_, **__: sys.exit())
    with walked(25), pytest.raises(SystemExit):
        sweep.run(preset, "easy")


@pytest.mark.usefixtures("short_chains")
def test_a_log_becomes_an_answer_through_40_files(tmp_path: Path) -> None:
    with walked(40):
        assert budget(["doctor", str(ROOT / "packages/budget/docs/trl"), "--out", str(tmp_path / "tables")]) == 0
        assert frontier(["fit", str(tmp_path / "tables"), "--out", str(tmp_path / "fitted")]) == 0


def test_sixteen_responses_are_sampled_and_scored_through_14_files() -> None:
    # With a scorer of its own, which begins with its first process.
    scoring, problems = scoring_from({"seconds": 4.0}), sums(1, 1).head(1)
    with (
        closing(open_sampler("transformers", str(BASE), Sampling(max_new_tokens=8), scoring=scoring)) as sampler,
        walked(14),
    ):
        assert sampler.sample(problems, samples=16, seed=0, step=0)["reward"].len() == 16
