"""How many files of ours one question leads through, which a reader must open: ``-s`` lists them."""

import re
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import cache
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any

import pytest
from isocompute.budget.cli import main as budget
from isocompute.frontier.cli import main as frontier
from isocompute.learner import Checkpoints, Learner, LearnerConfig, RunConfig, restore, train
from isocompute.rollout import Sampling, open_sampler, scoring_from
from isocompute.rollout.contract import tables
from transformers import LlamaForCausalLM

from experiments.running.identity import LOOP, module_of, reached
from experiments.stages import sweep
from experiments.stages.prepare import record

from .made import BASE, ROOT, smoke, sums

pytestmark = pytest.mark.slow("a model, a fit")
ARCHITECTURE = ROOT / "docs" / "architecture.md"


@cache
def ours(code: str) -> str | None:
    """A source file's path in the repository: the one of ``contract/`` for each link to it, none for a test."""
    path = Path(code).resolve()
    name = path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else ""
    return name if re.match(r"(packages/\w+/src|contract|experiments)/(?!(.*/)?tests/)", name) else None


def is_aside(frame: FrameType | None) -> bool:
    """Whether a call belongs to the import of a module, or to the parser of all commands, which nobody follows."""
    while frame is not None and not frame.f_code.co_filename.startswith("<frozen importlib"):
        if frame.f_code.co_name == "parser_of" and frame.f_code.co_filename.endswith("command_line.py"):
            return True
        frame = frame.f_back
    return frame is not None


@contextmanager
def walked(title: str, most: int, *entries: str) -> Iterator[None]:
    """Note the files of which a function is called meanwhile, in any thread, in their order, some on a page's list.

    Every function that is called must be one that is reached from some entry points, of which identities are made.
    """
    called: set[tuple[str, str]] = set()
    files: list[str] = []

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and (file := ours(frame.f_code.co_filename)):
            name = frame.f_code.co_qualname.partition(".")[0]
            if (file, name) not in called and not is_aside(frame):
                called.add((file, name))
                files.extend({file} - {*files})

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        yield
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    print(f"{len(files)} files:", *files, sep="\n  ")
    assert len(files) <= most
    # A lambda has no name.
    defined = {(file, name) for file, name in called if not name.startswith("<")}
    found = [(module_of(module), names) for module, names in reached(*entries).names.items()]
    assert defined <= {(ours(str(module.path)), name) for module, names in found if module for name in names}
    section = ARCHITECTURE.read_text().partition(f"## {title}\n")[2].partition("\n## ")[0]
    named = re.findall(r"^\d+\. `([^`]+)`", section, re.MULTILINE)
    assert len(named) > 4
    assert [file for file in files if file in named] == named


class Inline:
    """An actor of Ray, or its class, whose methods are called at once and in this process."""

    def __init__(self, of: Any) -> None:
        self.of, self.options = of, lambda **_: self

    def remote(self, *arguments: Any) -> "Inline":
        return Inline(self.of(*arguments))

    def __getattr__(self, name: str) -> "Inline":
        return Inline(getattr(self.of, name))


def test_a_cell_reaches_the_engine_through_21_files(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    with walked("The way of n", 21, "experiments.stages.sweep:run"), pytest.raises(SystemExit):
        sweep.run(preset, "easy")


@pytest.mark.usefixtures("short_chains")
def test_a_log_becomes_an_answer_through_30_files(tmp_path: Path) -> None:
    with walked("The way of a log line", 30, "isocompute.budget.cli:main", "isocompute.frontier.cli:main"):
        assert budget(["doctor", str(ROOT / "packages/budget/docs/trl"), "--out", str(tmp_path / "tables")]) == 0
        assert frontier(["fit", str(tmp_path / "tables"), "--out", str(tmp_path / "fitted")]) == 0


def test_sixteen_responses_are_sampled_and_scored_through_9_files() -> None:
    # With a scorer of its own, which begins with its first process.
    scoring, problems = scoring_from({"seconds": 4.0}), sums(1, 1).head(1)
    with (
        closing(open_sampler("transformers", str(BASE), Sampling(max_new_tokens=8), scoring=scoring)) as sampler,
        walked("The way of a reward", 9, "isocompute.rollout.samplers.registry:open_sampler"),
    ):
        assert sampler.sample(problems, samples=16, seed=0, step=0)["reward"].len() == 16


def test_a_checkpoint_is_saved_and_read_again_through_9_files(tmp_path: Path) -> None:
    problems, config = sums(2, 0), LearnerConfig(learning_rate=1e-3)
    run = RunConfig(run_id="run", rollouts_per_problem=2, problems_per_batch=2, seed=0, evaluate_every=4)
    learners = [Learner(str(BASE), config) for _ in range(2)]
    checkpoints = Checkpoints(tmp_path / "checkpoints")
    progress = restore(learner=learners[0], checkpoints=checkpoints, run=run, problems=problems)
    # What a worker calls; a learner is given to the loop.
    with walked("The way of a checkpoint", 9, LOOP):
        train(
            run=run,
            problems=problems,
            sampler=None,
            learner=learners[0],
            evaluator=lambda **_: SimpleNamespace(row={}, scores={}, rollouts_table=None),
            meter=SimpleNamespace(admit=lambda **_: False, charge=lambda *_: None),
            checkpoints=checkpoints,
            progress=progress,
        )
        assert restore(learner=learners[1], checkpoints=checkpoints, run=run, problems=problems).evals == [{}]
