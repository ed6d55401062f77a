"""Batches sampled ahead: how old tokens may be, what is charged, and that a run goes on where it was."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from isocompute.learner.config import ImportanceConfig, LearnerConfig, ObjectiveConfig, PipelineConfig
from isocompute.learner.errors import LearnerError, SyncError
from isocompute.learner.objective.prepare import prepare
from isocompute.learner.records.steps import Agreement, StepRecord, UpdateReport, lag_statistics
from isocompute.learner.saving.checkpoint import Checkpoints
from isocompute.learner.training import loop
from isocompute.learner.training.loop import without_stale
from isocompute.learner.training.run import restore
from isocompute.learner.updates.learner import Learner
from small_run import PROBLEMS, RUN, Steps, kill, moved, paid, recorded, run, scored, weights
from transformers import LlamaForCausalLM


def lagged(config: LearnerConfig, lag: int, **changes: Any) -> LearnerConfig:
    return replace(config, pipeline=PipelineConfig(lag=lag, mode="constant"), **changes)


EVERY = {"every_evaluations": None, "every_steps": 1}


def test_with_a_constant_lag_a_batch_is_sampled_that_many_versions_before(
    model: Path, config: LearnerConfig, replay: Any, tmp_path: Path
) -> None:
    records: list[Any] = []
    meter, lag = Steps(6), 3
    ended = run(Learner(model, lagged(config, lag)), replay, tmp_path, steps=6, records=records, meter=meter)
    found = [record.lag for record in records if isinstance(record, StepRecord)]
    assert [(each.lag_max, each.lag_mean) for each in found] == [(min(step, lag),) * 2 for step in range(6)]
    assert [step for step, _ in paid(meter)] == [1, 2, 3, 4, 5, 6]
    # What each version was trained on, and how far sampling had gone by then.
    assert [row["rollouts"] for row in ended.evals] == [0, 32, 64, 96]
    begun = [min(6, 2 * i + lag) * RUN.batch_rollouts for i in range(4)]
    assert [row["begun_rollouts"] for row in ended.evals[1:]] == begun[1:]


def test_a_longer_run_with_a_lag_that_was_cut_off_begins_as_the_shorter_one_bit_for_bit(
    model: Path, config: LearnerConfig, replay: Any, tmp_path: Path
) -> None:
    config, store = lagged(config, 2), Checkpoints(tmp_path / "longer")
    straight = Learner(model, config)
    whole = run(straight, replay, tmp_path / "straight", steps=8, every=EVERY)
    kill(Learner(model, config), replay, tmp_path / "longer", after=1, every=EVERY)
    shorter = Learner(model, config)
    run(shorter, replay, tmp_path / "longer", steps=5, every=EVERY)
    at_the_end = Learner(model, config)
    ended = restore(learner=at_the_end, checkpoints=store, run=RUN, problems=PROBLEMS, ended=True)
    assert ended.step == 5
    assert torch.equal(weights(at_the_end), weights(shorter))
    # Before the step at which the shorter run has ended, whose checkpoint must not be taken for this run's newest.
    kill(Learner(model, config), replay, tmp_path / "longer", after=6, every=EVERY)
    assert store.newest_step() == 4
    longer = Learner(model, config)
    assert run(longer, replay, tmp_path / "longer", steps=8, every=EVERY) == whole
    assert torch.equal(weights(straight), weights(longer))


@pytest.mark.parametrize("fault", ["corrupted", "lost", "reordered"])
def test_a_push_that_is_wrong_stops_the_run_before_anything_is_learnt_from_it(
    fault: str, model: Path, config: LearnerConfig, replay: Any, tmp_path: Path
) -> None:
    taken, sent = replay.sync, {}

    def faulty(pushed: Any, version: int) -> None:
        sent[version] = {name: tensor.clone() for name, tensor in pushed}
        given = sent[version]
        if version == 3:
            name = next(name for name, tensor in given.items() if tensor.ndim == 2)
            wrong = {"corrupted": given | {name: given[name] + 0.05}, "lost": sent[2], "reordered": sent[1]}
            given = wrong[fault]
        taken(given.items(), version)

    replay.sync = faulty
    learner, records = Learner(model, lagged(replace(config, learning_rate=0.01), 2)), []
    with pytest.raises(SyncError):
        run(learner, replay, tmp_path, steps=8, records=records)
    # Step 3 made the weights that were lost; no step was taken after it.
    assert learner.version == 3


def test_a_lag_needs_a_pipe_of_its_mode_and_two_checkpoints(
    model: Path, config: LearnerConfig, replay: Any, tmp_path: Path
) -> None:
    learner = Learner(model, replace(config, pipeline=PipelineConfig(lag=1)))
    with pytest.raises(LearnerError, match="no pipe"):
        run(learner, replay, tmp_path, steps=1)
    learner.reset(lagged(config, 1))
    with pytest.raises(LearnerError, match="keep"):
        run(learner, replay, tmp_path, steps=1, every={"keep": 1})


# Weights of tokens that three versions have drawn.


def mixed(policies: list[Any]) -> pl.DataFrame:
    """Responses whose tokens were drawn by the first, then by the second, then by the last of three policies."""
    base = recorded(groups=3, n=4, version=0).filter(pl.col("response_ids").list.len() > 2)
    by_each = [scored(policy, base)["logprobs"].to_list() for policy in policies]
    starts = [[0, 1, len(row) - 1] if len(row) > 2 else [0] for row in by_each[0]]
    drawn = [
        [by_each[sum(i >= start for start in at) - 1][row][i] for i in range(len(by_each[0][row]))]
        for row, at in enumerate(starts)
    ]
    return base.with_columns(
        pl.Series("logprobs", drawn, dtype=pl.List(pl.Float32)),
        pl.Series("version_starts", starts, dtype=pl.List(pl.Int32)),
        pl.Series("versions", [list(range(len(at))) for at in starts], dtype=pl.List(pl.Int64)),
        cohort=pl.lit("trained"),
        zero_variance=pl.lit(value=False),
    )


def reference(policy: Any, batch: pl.DataFrame, weigh: Any) -> torch.Tensor:
    """The gradient of −Σ weight · term over tokens, one response at a time; ``weigh`` gives a token's term."""
    for row in batch.iter_rows(named=True):
        scores = torch.log_softmax(policy(torch.tensor([row["prompt_ids"] + row["response_ids"]])).logits[0], -1)
        for i, token in enumerate(row["response_ids"]):
            own = scores[len(row["prompt_ids"]) + i - 1, token]
            ratio = (own - row["logprobs"][i]).exp()
            (-row["loss_weight"] * weigh(ratio, row["advantage"], own)).backward(retain_graph=True)
    return torch.cat([p.grad.flatten() for p in policy.parameters()])


