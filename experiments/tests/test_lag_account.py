"""Random schedules of cells that sample ahead, killed at any instant: the sums of a real ledger against what was made.

The loop, its checkpoints, the ledger and the meter are real; the learner learns nothing and engines draw no token.
"""

import os
import random
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch
from isocompute.budget import History, Limits, Meter
from isocompute.budget.ledger import store
from isocompute.budget.ledger.ledger import under_way
from isocompute.learner import Checkpoints, LearnerConfig, Progress, RunConfig, restore, train
from isocompute.learner.config import BatchConfig, PipelineConfig
from isocompute.learner.records.steps import Agreement, UpdateReport
from isocompute.learner.training import loop
from isocompute.learner.training.run import Cursor, ProblemOrder

from experiments.running import cell_folder
from experiments.running.cells import Cell
from experiments.running.worker import Evaluated, UntilStopped, opened_ledger

from .made import cell

SCHEDULES = int(os.environ.get("ISOCOMPUTE_LAG_SCHEDULES", "67"))
"""Of each of three modes, 16 of them among the fast tests; ``nox -s faults`` has more."""
PROBLEMS = pl.DataFrame({"problem_id": [f"p{i}" for i in range(8)]})
PROBED, EVALUATED = 4, 3
"""Rollouts of a probe of pushed weights, and of an evaluation."""


class Killed(BaseException):
    """Ends a run where it is, as a kill does."""


@dataclass
class Mortal:
    """Passes calls on, and may die before and after each."""

    inner: Any
    lives: Callable[[], None]

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.inner, name)
        if not callable(found):
            return found

        def call(*arguments: Any, **named: Any) -> Any:
            self.lives()
            result = found(*arguments, **named)
            self.lives()
            return result

        return call


@dataclass
class Counter:
    """A learner whose weights are its version, and whose state is what it has seen."""

    config: LearnerConfig
    version: int = 0
    seen: list[tuple[int, list[str], int]] = field(default_factory=list)
    """Of each batch that was learnt from: its step, its problems and its responses."""

    def weights(self) -> Iterable[tuple[str, torch.Tensor]]:
        return [("w", torch.tensor([float(self.version)]))]

    def update(self, batch: pl.DataFrame, *, advance: bool = True) -> UpdateReport:
        (step,) = set(batch["step"])
        versions = {version for each in batch["versions"].to_list() for version in each}
        assert self.version - self.config.pipeline.lag <= min(versions) <= max(versions) <= self.version
        self.seen.append((step, sorted(set(batch["problem_id"])), len(batch)))
        self.version += advance
        return UpdateReport(objective={}, gradient_norm=1.0, learning_rate=1.0)

    def agreement(self, rollouts: pl.DataFrame) -> Agreement:
        return Agreement(maximum=0.0, mean=0.0, k3=0.0, quantile=0.0)

    def state(self) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        return dict(self.weights()), {"version": self.version, "seen": self.seen}

    def load_state(self, tensors: Mapping[str, torch.Tensor], values: dict[str, Any]) -> None:
        self.version, self.seen = values["version"], [(step, names, count) for step, names, count in values["seen"]]


@dataclass
class Made:
    """What the engines of all attempts at a run made for training, of which no ledger knows.

    Attributes:
        rollouts: Dispatched.
        unnoted: Of these, tries that were lost with an engine, while nothing is noted of them.
        announced: Noted, and not dispatched: a kill came between.
        again: Begun again beside those that a checkpoint brought back, and tries that were lost with an engine.
    """

    rollouts: int = 0
    unnoted: int = 0
    announced: int = 0
    again: int = 0


