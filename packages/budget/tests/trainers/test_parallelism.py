import pytest
from hypothesis import given
from hypothesis import strategies as st
from isocompute.budget import Allocation, BudgetError
from isocompute.budget.trainers.registry import read
from isocompute.budget.trainers.settings import Parallelism, RunPlan

degrees = st.builds(
    Parallelism, tensor=st.sampled_from([1, 2, 4]), pipeline=st.sampled_from([1, 2]), context=st.sampled_from([1, 2, 3])
)

VERL = {"data.train_batch_size": 12, "actor_rollout_ref.actor.ppo_mini_batch_size": 12, "trainer.total_epochs": 1}
GPUS = [
    (
        "verl",
        {
            **VERL,
            "actor_rollout_ref.rollout.n": 2,
            "actor_rollout_ref.actor.strategy": "megatron",
            "actor_rollout_ref.actor.megatron.tensor_model_parallel_size": 4,
            "actor_rollout_ref.actor.megatron.pipeline_model_parallel_size": 2,
            "trainer.nnodes": 2,
        },
        16,
        2,
    ),
    (
        "verl",
        {**VERL, "actor_rollout_ref.rollout.n": 2, "actor_rollout_ref.rollout.tensor_model_parallel_size": 4},
        8,
        8,
    ),
    (
        "verl",
        {
            **VERL,
            "actor_rollout_ref.rollout.n": 2,
            "actor_rollout_ref.actor.fsdp_config.ulysses_sequence_parallel_size": 4,
        },
        8,
        2,
    ),
    (
        "verl",
        {
            **VERL,
            "actor_rollout_ref.rollout.n": 1,
            "actor_rollout_ref.actor.use_dynamic_bsz": True,
            "actor_rollout_ref.actor.ulysses_sequence_parallel_size": 2,
        },
        8,
        4,
    ),
    (
        "nemo-rl",
        {
            "cluster.gpus_per_node": 8,
            "policy.dtensor_cfg.tensor_parallel_size": 4,
            "policy.megatron_cfg.pipeline_model_parallel_size": 8,
        },
        8,
        2,
    ),
    (
        "nemo-rl",
        {
            "cluster.gpus_per_node": 8,
            "cluster.num_nodes": 4,
            "policy.megatron_cfg.enabled": True,
            "policy.megatron_cfg.pipeline_model_parallel_size": 8,
            "policy.generation.colocated.enabled": False,
            "policy.generation.colocated.resources.num_nodes": 2,
        },
        16,
        2,
    ),
    (
        "skyrl",
        {
            "trainer.placement.policy_num_gpus_per_node": 8,
            "generator.inference_engine.num_engines": 8,
            "trainer.strategy": "megatron",
            "trainer.policy.megatron_config.context_parallel_size": 4,
        },
        8,
        2,
    ),
    (
        "openrlhf",
        {"ds.tensor_parallel_size": 2, "ds.ring_attn_size": 2, "train.batch_size": 2, "rollout.batch_size": 2},
        8,
        2,
    ),
    ("openrlhf", {"ring_attn_size": 4, "train_batch_size": 2, "rollout_batch_size": 2}, 8, 2),
    ("prime-rl", {"deployment.num_train_gpus": 8, "trainer.model.cp": 4}, 8, 2),
    ("open-instruct", {"num_learners_per_node": [8, 8], "sequence_parallel_size": 4, "total_episodes": 640}, 16, 4),
]


@pytest.mark.parametrize(("name", "settings", "devices", "ranks"), GPUS)
def test_devices_that_share_a_copy_of_the_model_are_one_rank(name, settings, devices, ranks):
    found = read(name, settings)
    assert (found.world_size, found.data_parallel) == (devices, ranks)
    assert found.inconsistent == ()
    assert not any("devices" in told for told in found.unknown)


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("verl", {"model_engine": "megatron", "actor_rollout_ref.actor.megatron.tensor_model_parallel_size": 3}),
        ("nemo-rl", {"cluster.gpus_per_node": 8, "policy.dtensor_cfg.context_parallel_size": 3}),
        ("openrlhf", {"ds.tensor_parallel_size": 3}),
        ("prime-rl", {"deployment.num_train_gpus": 8, "trainer.model.cp": 3}),
        ("open-instruct", {"num_learners_per_node": [8], "sequence_parallel_size": 3}),
    ],
)
def test_devices_that_do_not_divide_into_copies_are_told(name, settings):
    found = read(name, settings)
    key = next(key for key, value in settings.items() if value == 3)
    assert found.data_parallel is None
    assert f"8 devices cannot be split into copies of the model on 3 each ({key} 3)" in found.inconsistent


@given(st.integers(1, 64), degrees, st.integers(1, 64))
def test_the_world_that_a_refusal_names_divides(world, spread, problems):
    allocation = Allocation(problems_per_batch=problems * world, rollouts_per_problem=1, update_steps=1)
    try:
        run = RunPlan(allocation=allocation, world_size=world, parallelism=spread)
    except BudgetError as error:
        assert world % spread.devices
        for named in str(error).split("world_size ")[1].removesuffix(" would").replace(",", "").split(" or "):
            assert int(named) % spread.devices == 0
    else:
        assert run.data_parallel * spread.tensor * spread.pipeline * spread.context == world


def test_degrees_that_cannot_be_are_refused():
    with pytest.raises(BudgetError, match="tensor parallelism is 0"):
        Parallelism(tensor=0)
    with pytest.raises(BudgetError, match=r"context .* is 2,097,152"):
        Parallelism(context=2**21)
    allocation = Allocation(problems_per_batch=8, rollouts_per_problem=4, update_steps=3)
    with pytest.raises(BudgetError, match="world_size 4 or 8 would"):
        RunPlan(allocation=allocation, world_size=6, parallelism=Parallelism(tensor=2, context=2))
    with pytest.raises(BudgetError, match="problems_per_batch 2 or 4"):
        RunPlan(
            allocation=Allocation(problems_per_batch=3, rollouts_per_problem=11, update_steps=3),
            world_size=8,
            parallelism=Parallelism(tensor=4),
        )