WEIGHTS: dict[str, tuple[dict[str, Any], Any]] = {
    # MiniMax-M1, equations 4 and 5; ScaleRL, equation 4.
    "cispo": ({"algorithm": "cispo"}, lambda r, a, own: r.detach().clamp(max=5.0) * a * own),
    # PPO, equation 7, with π_old the policy that drew the token.
    "grpo": ({"algorithm": "grpo"}, lambda r, a, own: torch.minimum(r * a, r.clamp(0.8, 1.2) * a)),
    # PipelineRL, section 4: a truncated weight before the policy gradient.
    "tis": ({"surrogate": "policy_gradient"}, lambda r, a, own: r.detach().clamp(max=2.0) * a * own),
}


@pytest.mark.parametrize(("objective", "weigh"), WEIGHTS.values(), ids=WEIGHTS)
def test_a_token_is_weighted_by_the_policy_that_drew_it_where_a_response_spans_three_versions(
    objective: dict[str, Any], weigh: Any, model: Path, config: LearnerConfig, tmp_path: Path
) -> None:
    policies = [moved(LlamaForCausalLM.from_pretrained(model), 0.02 * k) for k in (3, 2, 1)]
    config = LearnerConfig(
        learning_rate=0.01,
        temperature=config.temperature,
        objective=ObjectiveConfig(**objective),
        importance=ImportanceConfig(cap=2.0),
        pipeline=PipelineConfig(lag=2, mode="constant"),
        compute=config.compute,
    )
    learner = Learner(model, config)
    learner.version = 2
    batch = prepare(mixed(policies), config)
    expected = reference(LlamaForCausalLM.from_pretrained(model), batch, weigh)
    report = learner.update(batch)
    assert report.gradient_norm == pytest.approx(float(expected.norm()), rel=1e-4)
    assert learner.version == 3
    # Moved by AdamW's first step, whose size is the learning rate and whose sign is the gradient's.
    before = torch.cat([p.detach().flatten() for p in LlamaForCausalLM.from_pretrained(model).parameters()])
    after = torch.cat([p.detach().flatten() for p in learner.policy.parameters()])
    large = expected.abs() > 1e-4 * expected.abs().max()
    assert torch.equal((after - before)[large].sign(), -expected[large].sign())


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


