"""Ranks as Ray actors: the same as one learner, and no wait without an end."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import ray
import torch
from isocompute.learner import loop
from isocompute.learner.checkpoint import Checkpoint, Checkpoints
from isocompute.learner.config import LearnerConfig
from isocompute.learner.errors import LearnerError, SyncError
from isocompute.learner.group import LearnerGroup
from isocompute.learner.learner import Learner

pytestmark = pytest.mark.usefixtures("cluster")

PROBLEMS = pl.DataFrame({"problem_id": [f"p{i}" for i in range(8)]})
RUN = loop.RunConfig(run_id="r", rollouts_per_problem=4, problems_per_batch=4, seed=3, evaluate_every=32)


@pytest.fixture(scope="module")
def group(cluster: None, model: Path) -> Iterator[LearnerGroup]:
    """Two ranks, which take seconds to start."""
    ranks = LearnerGroup(model, LearnerConfig(learning_rate=1.0), world_size=2)
    yield ranks
    ranks.close()


@pytest.fixture
def two(group: LearnerGroup, config: LearnerConfig) -> LearnerGroup:
    """Two ranks at version 0."""
    group.reset(config)
    return group


def flat(tensors: dict[str, torch.Tensor], prefix: str = "", suffix: str = "") -> torch.Tensor:
    chosen = [t.flatten() for k, t in tensors.items() if k.startswith(prefix) and k.endswith(suffix)]
    return torch.cat(chosen)


def distance(a: torch.Tensor, b: torch.Tensor) -> float:
    """Relative to the length of the first."""
    return float((a - b).norm() / a.norm())


def train(learner: Any, sampler: Any, folder: Path, steps: int) -> loop.Progress:
    """Train through the loop; the evaluation is what the policy thinks of recorded answers."""

    class Meter:
        def admit(self, step: int, rollouts: int) -> bool:
            return step <= steps

        def charge(self, step: int, counts: Any) -> None:
            pass

    class Evaluated:
        def __init__(self, *, step: int, rollouts: int, tokens: int) -> None:
            self.rollouts_table = sampler.sample(PROBLEMS.head(4), samples=4, seed=99, step=0, phase="eval", run_id="r")
            logprobs = self.rollouts_table["logprobs"].explode().to_list()
            self.row = {"step": step, "rollouts": rollouts, "tokens": tokens, "logprobs": logprobs}

    store = Checkpoints(folder)
    progress = loop.restore(learner, store)
    loop.canary(learner, sampler, PROBLEMS, run_id="r")
    return loop.train(RUN, PROBLEMS, sampler, learner, Evaluated, Meter(), len, store, progress, lambda *told: None)


def test_two_ranks_take_the_same_update_as_one(two: LearnerGroup, learner: Learner, rollouts: pl.DataFrame) -> None:
    alone, together = learner.update(rollouts), two.update(rollouts)
    assert together.gradient_norm == pytest.approx(alone.gradient_norm, rel=1e-5)
    assert together.loss == pytest.approx(alone.loss, abs=1e-6)
    assert together.kl == pytest.approx(alone.kl, abs=1e-6)
    assert together.entropy == pytest.approx(alone.entropy, rel=1e-6)
    # Adam's first moment is a tenth of the gradient: the update before its sign-like normalisation.
    mine, theirs = learner.state()[0], two.state()[0]
    assert mine.keys() == theirs.keys()
    assert torch.allclose(flat(mine, suffix="exp_avg"), flat(theirs, suffix="exp_avg"), rtol=1e-4, atol=1e-7)


def test_two_ranks_train_through_the_loop_as_one_does(
    two: LearnerGroup, learner: Learner, replay: Any, tmp_path: Path
) -> None:
    alone = train(learner, replay, tmp_path / "one", 6)
    together = train(two, replay, tmp_path / "two", 6)
    assert (together.step, together.rollouts, together.tokens) == (alone.step, alone.rollouts, alone.tokens)
    # Sums in another order differ in their last bit, which Adam then carries on.
    assert distance(flat(dict(learner.weights())), flat(dict(two.weights()))) < 1e-6
    for mine, theirs in zip(alone.evals, together.evals, strict=True):
        assert distance(torch.tensor(mine["logprobs"]), torch.tensor(theirs["logprobs"])) < 1e-5


def test_a_group_continues_from_its_checkpoint_bit_for_bit(
    two: LearnerGroup, replay: Any, config: LearnerConfig, tmp_path: Path
) -> None:
    whole = train(two, replay, tmp_path / "whole", 4)
    straight = two.state()
    two.reset(config)
    assert two.version == 0
    train(two, replay, tmp_path / "cut", 3)
    two.reset(config)
    assert train(two, replay, tmp_path / "cut", 4) == whole
    again = two.state()
    assert again[1] == straight[1] == {"version": 4}
    assert all(torch.equal(tensor, again[0][name]) for name, tensor in straight[0].items())


def test_a_state_passes_from_a_group_to_one_learner_through_a_checkpoint(
    two: LearnerGroup, learner: Learner, rollouts: pl.DataFrame, tmp_path: Path
) -> None:
    two.update(rollouts)
    tensors, values = two.state()
    Checkpoints(tmp_path).save(Checkpoint(step=1, tensors=tensors, values=values))
    saved = Checkpoints(tmp_path).newest()
    assert saved is not None
    learner.load_state(saved.tensors, saved.values)
    assert learner.version == 1
    mine = learner.state()[0]
    assert mine.keys() == tensors.keys()
    assert all(torch.equal(tensor, mine[name]) for name, tensor in tensors.items())


def test_a_rank_without_a_rollout_takes_the_update_of_the_others(
    two: LearnerGroup, learner: Learner, rollouts: pl.DataFrame
) -> None:
    one = rollouts.head(1)
    alone, together = learner.update(one), two.update(one)
    assert together.gradient_norm == pytest.approx(alone.gradient_norm, rel=1e-5)
    assert torch.equal(flat(dict(learner.weights())), flat(dict(two.weights())))


def test_an_error_of_the_ranks_is_the_error_of_one_learner(two: LearnerGroup, rollouts: pl.DataFrame) -> None:
    stale = rollouts.with_columns(weights_version=pl.lit(7, dtype=pl.Int64))
    with pytest.raises(SyncError, match=r"^a batch for step 1 was sampled with weights version \[7\]") as caught:
        two.update(stale)
    assert "Traceback" not in str(caught.value)
    # No update was made, and all ranks can take the next.
    two.update(rollouts)
    assert two.version == 1


def test_more_ranks_than_the_cluster_has_is_an_error(model: Path, config: LearnerConfig) -> None:
    with pytest.raises(LearnerError, match=r"3 ranks need 3 CPUs.* has 2 in all"):
        LearnerGroup(model, config, world_size=3, patience=1)


def test_a_rank_that_dies_ends_the_update_and_leaves_room_for_others(
    group: LearnerGroup, config: LearnerConfig, rollouts: pl.DataFrame, tmp_path: Path
) -> None:
    group.reset(config)
    ray.kill(group._ranks[1])
    with pytest.raises(LearnerError, match="rank 1 of 2 died before it could update"):
        group.update(rollouts)
    group.close()
    # One that cannot be made leaves room, too: the second has nobody to wait for.
    for _ in range(2):
        with pytest.raises(LearnerError, match="cannot be loaded"):
            LearnerGroup(tmp_path / "nothing", config, world_size=1)
