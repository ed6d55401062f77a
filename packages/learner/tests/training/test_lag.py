"""Batches sampled ahead: how old tokens may be, what is charged, and that a run goes on where it was."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from isocompute.learner.config import LearnerConfig, PipelineConfig
from isocompute.learner.errors import LearnerError, SyncError
from isocompute.learner.records.steps import Agreement, StepRecord, UpdateReport, lag_statistics
from isocompute.learner.saving.checkpoint import Checkpoints
from isocompute.learner.training import loop
from isocompute.learner.training.loop import without_stale
from isocompute.learner.training.run import restore
from isocompute.learner.updates.learner import Learner
from small_run import PROBLEMS, RUN, Steps, Trial, paid, weights


def with_lag(config: LearnerConfig, lag: int) -> LearnerConfig:
    return replace(config, pipeline=PipelineConfig(lag=lag, mode="constant"))


@pytest.fixture
def lagged(trial: Trial) -> Trial:
    trial.config = with_lag(trial.config, 2)
    return trial


EVERY = {"every_evaluations": None, "every_steps": 1}


def test_with_a_constant_lag_a_batch_is_sampled_that_many_versions_before(trial: Trial) -> None:
    meter, lag, records = Steps(6), 3, list[Any]()
    trial.config = with_lag(trial.config, lag)
    ended = trial.run("run", steps=6, records=records, meter=meter)
    found = [record.lag for record in records if isinstance(record, StepRecord)]
    assert [(each.lag_max, each.lag_mean) for each in found] == [(min(step, lag),) * 2 for step in range(6)]
    assert [step for step, _ in paid(meter)] == [1, 2, 3, 4, 5, 6]
    # What each version was trained on, and how far sampling had gone by then.
    assert [row["rollouts"] for row in ended.evals] == [0, 32, 64, 96]
    begun = [min(6, 2 * i + lag) * RUN.batch_rollouts for i in range(4)]
    assert [row["begun_rollouts"] for row in ended.evals[1:]] == begun[1:]


def test_a_longer_run_with_a_lag_that_was_cut_off_begins_as_the_shorter_one_bit_for_bit(lagged: Trial) -> None:
    store = Checkpoints(lagged.home / "longer")
    whole, straight = lagged.run("straight", steps=8, every=EVERY), lagged.weights()
    lagged.kill("longer", after=1, every=EVERY)
    lagged.run("longer", steps=5, every=EVERY)
    at_the_end = Learner(lagged.model, lagged.config)
    ended = restore(learner=at_the_end, checkpoints=store, run=RUN, problems=PROBLEMS, ended=True)
    assert ended.step == 5
    assert torch.equal(weights(at_the_end), lagged.weights())
    # Before the step at which the shorter run has ended, whose checkpoint must not be taken for this run's newest.
    lagged.kill("longer", after=6, every=EVERY)
    assert store.newest_step() == 4
    assert lagged.run("longer", steps=8, every=EVERY) == whole
    assert torch.equal(straight, lagged.weights())


@pytest.mark.parametrize("fault", ["corrupted", "lost", "reordered"])
def test_a_push_that_is_wrong_stops_the_run_before_anything_is_learnt_from_it(fault: str, lagged: Trial) -> None:
    taken, sent = lagged.sampler.sync, {}

    def faulty(pushed: Any, version: int) -> None:
        sent[version] = {name: tensor.clone() for name, tensor in pushed}
        given = sent[version]
        if version == 3:
            name = next(name for name, tensor in given.items() if tensor.ndim == 2)
            wrong = {"corrupted": given | {name: given[name] + 0.05}, "lost": sent[2], "reordered": sent[1]}
            given = wrong[fault]
        taken(given.items(), version)

    lagged.sampler.sync = faulty
    with pytest.raises(SyncError):
        lagged.run("run", steps=8)
    # Step 3 made the weights that were lost; no step was taken after it.
    assert lagged.learner.version == 3


def test_a_lag_needs_a_pipe_of_its_mode_and_two_checkpoints(lagged: Trial) -> None:
    with pytest.raises(LearnerError, match="keep"):
        lagged.run("run", steps=1, every={"keep": 1})
    lagged.config = replace(lagged.config, pipeline=PipelineConfig(lag=1))
    with pytest.raises(LearnerError, match="no pipe"):
        lagged.run("run", steps=1)


def test_lag_is_counted_by_token_and_groups_over_the_bound_are_dropped_whole() -> None:
    used = pl.DataFrame(
        {
            "problem_id": ["a", "a", "b"],
            "response_ids": [[1] * 4, [1] * 2, [1] * 10],
            "weights_version": [5, 6, 7],
            "version_starts": [[0, 3], [0], [0, 2, 8]],
            "versions": [[5, 7], [6], [7, 8, 9]],
            "finish_reason": ["stop"] * 3,
        },
        schema_overrides={"version_starts": pl.List(pl.Int32)},
    )
    found = lag_statistics(used, used.clear(), version=9, idle={"engines": 0.25, "trainer": 0.5})
    # 3 tokens of 5, 1 of 7; 2 of 6; 2 of 7, 6 of 8, 2 of 9.
    assert found.lag_mean == pytest.approx((3 * 4 + 2 + 2 * 3 + 2 * 2 + 6) / 16)
    assert (found.lag_max, found.mixed_share) == (4, pytest.approx(2 / 3))
    assert (found.engines_idle_share, found.trainer_idle_share) == (0.25, 0.5)
    kept, stale = without_stale(used, version=9, lag=3)
    assert (kept["problem_id"].to_list(), stale["problem_id"].to_list()) == (["b"], ["a", "a"])


# Random schedules, with a learner that learns nothing and engines that change weights within responses.


@dataclass
class Counter:
    """A learner whose weights are its version."""

    config: LearnerConfig
    version: int = 0
    seen: list[tuple[int, str]] = field(default_factory=list)

    def weights(self) -> Iterable[tuple[str, torch.Tensor]]:
        return [("w", torch.tensor([float(self.version)]))]

    def update(self, batch: pl.DataFrame, *, advance: bool = True) -> UpdateReport:
        newest = batch["versions"].list.last().max()
        oldest = batch["versions"].list.first().min()
        assert self.version - self.config.pipeline.lag <= oldest <= newest <= self.version
        self.version += advance
        return UpdateReport(objective={}, gradient_norm=1.0, learning_rate=1.0)

    def agreement(self, rollouts: pl.DataFrame) -> Agreement:
        return Agreement(maximum=0.0, mean=0.0, k3=0.0, quantile=0.0)

    def state(self) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        return dict(self.weights()), {"version": self.version}

    def load_state(self, tensors: Mapping[str, torch.Tensor], values: dict[str, Any]) -> None:
        self.version = values["version"]


Group = tuple[int, str, list[int]]
"""The step and the problem of a group, and the versions of its tokens, two of each."""


@dataclass
class Engines:
    """A sampler and a pipe in one: each push finishes some of the groups in flight, with tokens of several versions."""

    luck: np.random.Generator
    weights_version: int = 0
    generated: int = 0
    flying: list[Group] = field(default_factory=list)
    done: list[Group] = field(default_factory=list)

    def sample(self, problems: pl.DataFrame, *, samples: int, step: int, **_: Any) -> pl.DataFrame:
        return pl.concat([answers(step, name, [self.weights_version], samples) for name in problems["problem_id"]])

    def sync(self, given: Iterable[tuple[str, torch.Tensor]], version: int) -> None:
        assert float(dict(given)["w"]) == version
        self.weights_version = version

    def begin(self, problems: pl.DataFrame, *, step: int, **_: Any) -> None:
        self.flying += [(step, name, [self.weights_version]) for name in problems["problem_id"]]

    def take(self, step: int) -> pl.DataFrame:
        self._finish([group for group in self.flying if group[0] == step])
        taken = [answers(*group) for group in self.done if group[0] == step]
        self.done = [group for group in self.done if group[0] != step]
        return pl.concat(taken).sort("problem_id", "sample")

    def push(self, given: Iterable[tuple[str, torch.Tensor]], version: int) -> None:
        self._finish([group for group in self.flying if self.luck.random() < 0.5])
        self.sync(given, version)
        for _, _, versions in self.flying:
            versions.append(version)

    def abandon(self) -> pl.DataFrame | None:
        self._finish(self.flying)
        left, self.done = [answers(*group) for group in self.done], []
        return pl.concat(left) if left else None

    def idle(self) -> dict[str, float]:
        return {}

    def state(self) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        return {}, {"flying": self.flying, "done": self.done}

    def load_state(self, tensors: Mapping[str, torch.Tensor], values: dict[str, Any]) -> None:
        self.flying, self.done = (list(map(tuple, values[name])) for name in ("flying", "done"))

    def _finish(self, groups: list[Group]) -> None:
        self.flying = [group for group in self.flying if group not in groups]
        self.done += groups
        self.generated += 4 * len(groups)


def answers(step: int, name: str, versions: list[int], samples: int = 4) -> pl.DataFrame:
    """Rows of a group."""
    tokens = 2 * len(versions)
    row = {
        "run_id": "r",
        "step": step,
        "phase": "train",
        "problem_id": name,
        "prompt_ids": [1],
        "response_ids": [1] * tokens,
        "logprobs": [-1.0] * tokens,
        "finish_reason": "stop",
        "weights_version": versions[0],
        "versions": versions,
        "version_starts": list(range(0, tokens, 2)),
    }
    return pl.DataFrame([{**row, "sample": i, "reward": float(i % 2)} for i in range(samples)])


@given(st.integers(0, 6), st.integers(1, 12), st.integers(0, 2**32), st.lists(st.integers(0, 12), max_size=3))
def test_no_schedule_exceeds_the_bound_or_the_budget_or_loses_a_rollout(
    lag: int, limit: int, luck: int, deaths: list[int]
) -> None:
    config = LearnerConfig(learning_rate=1.0, pipeline=PipelineConfig(lag=lag, mode="virtual"))
    cell = replace(RUN, evaluate_every=None)

    class Budget(Steps):
        """Enforces rollouts, and dies after some charges."""

        def admit(self, *, step: int, rollouts: int) -> bool:
            return sum(counts for _, counts in self.spent) + rollouts <= limit * RUN.batch_rollouts

        def charge(self, step: int, rollouts: pl.DataFrame) -> None:
            super().charge(step, rollouts)
            if rollouts["cohort"][0] != "eval":
                self.spent.append((step, len(rollouts)))
            if self.dies is not None and len(self.spent) > self.dies:
                raise KeyboardInterrupt

    with TemporaryDirectory() as folder:
        store = Checkpoints(folder, every_evaluations=None, every_steps=2)
        spent: list[tuple[int, int]] = []
        for dies in [*deaths, None]:
            learner, engines = Counter(config), Engines(np.random.default_rng(luck))
            progress = restore(learner=learner, checkpoints=store, run=cell, problems=PROBLEMS)
            engines.weights_version = learner.version
            restored = progress.rollouts
            meter = Budget(limit)
            meter.spent = [(step, count) for step, count in spent if step <= progress.step]
            meter.dies = None if dies is None else len(meter.spent) + dies
            before = sum(count for _, count in meter.spent)
            in_pipe = len(progress.begun) * RUN.batch_rollouts
            try:
                ended = loop.train(
                    run=cell,
                    problems=PROBLEMS,
                    sampler=engines,
                    learner=learner,
                    meter=meter,
                    checkpoints=store,
                    progress=progress,
                    pipe=engines,
                    watch=lambda record: None,
                )
            except KeyboardInterrupt:
                spent = meter.spent
                assert restored == before
                continue
            # Every rollout is learnt from once: the sum of the ledger is what was generated, and the whole budget.
            total = sum(count for _, count in meter.spent)
            assert (ended.step, total) == (limit, limit * RUN.batch_rollouts)
            assert [step for step, _ in meter.spent] == list(range(1, limit + 1))
            assert engines.generated <= total - before
            assert engines.generated >= total - before - in_pipe
            assert (engines.flying, engines.done) == ([], [])
            break
