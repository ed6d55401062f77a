"""NeMo-RL's settings, as its documentation describes them: no package registry has it."""

import pytest
from isocompute.budget.trainers.registry import read
from isocompute.budget.trainers.settings import Parallelism
from reading_logs import check_override, recorded, run_of

ENGINE = "policy.generation.colocated"
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


def test_a_recorded_nemo_rl_configuration_says_what_it_generates():
    found = read("nemo-rl", recorded("grpo.yaml", NEMO_RL), problems=100_000)
    assert (found.problems_generated, found.rollouts_per_problem, found.generations) == (64, 8, 300)
    assert (found.world_size, found.data_parallel) == (16, 4)
    assert (found.unknown, found.inconsistent) == ((), ())


@pytest.mark.parametrize("world", [8, 32])
def test_settings_for_nemo_rl_override_a_recorded_configuration(world):
    run = run_of(16, 4, 50, world_size=world, parallelism=Parallelism(tensor=2, pipeline=2), learning_rate=2e-6)
    check_override("nemo-rl", recorded("grpo.yaml", NEMO_RL), run)


@pytest.mark.parametrize(
    ("settings", "remark"),
    [
        ({"grpo.num_prompts_per_step": 10, "policy.train_global_batch_size": 48}, "counts samples"),
        ({f"{ENGINE}.enabled": False, f"{ENGINE}.resources.gpus_per_node": 1}, "leaves no device"),
    ],
)
def test_nemo_rl_settings_that_contradict_each_other_are_named(settings, remark):
    found = read("nemo-rl", settings)
    assert any(remark in told for told in found.inconsistent), found


def test_nemo_rl_does_not_know_the_devices_of_an_engine_of_its_own():
    found = read("nemo-rl", {f"{ENGINE}.enabled": False})
    assert any("colocated.resources.gpus_per_node is not set" in told for told in found.unknown), found