@dataclass
class Engines:
    """A sampler and a pipe in one: each push finishes some of the groups in flight, with tokens of several versions."""

    luck: np.random.Generator
    weights_version: int = 0
    generated: int = 0
    flying: list[tuple[int, str, list[int]]] = field(default_factory=list)
    done: dict[int, list[pl.DataFrame]] = field(default_factory=dict)

    def sample(
        self, problems: pl.DataFrame, *, samples: int, seed: int, step: int, phase: str, run_id: str, **limit: int
    ) -> pl.DataFrame:
        versions = [self.weights_version]
        return pl.concat([self._rows(step, name, versions, samples) for name in problems["problem_id"]])

    def sync(self, given: Iterable[tuple[str, torch.Tensor]], version: int) -> None:
        assert float(dict(given)["w"]) == version
        self.weights_version = version

    def begin(self, problems: pl.DataFrame, *, samples: int, seed: int, step: int, run_id: str) -> None:
        self.flying += [(step, name, [self.weights_version]) for name in problems["problem_id"]]

    def take(self, step: int) -> pl.DataFrame:
        for group in [group for group in self.flying if group[0] == step]:
            self._finish(group)
        return pl.concat(self.done.pop(step)).sort("problem_id", "sample")

    def push(self, given: Iterable[tuple[str, torch.Tensor]], version: int) -> None:
        for group in list(self.flying):
            if self.luck.random() < 0.5:
                self._finish(group)
        self.sync(given, version)
        for _, _, versions in self.flying:
            versions.append(version)

    def abandon(self) -> pl.DataFrame | None:
        left = [group for groups in self.done.values() for group in groups]
        left += [self._rows(step, name, versions) for step, name, versions in self.flying]
        self.generated += sum(4 for _ in self.flying)
        self.flying, self.done = [], {}
        return pl.concat(left) if left else None

    def idle(self) -> dict[str, float]:
        return {}

    def state(self) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        done = [
            [step, group["problem_id"][0], group["versions"][0].to_list()]
            for step, groups in self.done.items()
            for group in groups
        ]
        return {}, {"flying": [[*group] for group in self.flying], "done": done}

    def load_state(self, tensors: Mapping[str, torch.Tensor], values: dict[str, Any]) -> None:
        self.flying = [(step, name, [*versions]) for step, name, versions in values["flying"]]
        for step, name, versions in values["done"]:
            self.done.setdefault(step, []).append(self._rows(step, name, versions))

    def _finish(self, group: tuple[int, str, list[int]]) -> None:
        self.flying.remove(group)
        step, name, versions = group
        self.done.setdefault(step, []).append(self._rows(step, name, versions))
        self.generated += 4

    def _rows(self, step: int, name: str, versions: list[int], samples: int = 4) -> pl.DataFrame:
        tokens = [1] * (2 * len(versions))
        row = {
            "run_id": "r",
            "step": step,
            "phase": "train",
            "problem_id": name,
            "prompt_ids": [1],
            "response_ids": tokens,
            "logprobs": [-1.0] * len(tokens),
            "finish_reason": "stop",
            "weights_version": versions[0],
            "versions": versions,
            "version_starts": [2 * i for i in range(len(versions))],
        }
        return pl.DataFrame([{**row, "sample": i, "reward": float(i % 2)} for i in range(samples)])


@settings(max_examples=80)
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
            assert (engines.flying, engines.done) == ([], {})
            break
