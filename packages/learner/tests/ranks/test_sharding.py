"""Ranks that share a policy take the updates that one learner takes, with a part of the memory.

By default on two ranks, and on three of which one has nothing to do; ISOCOMPUTE_SHARDING=all takes every objective on
two to four.
"""

import os
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from isocompute.learner.config import (
    AdapterConfig,
    BatchConfig,
    ComputeConfig,
    CriticConfig,
    EntropyConfig,
    KLConfig,
    LearnerConfig,
    ObjectiveConfig,
    SyncConfig,
)
from isocompute.learner.errors import LearnerError
from isocompute.learner.objective.advantages import with_cohorts
from isocompute.learner.policy.sharding import Sharding, shard
from recordings import recorded, scored
from sharded_ranks import Done, Experts, Work, forking, take, together
from tiny_models import tiny_config, tiny_model
from torch.distributed.fsdp import FSDPModule
from transformers.models.qwen3 import modeling_qwen3

pytestmark = pytest.mark.slow("ranks in processes of their own")

ALL = os.environ.get("ISOCOMPUTE_SHARDING") == "all"
UPDATES = 5 if ALL else 3
DIVIDED = 12
"""Rank of adapters: of the rows of A each of 2, 3 or 4 ranks has an equal part."""
COMMON = LearnerConfig(
    learning_rate=1e-3, compute=ComputeConfig(micro_batch_tokens=30), sync=SyncConfig(tolerance=None, mean=100.0)
)
TERMS = replace(COMMON, kl=KLConfig(coefficient=0.01), entropy=EntropyConfig(coefficient=0.01))
CONFIGS = {
    "grpo with its terms": TERMS,
    "ppo, whose critic teaches the policy": replace(
        TERMS, objective=ObjectiveConfig(algorithm="ppo", updates_per_batch=2), critic=CriticConfig(through_policy=True)
    ),
    "grpo with its terms, its head untied": TERMS,
    "gspo, decoupled": replace(
        COMMON, objective=ObjectiveConfig(algorithm="gspo"), batch=BatchConfig(trained_rollouts=2)
    ),
    "an adapter": replace(TERMS, adapter=AdapterConfig(rank=DIVIDED)),
    "dr_grpo": replace(COMMON, objective=ObjectiveConfig(algorithm="dr_grpo", constant_length=8)),
    "cispo": replace(COMMON, objective=ObjectiveConfig(algorithm="cispo", updates_per_batch=2)),
    "dapo, filtered": replace(
        COMMON, objective=ObjectiveConfig(algorithm="dapo", epochs=2), batch=BatchConfig(filter_zero_variance=True)
    ),
    "grpo with a KL in the reward": replace(COMMON, kl=KLConfig(coefficient=0.01, place="reward")),
    "an adapter, checkpointed": replace(
        TERMS, adapter=AdapterConfig(rank=DIVIDED), compute=replace(COMMON.compute, gradient_checkpointing=True)
    ),
    "grpo, checkpointed": replace(TERMS, compute=replace(COMMON.compute, gradient_checkpointing=True)),
    "grpo, checkpointed, its head untied": replace(TERMS, compute=replace(COMMON.compute, gradient_checkpointing=True)),
    "grpo, padded": replace(TERMS, compute=replace(COMMON.compute, layout="padded")),
}
ROUNDED = {
    "an adapter on a model in bfloat16": replace(
        CONFIGS["an adapter"], compute=replace(COMMON.compute, precision="bfloat16", float32_head=False)
    )
}
DEFAULT = list(CONFIGS)[:5]
CASES = (
    list(product(CONFIGS, (2, 3, 4), (None, 1)))
    if ALL
    else [*product(DEFAULT, (2,), (None,)), (DEFAULT[0], 3, 1), (DEFAULT[1], 3, 1)]
)


@pytest.fixture(scope="module", autouse=True)
def server() -> Iterator[None]:
    with forking():
        yield


