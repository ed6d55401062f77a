"""Trainers that no package registry has: configurations as their documentation describes them, read and overridden."""

import pytest
from isocompute.budget import Allocation
from isocompute.budget.trainers import Parallelism, Run, convert, load, read

PRIME_RL = """
max_steps = 200

[model]
name = "a/model"

[deployment]
type = "multi_node"
gpus_per_node = 8
num_train_nodes = 2
num_infer_nodes = 3

[slurm]
job_name = "run"

[trainer.optim]
lr = 1e-6

[trainer.model]
cp = 2

[orchestrator]
batch_size = 512
group_size = 16

[[orchestrator.train.source]]
name = "algebra"
group_size = 32

[[orchestrator.train.source]]
name = "geometry"
group_size = 32

[inference]
"""

NEMO_RL = """
grpo: {num_prompts_per_step: 64, num_generations_per_prompt: 8, max_num_epochs: 1, max_num_steps: 300}
policy:
  train_global_batch_size: 256
  train_micro_batch_size: 4
  logprob_batch_size: ${policy.train_micro_batch_size}
  dtensor_cfg: {enabled: false, tensor_parallel_size: 1, context_parallel_size: 1}
  megatron_cfg:
    enabled: true
    tensor_model_parallel_size: 2
    pipeline_model_parallel_size: 2
    context_parallel_size: 1
    optimizer: {lr: 1.0e-6}
  optimizer: {kwargs: {lr: 1.0e-6}}
  generation:
    colocated: {enabled: false, resources: {gpus_per_node: 8, num_nodes: 1}}
cluster: {gpus_per_node: 8, num_nodes: 3}
"""

OPEN_INSTRUCT = """#!/bin/bash
python open_instruct/grpo_fast.py \\
    --num_unique_prompts_rollout 32 --num_samples_per_prompt_rollout 16 \\
    --total_episodes 51200 --num_mini_batches 2 --num_epochs 1 --async_steps 4 \\
    --num_learners_per_node 8 8 --sequence_parallel_size 2 --deepspeed_stage 3 \\
    --learning_rate 1e-6 --filter_zero_std_samples False \\
    --vllm_num_engines 16 --beta 0.0 --output_dir /tmp/run
"""

RECORDED = {
    "prime-rl": ("rl.toml", PRIME_RL, (16, 32, 200), 16, 8),
    "nemo-rl": ("grpo.yaml", NEMO_RL, (64, 8, 300), 16, 4),
    "open-instruct": ("launch.sh", OPEN_INSTRUCT, (32, 16, 100), 16, 8),
}


@pytest.fixture(params=RECORDED)
def recorded(request, tmp_path):
    """A trainer's name, its settings as recorded, and what they say."""
    file, text, split, devices, ranks = RECORDED[request.param]
    path = tmp_path / file
    path.write_text(text)
    return request.param, load(path), split, devices, ranks


def test_a_recorded_configuration_says_what_it_generates(recorded):
    name, settings, split, devices, ranks = recorded
    found = read(name, settings, problems=100_000)
    assert (found.problems_generated, found.rollouts_per_problem, found.generations) == split
    assert (found.world_size, found.data_parallel) == (devices, ranks)
    assert (found.unknown, found.inconsistent) == ((), ())


@pytest.mark.parametrize("world", [8, 32])
def test_converted_settings_override_a_recorded_configuration(recorded, world):
    name, settings, *_ = recorded
    allocation = Allocation(problems_per_batch=16, rollouts_per_problem=4, update_steps=50)
    spread = Parallelism(tensor=2, pipeline=2) if name == "nemo-rl" else Parallelism(context=4)
    run = Run(allocation=allocation, world_size=world, parallelism=spread, learning_rate=2e-6)
    converted = dict(convert(name, run).settings)
    unknown = [key for key in converted if key not in settings]
    # What the recorded run had no need to set.
    assert set(unknown) <= {"deployment.num_train_gpus"}
    # The sources and the engine of the recorded run are its own.
    kept = {k: v for k, v in settings.items() if "source" not in k and "colocated" not in k}
    found = read(name, {**kept, **converted}, problems=100_000)
    assert (found.allocation, found.world_size, found.data_parallel) == (allocation, world, world // spread.devices)
    assert (found.unknown, found.inconsistent) == ((), ())
