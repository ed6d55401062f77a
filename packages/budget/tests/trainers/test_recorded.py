"""Configurations of trainers that no package registry has, as their documentation describes them."""

import pytest
from isocompute.budget.trainers.registry import convert, read
from isocompute.budget.trainers.settings import Parallelism, load
from reading_logs import run_of

NEMO_RL = """
grpo: {num_prompts_per_step: 64, num_generations_per_prompt: 8, max_num_epochs: 1, max_num_steps: 300}
policy:
  train_global_batch_size: 256
  train_micro_batch_size: 4
  logprob_batch_size: ${policy.train_micro_batch_size}
  dtensor_cfg: {enabled: false, tensor_parallel_size: 1, context_parallel_size: 1}
  megatron_cfg: {enabled: true, tensor_model_parallel_size: 2, pipeline_model_parallel_size: 2,
    context_parallel_size: 1, optimizer: {lr: 1.0e-6}}
  optimizer: {kwargs: {lr: 1.0e-6}}
  generation: {colocated: {enabled: false, resources: {gpus_per_node: 8, num_nodes: 1}}}
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
PRIME_RL = """
max_steps = 200
deployment = {type = "multi_node", gpus_per_node = 8, num_train_nodes = 2, num_infer_nodes = 3}
trainer = {optim = {lr = 1e-6}, model = {cp = 2}}
[orchestrator]
batch_size = 512
group_size = 16
train.source = [{name = "algebra", group_size = 32}, {name = "geometry", group_size = 32}]
"""
# Problems generated, n, generations, devices and ranks of each; and how a converted run is spread.
RECORDED = [
    ("nemo-rl", "grpo.yaml", NEMO_RL, (64, 8, 300, 16, 4), Parallelism(tensor=2, pipeline=2)),
    ("open-instruct", "launch.sh", OPEN_INSTRUCT, (32, 16, 100, 16, 8), Parallelism(context=4)),
    ("prime-rl", "rl.toml", PRIME_RL, (16, 32, 200, 16, 8), Parallelism(context=4)),
]


@pytest.mark.parametrize(("name", "file", "text", "said", "spread"), RECORDED, ids=[case[0] for case in RECORDED])
def test_a_recorded_configuration_says_what_it_generates_and_converted_settings_override_it(
    name, file, text, said, spread, tmp_path
):
    (tmp_path / file).write_text(text)
    recorded = load(tmp_path / file)
    found = read(name, recorded, problems=100_000)
    assert (found.problems_generated, found.rollouts_per_problem, found.generations) == said[:3]
    assert (found.world_size, found.data_parallel) == said[3:]
    assert (found.unknown, found.inconsistent) == ((), ())
    for world in (8, 32):
        run = run_of(16, 4, 50, world_size=world, parallelism=spread, learning_rate=2e-6)
        converted = dict(convert(name, run).settings)
        assert converted.keys() - recorded.keys() <= {"deployment.num_train_gpus"}
        kept = {k: v for k, v in recorded.items() if "source" not in k and "colocated" not in k}
        found = read(name, {**kept, **converted}, problems=100_000)
        assert (found.allocation, found.world_size) == (run.allocation, run.world_size)
        assert found.data_parallel == run.data_parallel
        assert (found.unknown, found.inconsistent) == ((), ())
