"""Two ranks that share a policy take the updates that one learner takes, with half of the memory."""

from dataclasses import replace

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
from isocompute.learner.policy.loading import EVERY_GRADIENT, Sharding, shard
from sharded_ranks import Done, Experts, Updates, forking, take, together
from small_run import recorded, scored
from tiny_models import tiny_config, tiny_model
from torch.distributed.fsdp import FSDPModule
from transformers.models.qwen3 import modeling_qwen3

pytestmark = pytest.mark.slow("ranks in processes of their own")

UPDATES = 2
RANK = 12
COMMON = LearnerConfig(
    learning_rate=1e-3, compute=ComputeConfig(micro_batch_tokens=30), sync=SyncConfig(tolerance=None, mean=100.0)
)
TERMS = replace(COMMON, kl=KLConfig(coefficient=0.01), entropy=EntropyConfig(coefficient=0.01))
ADAPTED = replace(TERMS, adapter=AdapterConfig(rank=RANK))
LOWER = replace(COMMON.compute, precision="bfloat16", float32_head=False)
PPO = replace(
    TERMS, objective=ObjectiveConfig(algorithm="ppo", updates_per_batch=2), critic=CriticConfig(through_policy=True)
)
GSPO = replace(COMMON, objective=ObjectiveConfig(algorithm="gspo"), batch=BatchConfig(trained_rollouts=2))


PPO_CASE = "ppo, whose critic teaches the policy"
SAME = {
    "grpo with its terms, a rank with nothing to do": Updates(config=TERMS, empty=1),
    PPO_CASE: Updates(config=PPO),
    "gspo, decoupled, its head untied": Updates(config=GSPO, tied=False),
}
ROUTED = {
    "grpo on experts": Updates(config=TERMS, routed=True),
    "an adapter on experts": Updates(config=ADAPTED, routed=True),
}
if not hasattr(FSDPModule, EVERY_GRADIENT):
    ROUTED.clear()
ROUNDED = Updates(config=replace(ADAPTED, compute=LOWER), dtype=torch.float32)
CASES = {**SAME, **ROUTED, "an adapter on a model in bfloat16": ROUNDED}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Done, list[Done]]]:
    """Of each case what one learner and what each of two ranks came to; one group of ranks takes all of them.

    ``resumed`` is a run alone, and one whose first step two ranks took and whose second one learner; ``shared`` one
    whose first step one learner took and whose second two ranks.
    """
    folder = tmp_path_factory.mktemp("ranks")
    works: dict[str, Updates] = {}
    for name, case in CASES.items():
        with pytest.MonkeyPatch.context() as patch:
            if case.routed:
                patch.setattr(modeling_qwen3, "Qwen3MLP", Experts)
            policy = tiny_model(tiny_config("qwen3", tie_word_embeddings=case.tied, num_hidden_layers=2))
            policy.save_pretrained(folder / name)
            batches = [with_cohorts(scored(policy, recorded(step=step)), case.config.batch) for step in range(UPDATES)]
        works[name] = replace(case, model=folder / name, batches=batches)
    whole = works[PPO_CASE]
    begun, ended = (replace(whole, batches=batches) for batches in (whole.batches[:1], whole.batches[1:]))
    alone = {name: take(work) for name, work in works.items()}
    alone["begun"] = take(replace(begun, save=folder / "alone"))
    works["begun"] = replace(begun, save=folder / "together")
    works["shared"] = replace(ended, resume=folder / "alone")
    works["beside"] = replace(begun, alone=True)
    with forking("sharded_ranks"):
        found = dict(zip(works, together(2, list(works.values()), folder / "results"), strict=True))
    alone |= {"shared": alone[PPO_CASE], "resumed": alone[PPO_CASE], "beside": alone["begun"]}
    found["resumed"] = [take(replace(ended, resume=folder / "together"))]
    return {name: (alone[name], found[name]) for name in found}


def flat(tensors: dict[str, torch.Tensor]) -> torch.Tensor:
    return torch.cat([tensors[name].flatten() for name in sorted(tensors)]).double()


def apart(mine: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]) -> float:
    assert mine.keys() == theirs.keys()
    return float((flat(mine) - flat(theirs)).norm() / flat(mine).norm())


def check_same(alone: Done, rank: Done, *, gradients: float) -> None:
    """Every gradient and norm, and the weights by how far they moved."""
    steps = len(rank.gradients)
    assert steps > 0
    for mine, theirs in zip(alone.gradients[-steps:], rank.gradients, strict=True):
        assert apart(mine, theirs) < gradients
    assert rank.norms == pytest.approx(alone.norms[-steps:], rel=gradients)
    assert float(flat(alone.moved).norm()) > 0
    assert apart(alone.moved, rank.moved) < 1e-5


@pytest.mark.parametrize("name", [*SAME, *ROUTED])
def test_ranks_that_share_a_policy_take_the_updates_of_one_learner(
    runs: dict[str, tuple[Done, list[Done]]], name: str
) -> None:
    """Also where they route to different experts: a rank waits for no gradient that another one does not have."""
    alone, shared = runs[name]
    assert len(alone.gradients) == len(shared[0].gradients) >= UPDATES
    for rank in shared:
        check_same(alone, rank, gradients=1e-9)
        assert all(torch.equal(rank.weights[each], weight) for each, weight in shared[0].weights.items())
        assert 2 * rank.held == pytest.approx(alone.held, rel=0.15)
    unused = [each for each, gradient in alone.gradients[0].items() if "experts" in each and not gradient.any()]
    assert bool(unused) == (name in ROUTED)


def test_a_process_group_of_somebody_else_is_left_alone(runs: dict[str, tuple[Done, list[Done]]]) -> None:
    """An engine in the same process has one; a learner that took it for its own would count everything twice."""
    alone, beside = runs["beside"]
    for rank in beside:
        check_same(alone, rank, gradients=1e-9)
        assert rank.held == alone.held


def test_beneath_an_adapter_they_share_a_model_in_bfloat16(runs: dict[str, tuple[Done, list[Done]]]) -> None:
    """Alone the layers between are in float32, so that they agree to what bfloat16 rounds."""
    alone, shared = runs["an adapter on a model in bfloat16"]
    assert {gradient.dtype for step in shared[0].gradients for gradient in step.values()} == {torch.float32}
    assert shared[0].norms == pytest.approx(alone.norms, rel=0.1)
    assert all(torch.equal(shared[1].weights[name], weight) for name, weight in shared[0].weights.items())
    model = sum(weight.numel() for weight in alone.weights.values())
    adapter = sum(RANK * sum(weight.shape) for name, weight in alone.weights.items() if "_proj" in name)
    # Two bytes a weight, and beside each number of A and B its gradient and two moments in float32.
    assert alone.held == pytest.approx(2 * model + 16 * adapter, rel=0.01)


@pytest.mark.parametrize("name", ["resumed", "shared"])
def test_another_number_of_ranks_continues_from_a_checkpoint(
    runs: dict[str, tuple[Done, list[Done]]], name: str
) -> None:
    straight, continued = runs[name]
    for rank in continued:
        assert len(rank.gradients) == len(straight.gradients) // 2
        check_same(straight, rank, gradients=1e-9)


def test_experts_that_this_torch_cannot_share_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(modeling_qwen3, "Qwen3MLP", Experts)
    monkeypatch.delattr(FSDPModule, EVERY_GRADIENT, raising=False)
    with pytest.raises(LearnerError, match=r"Qwen3For.*sharding"):
        shard(tiny_model(tiny_config("qwen3")), Sharding(ranks=None, device="cpu"))