def policy_of(name: str) -> Any:
    """A Qwen3 whose head is its embedding, unless the case's name says otherwise."""
    return tiny_model(tiny_config("qwen3", tie_word_embeddings="untied" not in name))


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of models by the names of the cases."""
    folder = tmp_path_factory.mktemp("qwen3")
    for name in (*CONFIGS, *ROUNDED):
        policy_of(name).save_pretrained(folder / name)
    return folder


def work_of(models: Path, name: str, dtype: torch.dtype = torch.float64, empty: int | None = None) -> Work:
    """A few updates."""
    config = {**CONFIGS, **ROUNDED}[name]
    policy = policy_of(name)
    batches = [with_cohorts(scored(policy, recorded(step=step)), config.batch) for step in range(UPDATES)]
    return Work(model=models / name, config=config, batches=batches, dtype=dtype, empty=empty)


@pytest.fixture(scope="module")
def runs(models: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[object, ...], tuple[Done, list[Done]]]:
    """Of each case what one learner and what each rank came to; the processes of a group take all of its cases."""
    keys = [(*case, torch.float64) for case in CASES]
    keys += [(name, 2, None, torch.float32) for name in (DEFAULT[0], *ROUNDED)]
    alone = {key: take(work_of(models, *key)) for key in {(name, dtype) for name, _, _, dtype in keys}}
    found = {}
    for ranks in sorted({ranks for _, ranks, _, _ in keys}):
        mine = [key for key in keys if key[1] == ranks]
        works = [work_of(models, name, dtype, empty) for name, _, empty, dtype in mine]
        all_done = together(ranks, works, tmp_path_factory.mktemp("ranks") / str(ranks))
        found |= {key: (alone[key[0], key[3]], done) for key, done in zip(mine, all_done, strict=True)}
    return found


def flat(tensors: dict[str, torch.Tensor]) -> torch.Tensor:
    return torch.cat([tensors[name].flatten() for name in sorted(tensors)]).double()


def apart(mine: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]) -> float:
    """Relative to the first."""
    assert mine.keys() == theirs.keys()
    return float((flat(mine) - flat(theirs)).norm() / flat(mine).norm())


def check_same(alone: Done, rank: Done, *, gradients: float) -> None:
    """Every gradient and norm, and the weights by how far they moved."""
    assert len(rank.gradients) == len(alone.gradients) >= UPDATES
    for mine, theirs in zip(alone.gradients, rank.gradients, strict=True):
        assert apart(mine, theirs) < gradients
    assert rank.norms == pytest.approx(alone.norms, rel=gradients)
    assert float(flat(alone.moved).norm()) > 0
    assert apart(alone.moved, rank.moved) < 1e-5


@pytest.mark.parametrize(("name", "ranks", "empty"), CASES)
def test_ranks_that_share_a_policy_take_the_updates_of_one_learner(
    runs: dict[tuple[object, ...], tuple[Done, list[Done]]], name: str, ranks: int, empty: int | None
) -> None:
    alone, shared = runs[name, ranks, empty, torch.float64]
    for rank in shared:
        check_same(alone, rank, gradients=1e-9)
        assert all(torch.equal(rank.weights[each], weight) for each, weight in shared[0].weights.items())


def test_in_float32_they_differ_by_rounding(runs: dict[tuple[object, ...], tuple[Done, list[Done]]]) -> None:
    alone, shared = runs[DEFAULT[0], 2, None, torch.float32]
    check_same(alone, shared[0], gradients=1e-5)


def test_beneath_an_adapter_they_share_a_model_in_bfloat16(
    runs: dict[tuple[object, ...], tuple[Done, list[Done]]],
) -> None:
    """Alone the layers between are in float32, so that they agree to what bfloat16 rounds."""
    alone, shared = runs[(*ROUNDED, 2, None, torch.float32)]
    assert {gradient.dtype for step in shared[0].gradients for gradient in step.values()} == {torch.float32}
    assert shared[0].norms == pytest.approx(alone.norms, rel=0.1)
    assert all(torch.equal(shared[1].weights[name], weight) for name, weight in shared[0].weights.items())
    model, adapter = parts(alone.weights, rank=DIVIDED)
    # Two bytes a weight, and beside each number of A and B its gradient and two moments in float32.
    assert alone.held == pytest.approx(2 * model + 16 * adapter, rel=0.01)


def parts(weights: dict[str, torch.Tensor], *, rank: int) -> tuple[int, int]:
    """Numbers of a model, and of an adapter on all of its layers."""
    layers = [weight for name, weight in weights.items() if "_proj" in name]
    return sum(w.numel() for w in weights.values()), sum(rank * (w.shape[0] + w.shape[1]) for w in layers)


def test_a_rank_holds_its_part_of_weights_gradients_and_moments(
    runs: dict[tuple[object, ...], tuple[Done, list[Done]]],
) -> None:
    for (name, ranks, _, _), (alone, shared) in runs.items():
        for rank in shared:
            assert rank.held * ranks == pytest.approx(alone.held, rel=0.15), name


def test_another_number_of_ranks_continues_from_a_checkpoint(models: Path, tmp_path: Path) -> None:
    whole = work_of(models, DEFAULT[1])
    first = replace(whole, batches=whole.batches[:2], save=tmp_path / "checkpoints")
    last = replace(whole, batches=whole.batches[2:], resume=tmp_path / "checkpoints")
    straight = take(whole)
    together(2, [first], tmp_path / "first")
    ((again, *_),) = together(3, [last], tmp_path / "last")
    alone = take(last)
    for found in (again, alone):
        steps = len(found.gradients)
        for mine, theirs in zip(straight.gradients[-steps:], found.gradients, strict=True):
            assert apart(mine, theirs) < 1e-9
        assert apart(straight.moved, found.moved) < 1e-5


def test_ranks_that_route_to_different_experts_take_the_updates_of_one_learner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the model and of an adapter on it: a rank waits for no gradient that another one does not have."""
    monkeypatch.setattr(modeling_qwen3, "Qwen3MLP", Experts)
    policy = tiny_model(tiny_config("qwen3"))
    policy.save_pretrained(tmp_path / "model")
    names = ("grpo with its terms", "an adapter")
    batches = [scored(policy, recorded(step=step)) for step in range(3)]
    works = [
        Work(
            model=tmp_path / "model",
            config=CONFIGS[name],
            routed=True,
            batches=[with_cohorts(batch, CONFIGS[name].batch) for batch in batches],
        )
        for name in names
    ]
    for work, (first, second) in zip(works, together(2, works, tmp_path / "ranks"), strict=True):
        alone = take(work)
        for rank in (first, second):
            assert rank.norms == pytest.approx(alone.norms, rel=1e-9)
            assert apart(alone.moved, rank.moved) < 1e-5
        unused = [name for name, gradient in alone.gradients[0].items() if "experts" in name and not gradient.any()]
        assert unused
    monkeypatch.delattr(FSDPModule, "set_reduce_scatter_unused_params")
    with pytest.raises(LearnerError, match=r"Qwen3For.*sharding"):
        shard(policy, Sharding(ranks=None, device="cpu"))
