"""open-instruct's settings, as its documentation describes them: no package registry has it."""

import pytest
from isocompute.budget.trainers.registry import read
from isocompute.budget.trainers.settings import Parallelism
from reading_logs import check_override, recorded, run_of

OPEN_INSTRUCT = """#!/bin/bash
python open_instruct/grpo_fast.py \\
    --num_unique_prompts_rollout 32 --num_samples_per_prompt_rollout 16 \\
    --total_episodes 51200 --num_mini_batches 2 --num_epochs 1 --async_steps 4 \\
    --num_learners_per_node 8 8 --sequence_parallel_size 2 --deepspeed_stage 3 \\
    --learning_rate 1e-6 --filter_zero_std_samples False \\
    --vllm_num_engines 16 --beta 0.0 --output_dir /tmp/run
"""


def test_a_recorded_open_instruct_configuration_says_what_it_generates():
    found = read("open-instruct", recorded("launch.sh", OPEN_INSTRUCT), problems=100_000)
    assert (found.problems_generated, found.rollouts_per_problem, found.generations) == (32, 16, 100)
    assert (found.world_size, found.data_parallel) == (16, 8)
    assert (found.unknown, found.inconsistent) == ((), ())


@pytest.mark.parametrize("world", [8, 32])
def test_settings_for_open_instruct_override_a_recorded_configuration(world):
    run = run_of(16, 4, 50, world_size=world, parallelism=Parallelism(context=4), learning_rate=2e-6)
    check_override("open-instruct", recorded("launch.sh", OPEN_INSTRUCT), run)


def test_open_instruct_episodes_that_are_no_whole_batch_are_never_generated():
    found = read("open-instruct", {"total_episodes": 1000, "num_unique_prompts_rollout": 48})
    assert any("the last 40 are never generated" in told for told in found.inconsistent), found


def test_open_instruct_learners_that_are_no_number_are_unknown():
    found = read("open-instruct", {"num_learners_per_node": "eight"})
    assert any("num_learners_per_node is 'eight'" in told for told in found.unknown), found