@dataclass
class Engines:
    """A sampler and a pipe in one: each push finishes some of the groups in flight, with tokens of several versions.

    Groups of it may be too old once they are complete, have equal rewards, or have lost a try with an engine.
    """

    luck: random.Random
    made: Made
    lag: int
    samples: int
    begins_again: bool
    faults: float
    progress: Progress
    weights_version: int = 0
    begun: dict[int, list[tuple[str, list[int], bool]]] = field(default_factory=dict)
    """By step, the groups: their problem, the versions of their tokens, and whether they are complete."""

    def sample(
        self, problems: pl.DataFrame, *, samples: int, seed: int, step: int, phase: str, run_id: str, **limit: int
    ) -> pl.DataFrame:
        if phase == "train":
            self._admit(step, len(problems) * samples)
        names = problems["problem_id"].to_list()
        return self._rows(step, [(name, [self.weights_version]) for name in names], samples)

    def sync(self, given: Iterable[tuple[str, torch.Tensor]], version: int) -> None:
        self.weights_version = version

    def begin(self, problems: pl.DataFrame, *, samples: int, seed: int, step: int, run_id: str) -> None:
        self._admit(step, len(problems) * samples)
        self.begun[step] = [(name, [self.weights_version], False) for name in problems["problem_id"]]

    def _admit(self, step: int, rollouts: int) -> None:
        assert self.progress.step < step <= self.progress.step + 1 + self.lag
        self.made.rollouts += rollouts
        self.made.announced = 0

    def take(self, step: int) -> pl.DataFrame:
        assert step == self.progress.step + 1 == min(self.begun)
        groups = [(name, versions) for name, versions, _ in self.begun.pop(step)]
        lost = 0
        if self.luck.random() < self.faults:
            # A response waited with an engine that was away, and takes its group with it.
            oldest = max(0, self.weights_version - self.lag - 1)
            groups[0] = (groups[0][0], [oldest, self.weights_version])
        elif self.luck.random() < self.faults:
            lost = self.samples
            self.made.rollouts += lost
            self.made.again += lost
            self.made.unnoted = lost
        return self._rows(step, groups, self.samples, lost=lost)

    def push(self, given: Iterable[tuple[str, torch.Tensor]], version: int) -> None:
        self.sync(given, version)
        for step, groups in self.begun.items():
            ended = [complete or self.luck.random() < 0.5 for *_, complete in groups]
            self.begun[step] = [
                (name, versions if done else [*versions, version], done)
                for (name, versions, _), done in zip(groups, ended, strict=True)
            ]

    def abandon(self) -> pl.DataFrame | None:
        left = [
            self._rows(step, [(name, versions) for name, versions, _ in groups], self.samples)
            for step, groups in self.begun.items()
        ]
        self.begun = {}
        return pl.concat(left) if left else None

    def idle(self) -> dict[str, float]:
        return {}

    def state(self) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        complete = sum(self.samples for groups in self.begun.values() for *_, done in groups if done)
        return {}, {"begun": [*self.begun.items()]} | ({"complete": complete} if self.begins_again else {})

    def load_state(self, tensors: Mapping[str, torch.Tensor], values: dict[str, Any]) -> None:
        for step, groups in values["begun"]:
            self.begun[step] = [tuple(group) for group in groups]
            if self.begins_again:
                self.begun[step] = [
                    (name, versions if done else [self.weights_version], done) for name, versions, done in groups
                ]
        if self.begins_again:
            again = sum(self.samples for groups in self.begun.values() for *_, done in groups if not done)
            self.made.rollouts += again
            self.made.again += again
        self.made.announced = 0

    def _rows(self, step: int, groups: list[tuple[str, list[int]]], samples: int, *, lost: int = 0) -> pl.DataFrame:
        rows = [
            {
                "run_id": "r",
                "step": step,
                "phase": "train",
                "problem_id": name,
                "sample": sample,
                "prompt_ids": [1],
                "response_ids": [] if sample >= samples else [1] * (2 * len(versions)),
                "logprobs": [] if sample >= samples else [-1.0] * (2 * len(versions)),
                # Of some groups they are equal.
                "reward": float(sample % 2 and (step + len(name) + int(name[1:])) % 3 > 0),
                "finish_reason": "aborted" if sample >= samples else "stop",
                "weights_version": versions[0],
                "versions": versions,
                "version_starts": [2 * i for i in range(len(versions))],
            }
            for place, (name, versions) in enumerate(groups)
            for sample in range(samples + (lost if not place else 0))
        ]
        types = {"response_ids": pl.List(pl.Int64), "logprobs": pl.List(pl.Float64)}
        return pl.DataFrame(rows, schema_overrides=types)


@dataclass
class Schedule:
    """A cell, when its checkpoints are saved, what its meter counts, and how long its attempts live."""

    luck: random.Random
    mode: Any
    made: Made = field(default_factory=Made)
    left: float = float("inf")
    """Calls until this attempt dies."""

    def __post_init__(self) -> None:
        draw = self.luck
        self.lag = draw.randint(1, 5)
        n, batch = draw.randint(2, 4), draw.randint(1, 3)
        self.batches = draw.randint(1, 6)
        # Of no whole number of batches, too.
        self.budget = self.batches * n * batch + draw.randrange(n * batch)
        self.counted: Any = draw.choice(("used", "paid"))
        self.tokens = draw.choice((None, None, draw.randint(1, 4) * self.budget))
        self.faults = 0.0 if self.mode == "constant" else draw.choice((0.0, 0.3))
        self.every: dict[str, Any] = draw.choice(
            ({}, {"every_evaluations": None, "every_steps": draw.randint(1, 4)}, {"every_steps": 3})
        )
        self.evaluate_every = draw.randint(1, 4)
        self.run = RunConfig(
            rollouts_per_problem=n,
            problems_per_batch=batch,
            seed=draw.randrange(100),
            evaluate_every=self.evaluate_every * n * batch,
        )
        self.config = LearnerConfig(
            learning_rate=1.0,
            batch=BatchConfig(filter_zero_variance=draw.random() < 0.5),
            pipeline=PipelineConfig(lag=self.lag, mode=self.mode),
        )

    def lives(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise Killed

    def cell(self) -> Cell:
        return cell(
            learner=self.config,
            rollouts=self.budget,
            rollouts_per_problem=self.run.rollouts_per_problem,
            problems_per_batch=self.run.problems_per_batch,
            seed=self.run.seed,
            evaluate_every=self.run.evaluate_every,
        )

    def attempt(self, one: Cell, home: Path) -> tuple[Counter, Progress, bool]:
        """Go on with the cell as a worker does; returns its learner, its progress, and whether it was stopped."""
        learner, checkpoints = Counter(self.config), Checkpoints(home / "checkpoints", **self.every)
        progress = restore(learner=learner, checkpoints=checkpoints, run=one.named_run, problems=PROBLEMS)
        engines = Engines(
            luck=self.luck,
            made=self.made,
            lag=self.lag,
            samples=self.run.rollouts_per_problem,
            begins_again=self.mode == "in_flight",
            faults=self.faults,
            progress=progress,
            weights_version=learner.version,
        )
        with opened_ledger(one, home, progress) as ledger:
            self.check(home)
            limits = Limits(rollouts=self.budget, response_tokens=self.tokens, counted=self.counted)
            meter = UntilStopped(Noting(ledger, limits, self), home)  # type: ignore[arg-type]

            def evaluator(*, step: int, at: int, rollouts: int, tokens: int) -> Evaluated:
                self.lives()
                table = engines.sample(PROBLEMS.head(EVALUATED), samples=1, seed=0, step=step, phase="eval", run_id="")
                return Evaluated(row={"step": step, "rollouts": rollouts}, scores={}, rollouts_table=table)

            ended = train(
                run=one.named_run,
                problems=PROBLEMS,
                sampler=Mortal(engines, self.lives),
                learner=Mortal(learner, self.lives),
                evaluator=evaluator,
                meter=Mortal(meter, self.lives),
                checkpoints=Mortal(checkpoints, self.lives),  # type: ignore[arg-type]
                progress=progress,
                pipe=None if self.mode == "constant" else Mortal(engines, self.lives),
                watch=lambda record: self.lives(),
            )
        return learner, ended, meter.stopped

    def check(self, home: Path) -> None:
        """Everything that was made by killed processes is charged once, or is what a checkpoint brings back."""
        totals = History.read(home / "run.ledger").totals()
        paid = totals.paid_training.rollouts
        reserved = paid + under_way(home / "run.ledger", totals.paid_training).rollouts
        self.made.rollouts += self.made.announced
        self.made.rollouts -= self.made.unnoted
        self.made.announced = self.made.unnoted = 0
        assert reserved == self.made.rollouts
        if self.counted == "paid":
            assert paid <= self.budget + self.made.again
        assert totals.used.rollouts <= self.budget + self.made.again

    def finish(self, home: Path) -> tuple[Counter, Progress, int]:
        """Kill, stop and go on until the cell has ended; returns what it learnt, and how often it was cut off."""
        one, cut = self.cell(), 0
        for _ in range(self.luck.randint(0, 4)):
            # Of a step there are some 40 instants.
            self.left = self.luck.randint(0, 40 * (self.batches + 2))
            if self.luck.random() < 0.2:
                cell_folder.request_stop(home)
            try:
                _, _, stopped = self.attempt(one, home)
            except Killed:
                stopped = True
            cell_folder.clear_stop(home)
            if not stopped:
                break
            cut += 1
        self.left = float("inf")
        learner, progress, _ = self.attempt(one, home)
        return learner, progress, cut


class Noting(Meter):
    """A meter that tells ``Made`` what is noted."""

    def __init__(self, ledger: Any, limits: Limits, schedule: Schedule) -> None:
        super().__init__(ledger, limits)
        self._of, self._schedule = ledger, schedule

    def reserve(self, rollouts: int) -> None:
        made, path, paid = self._schedule.made, self._of.path, self._of.totals.paid_training
        before = paid.rollouts + under_way(path, paid).rollouts
        super().reserve(rollouts)
        more = paid.rollouts + rollouts - before - made.unnoted
        made.announced, made.unnoted = more, 0


def check_asked(answered: pl.DataFrame, problems: pl.DataFrame, **_: str) -> None:
    """What comes out of the pipe are answers to what went in."""
    assert set(answered["problem_id"]) == set(problems["problem_id"])


@pytest.fixture
def homes(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder in memory, where there is one, whose ledgers wait for no disk, while nobody looks at columns of rows."""
    monkeypatch.setattr(store, "SYNCHRONOUS", "OFF")
    monkeypatch.setattr(loop, "check_answers", lambda *_, **__: None)
    monkeypatch.setattr(loop, "check_sampled", check_asked)
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
        yield Path(folder)


def batches(run: RunConfig) -> Iterator[list[str]]:
    """Problems of one step after the other."""
    order = ProblemOrder(PROBLEMS, problems_per_batch=run.problems_per_batch, seed=run.seed)
    cursor = Cursor()
    while True:
        yield order.batch(cursor)["problem_id"].to_list()
        cursor = order.after(cursor)


def check_end(schedule: Schedule, home: Path, learner: Counter, progress: Progress) -> dict[str, int]:
    """Compare the ledger of a run that has ended with what was learnt from; returns its rollouts by cohort."""
    history = History.read(home / "run.ledger")
    totals = history.totals()
    made, run = schedule.made, schedule.run
    assert totals.paid_training.rollouts == made.rollouts
    assert not under_way(home / "run.ledger", totals.paid_training)
    ledger = history.table()
    by_cohort: dict[str, dict[int, int]] = {}
    for step, cohort, rollouts in ledger.select("step", "cohort", "rollouts").iter_rows():
        by_cohort.setdefault(cohort, {})[step] = rollouts
    # Each group was learnt from once, in the order of admission, and is what the ledger says.
    assert by_cohort.get("trained", {}) == {step: count for step, _, count in learner.seen}
    steps = [step for step, *_ in learner.seen]
    assert steps == sorted(set(steps))
    order = dict(zip(range(1, progress.step + 1), batches(run), strict=False))
    assert all(set(names) <= set(order[step]) for step, names, _ in learner.seen)
    # Of every step that was taken the whole batch is there, and of a later one only what was not used.
    spent = dict.fromkeys(range(1, progress.step + 1), 0)
    for cohort in ("trained", "filtered", "stale", "failed"):
        for step, rollouts in by_cohort.get(cohort, {}).items():
            spent[step] += rollouts
    failed = by_cohort.get("failed", {})
    assert all(count - failed.get(step, 0) == run.batch_rollouts for step, count in spent.items())
    assert set(by_cohort.get("unused", {})) <= {progress.step + 1}
    # Evaluations are on the grid, say what was generated by then, and are charged once, beside the probes.
    rows = {row["step"]: row for row in progress.evals}
    assert (
        list(rows) == list(range(0, progress.step + 1, schedule.evaluate_every)) == [r["step"] for r in progress.evals]
    )
    for step, row in rows.items():
        until = sum(count for at, count in spent.items() if at <= step)
        assert row["rollouts"] == until
        ahead = row["begun_rollouts"] - until
        assert 0 <= ahead <= schedule.lag * run.batch_rollouts
        assert ahead % run.batch_rollouts == 0
    probes = {step: PROBED * (step in steps) for step in range(progress.step + 1)}
    evaluated = {step: EVALUATED * (step in rows) + probes[step] for step in probes}
    assert by_cohort.get("eval", {}) == {step: count for step, count in evaluated.items() if count}
    # Where nothing else limits it, the run ends with the last batch that fits.
    if schedule.counted == "used" and schedule.tokens is None and not schedule.faults:
        assert progress.step == schedule.budget // run.batch_rollouts
    return {name: count.rollouts for name, count in totals.canonical.items()} | {"lost": totals.lost_training.rollouts}


@pytest.mark.parametrize(
    "numbers", [range(16), pytest.param(range(16, SCHEDULES), marks=pytest.mark.slow("51 runs of each mode"))], ids=str
)
@pytest.mark.parametrize("mode", ["virtual", "in_flight", "constant"])
def test_everything_made_is_charged_once_and_learnt_from_once_wherever_a_run_with_a_lag_is_killed(
    mode: str, numbers: range, homes: Path
) -> None:
    sums: dict[str, int] = {}
    cuts = 0
    for number in numbers:
        schedule = Schedule(random.Random(f"{mode} {number}"), mode)
        home = homes / str(number)
        for longer in (False, True)[: 1 + (number % 4 == 0)]:
            if longer:
                schedule.budget += 3 * schedule.run.batch_rollouts
                schedule.tokens = schedule.tokens and 2 * schedule.tokens
            learner, progress, cut = schedule.finish(home)
            found = check_end(schedule, home, learner, progress)
            sums = {name: sums.get(name, 0) + count for name, count in found.items()}
            cuts += cut
    # All of it happened.
    assert cuts > len(numbers) / 2
    wanted = {"trained", "filtered", "unused", "lost", "eval"} | ({"stale", "failed"} if mode != "constant" else set())
    assert {name for name in wanted if not sums[name]} == set()
