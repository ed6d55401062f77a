"""Every trainer: allocations written as settings and read back, and what settings contradict or leave open."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from isocompute.budget import Allocation, BudgetError
from isocompute.budget.trainers.registry import TRAINERS, convert, read, trainer
from isocompute.budget.trainers.settings import Parallelism, RunPlan, flags, load, render
from reading_logs import run_of

names = st.sampled_from(sorted(TRAINERS))
worlds = st.integers(1, 64)
parts = {
    "problems_per_batch": st.integers(1, 512),
    "rollouts_per_problem": st.integers(1, 128),
    "update_steps": st.integers(1, 3000),
}


degrees = st.builds(
    Parallelism,
    tensor=st.sampled_from([1, 1, 2, 4]),
    pipeline=st.sampled_from([1, 1, 2]),
    context=st.sampled_from([1, 2]),
)


@given(names, worlds, degrees, st.booleans(), st.sampled_from([1, 4, 8]), st.integers(0, 3), st.builds(dict, **parts))
def test_an_allocation_comes_back_from_every_trainer_or_is_refused(name, copies, spread, as_flags, gpus, spare, split):
    allocation = Allocation(**split)
    batch, n, steps = allocation.batch_rollouts, allocation.rollouts_per_problem, allocation.update_steps
    problems = None if spare == 3 else allocation.problems_per_batch * steps + spare
    world = copies * spread.devices
    if batch % copies:
        with pytest.raises(BudgetError, match="problems_per_batch"):
            RunPlan(allocation=allocation, world_size=world, parallelism=spread, problems=problems)
        return
    run = RunPlan(allocation=allocation, world_size=world, parallelism=spread, gpus_per_node=gpus, problems=problems)
    assert run.data_parallel == copies
    asked = {kind for kind, degree in spread.degrees.items() if degree > 1}
    if not asked <= set(trainer(name).parallelism):
        with pytest.raises(BudgetError, match="trains without"):
            convert(name, run)
        return
    if name in {"trl", "swift"} and n == 1:
        with pytest.raises(BudgetError, match="take 2 or more"):
            convert(name, run)
        return
    if name == "verl" and asked == {"context"} and batch % world:
        with pytest.raises(BudgetError, match=r"over all \d+ devices"):
            convert(name, run)
        return
    configuration = convert(name, run)
    settings = configuration.settings
    if as_flags:
        settings = flags(word for line in render(configuration, trainer(name).style) for word in line.split())
    found = read(name, settings, world_size=world, problems=problems)
    assert found.allocation == allocation
    assert found.generated == allocation.rollouts
    assert found.problems_generated == found.problems_per_batch
    assert (found.world_size, found.data_parallel) == (world, copies)
    assert found.unknown == ()
    assert found.inconsistent == ()


@given(st.builds(dict, **parts), st.integers(1, 20_000))
def test_openrlhf_takes_whole_episodes_or_says_how_many_steps_it_can(split, problems):
    allocation = Allocation(**split)
    if problems < allocation.problems_per_batch:
        with pytest.raises(BudgetError, match="cannot be drawn from"):
            RunPlan(allocation=allocation, problems=problems)
        return
    run = RunPlan(allocation=allocation, problems=problems)
    batches = problems // allocation.problems_per_batch
    if allocation.update_steps <= problems // allocation.problems_per_batch or allocation.update_steps % batches == 0:
        configuration = convert("openrlhf", run)
    else:
        with pytest.raises(BudgetError, match="ends with an episode") as error:
            convert("openrlhf", run)
        steps = int(str(error.value).split(" or ")[-1].split()[0].replace(",", ""))
        configuration = convert("openrlhf", run_of(*list(split.values())[:2], steps, problems=problems))
        allocation = Allocation(**{**split, "update_steps": steps})
    found = read("openrlhf", configuration.settings, problems=problems)
    assert found.allocation == allocation
    assert found.inconsistent == ()


@pytest.mark.parametrize("name", ["verl", "skyrl", "nemo-rl"])
def test_epochs_are_enough_for_the_steps_whatever_the_number_of_problems(name):
    settings = convert(name, run_of(32, 4, 100)).settings
    for problems in (32, 50, 640, 10**6):
        found = read(name, settings, problems=problems)
        assert (found.update_steps, found.inconsistent) == (100, ())
    exact = convert(name, run_of(32, 4, 100, problems=640))
    assert 5 in exact.settings.values()
    short = {**exact.settings, "trainer.total_epochs": 2, "trainer.epochs": 2, "grpo.max_num_epochs": 2}
    found = read(name, short, problems=640)
    assert found.update_steps == 40
    assert "of 2 ends the run after 40 steps, before the 100 asked for; 5 would do" in found.inconsistent[0]


ENGINE = "policy.generation.colocated"
WRONG = [
    ("trl", {"num_generations": 8, "per_device_train_batch_size": 3, "max_steps": 10}, "counts completions"),
    ("trl", {"generation_batch_size": 32, "steps_per_generation": 2}, "of which TRL takes one: 8 completions × 1"),
    ("trl", {"num_generations": 1, "per_device_train_batch_size": 4}, "num_generations is 1"),
    ("trl", {"generation_batch_size": 12, "per_device_train_batch_size": 8}, "not a multiple of the 8 completions"),
    ("verl", {"data.train_batch_size": 4, "actor_rollout_ref.actor.ppo_mini_batch_size": 1024}, "both count prompts"),
    ("verl", {"data.train_batch_size": 4, "trainer.n_gpus_per_node": 3}, "cannot be split evenly over 3 devices"),
    ("openrlhf", {"rollout.batch_size": 8, "rollout.n_samples_per_prompt": 3, "train.batch_size": 16}, "count"),
    ("openrlhf", {"rollout.batch_size": 128, "data.max_samples": 200}, "a batch of 72 of 128"),
    ("prime-rl", {"orchestrator.batch_size": 100, "orchestrator.group_size": 16}, "whole groups of 16"),
    ("prime-rl", {"max_steps": 5, "trainer.max_steps": 6}, "max_steps differs"),
    ("prime-rl", {"orchestrator.batch_size": 8, "orchestrator.token_batch_size": 9}, "both set"),
    ("skyrl", {"trainer.train_batch_size": 100, "trainer.policy_mini_batch_size": 64}, "both count prompts"),
    ("skyrl", {"trainer.micro_train_batch_size_per_gpu": 3}, "micro_train_batch_size_per_gpu counts responses: 3"),
    ("trl", {"parallelism_config_cp_size": 2}, "which TRL's GRPO trainer refuses"),
    ("trl", {"num_generations": 4, "per_device_train_batch_size": 16}, "hold no whole generation batch of 4"),
    ("nemo-rl", {"grpo.num_prompts_per_step": 10, "policy.train_global_batch_size": 48}, "counts samples"),
    ("nemo-rl", {f"{ENGINE}.enabled": False, f"{ENGINE}.resources.gpus_per_node": 1}, "leaves no device"),
    ("open-instruct", {"total_episodes": 1000, "num_unique_prompts_rollout": 48}, "the last 40 are never generated"),
    ("slime", {"rollout_batch_size": 8, "n_samples_per_prompt": 4, "global_batch_size": 12}, "counts samples"),
    ("skyrl", {"trainer.placement.policy_num_gpus_per_node": 8}, "1 engines of 1 devices are 1, and the policy has 8"),
    (
        "skyrl",
        {"trainer.placement.colocate_all": False, "trainer.placement.policy_num_gpus_per_node": 4},
        "the policy has 1 × 4 devices and the reference model 1 × 1",
    ),
]


@pytest.mark.parametrize(("name", "settings", "remark"), WRONG)
def test_what_contradicts_itself_is_named(name, settings, remark):
    # Three problems are no batch of TRL's.
    sizes = {"world_size": 1, "problems": 3 if "hold no" in remark else None} if name == "trl" else {}
    found = read(name, settings, **sizes)
    assert any(remark in told for told in found.inconsistent), found
    assert "hold no" not in remark or found.generated == 0


OPEN = [
    ("nemo-rl", {f"{ENGINE}.enabled": False}, "colocated.resources.gpus_per_node is not set"),
    ("open-instruct", {"num_learners_per_node": "eight"}, "num_learners_per_node is 'eight'"),
    ("trl", {"max_steps": 5}, "give --world-size"),
    ("trl", {}, "give --problems D"),
    ("verl", {}, "give --problems D"),
    ("openrlhf", {}, "give --problems D"),
    ("slime", {"rollout_batch_size": 8, "n_samples_per_prompt": 4, "num_rollout": 10}, "global_batch_size is not set"),
    ("skyrl", {}, "give --problems D"),
    ("prime-rl", {}, "max_steps is not set"),
    ("prime-rl", {"orchestrator.token_batch_size": 4096}, "makes batches of tokens"),
    ("verl", {"data.train_batch_size": "$BATCH"}, "data.train_batch_size is $BATCH, which is only known when"),
    ("trl", {"num_processes": "$NPROC"}, "num_processes is '$NPROC', which is only known when the script runs"),
    ("trl", {"num_processes": 8, "parallelism_config_tp_size": 2}, "counts every process as a rank"),
    ("verl", {"actor_rollout_ref.actor.ulysses_sequence_parallel_size": "$SP"}, "parallel_size is $SP"),
    ("tinker", {"group_size": 4, "max_steps": 5}, "problems per batch: groups_per_batch is not set"),
]


@pytest.mark.parametrize(("name", "settings", "remark"), OPEN)
def test_what_cannot_be_known_is_named(name, settings, remark):
    found = read(name, settings)
    assert any(remark in told for told in found.unknown), found


TRL = "num_generations=4 per_device_train_batch_size=4 "
OFTEN = TRL + "gradient_accumulation_steps=4 steps_per_generation=1 "
SIXES = "num_generations=6 per_device_train_batch_size=4 gradient_accumulation_steps=2 "
SWIFT = "num_generations=4 gradient_accumulation_steps=8 max_steps=5 "
OPENRLHF = "rollout_batch_size=32 n_samples_per_prompt=4 train_batch_size=128 max_samples=320"
SOURCES = "--orchestrator.batch-size 64 --max-steps 3 --orchestrator.train.source.0.name a "
SLIME = "rollout_batch_size=8 n_samples_per_prompt=4 num_rollout=10 "
ASYNC = "data.train_batch_size=0 actor_rollout_ref.rollout.n=8 rollout.total_rollout_steps=4096 "
ASYNC += "actor_rollout_ref.actor.ppo_mini_batch_size=16 async_training.trigger_parameter_sync_step=4"
DAPO = "data.train_batch_size=512 data.gen_batch_size=1536 actor_rollout_ref.rollout.n=16 "
DAPO += "actor_rollout_ref.actor.ppo_mini_batch_size=32 algorithm.filter_groups.enable=True trainer.total_epochs=1 "
# The number of problems, where it is known; n, problems to a batch and to a generation, update steps, generations.
SAID = [
    # Where nothing is set, three epochs of eight responses to each problem.
    ("trl", "per_device_train_batch_size=8 gradient_accumulation_steps=1 num_processes=1", 5, (8, 1, 1, 15, 15)),
    # 4 × 2 × 3 = 24 completions, 6 to a problem.
    ("trl", SIXES + "num_processes=3 num_train_epochs=2", 8000, (6, 4, 4, 4000, 4000)),
    ("trl", SIXES + "num_processes=3 num_train_epochs=0.5", 8000, (6, 4, 4, 1000, 1000)),
    # Several batches in a step, or one for several.
    ("trl", OFTEN + "num_processes=1 max_steps=10", None, (4, 4, 1, 10, 40)),
    ("trl", TRL + "num_processes=1 max_steps=10 steps_per_generation=4", None, (4, 1, 4, 10, 3)),
    # The last step of an epoch may be short.
    ("trl", OFTEN + "num_processes=1 num_train_epochs=3", 5, (4, 4, 1, 6, 15)),
    ("swift", SWIFT + "NPROC_PER_NODE=2", None, (4, 4, 4, 5, 5)),
    ("swift", SWIFT + "NPROC_PER_NODE=4 NNODES=2", None, (4, 16, 16, 5, 5)),
    ("verl", "trainer.total_epochs=2", 4096, (1, 256, 1024, 32, 8)),
    # An asynchronous run is of its own settings; a loader of three batches gives a third of the steps.
    ("verl", ASYNC, None, (8, 16, 64, 256, 64)),
    ("verl", DAPO + "trainer.use_v1=false", 17_000, (16, 32, 1536, 176, 11)),
    ("verl", DAPO + "trainer.use_v1=true", 17_000, (16, 32, 512, 528, 33)),
    ("openrlhf", "train.num_episodes=3", 4096, (1, 128, 1024, 96, 12)),
    ("openrlhf", OPENRLHF, None, (4, 32, 32, 10, 10)),
    ("prime-rl", "batch_size=64 rollouts_per_example=16 max_steps=3", None, (16, 4, 4, 3, 3)),
    ("prime-rl", SOURCES + "--orchestrator.train.source.0.group-size 16", None, (16, 4, 4, 3, 3)),
    ("slime", SLIME + "num_steps_per_rollout=4", None, (4, 2, 8, 40, 10)),
    ("slime", SLIME + "global_batch_size=16", None, (4, 4, 8, 20, 10)),
    ("tinker", "groups_per_batch=8 group_size=4 max_steps=3", None, (4, 8, 8, 3, 3)),
    # The last batch of the problems is short.
    ("tinker", "groups_per_batch=8 group_size=4 num_substeps=2", 20, (4, 4, 8, 6, 3)),
]


@pytest.mark.parametrize(("name", "settings", "problems", "sizes"), SAID)
def test_sizes_and_steps_follow_from_settings_their_defaults_and_problems(name, settings, problems, sizes):
    found = read(name, flags(settings.split()), problems=problems)
    n, batch = found.rollouts_per_problem, found.problems_per_batch
    assert (n, batch, found.problems_generated, found.update_steps, found.generations) == sizes
    assert found.generated == sizes[0] * sizes[2] * sizes[4]
    assert (found.unknown, found.inconsistent) == ((), ())


@pytest.mark.parametrize("value", [0, -1, 2.5, "many", True, [8]])
def test_a_number_that_is_none_is_an_error_that_names_file_and_key(value):
    with pytest.raises(BudgetError, match=r"run.yaml: data.train_batch_size is"):
        read("verl", {"data.train_batch_size": value}, where="run.yaml")


def test_ignored_settings_that_look_like_one_that_is_read_come_first():
    given = ["actor_rollout_ref.model.path=a", "actor_rollout_ref.rollout.n=8", "actor_rollout_ref.rollout.m=5"]
    found = read("verl", flags(given))
    assert found.ignored == ("actor_rollout_ref.rollout.m", "actor_rollout_ref.model.path")
    # Both may be meant.
    assert found.inconsistent == ()
    assert "did you mean actor_rollout_ref.rollout.n?" in read("verl", flags(given[::2])).inconsistent[0]


def test_the_launch_line_says_how_many_processes_trl_has(tmp_path):
    line = "accelerate launch --config_file a.yaml --num_processes 8 train.py --num_generations 8 "
    line += "--per_device_train_batch_size 2 --gradient_accumulation_steps 4 --max_steps 10"
    found = read("trl", flags(line.split()))
    assert (found.world_size, found.problems_per_batch, found.unknown) == (8, 8, ())
    torchrun = line.replace("--num_processes 8", "--nnodes 2 --nproc_per_node 4")
    assert read("trl", flags(torchrun.split())).world_size == 8
    assert "for 8 devices, not for 4" in read("trl", flags(line.split()), world_size=4).inconsistent[0]
    for unknown in ("--nnodes 1:4 --nproc_per_node 4", "--nproc_per_node gpu"):
        found = read("trl", flags(line.replace("--num_processes 8", unknown).split()), world_size=8)
        assert "which is only known when the script runs" in found.unknown[0]
        assert found.world_size == 8


def test_remax_pays_for_one_more_response_a_problem():
    settings = {"data.train_batch_size": 256, "actor_rollout_ref.rollout.n": 1, "trainer.total_training_steps": 10}
    # The default trainer since 0.9 has no such baseline.
    for is_v1, generated in ((False, 5_120), (True, 2_560)):
        remax = {"algorithm.adv_estimator": "remax", "trainer.use_v1": is_v1}
        found = read("verl", {**settings, **remax}, problems=10**6)
        assert (found.allocation.rollouts, found.generated) == (2_560, generated)


def test_the_group_size_of_a_source_overrides_the_orchestrators():
    def sizes(*own, **shared):
        sources = [{"name": "a"} if size is None else {"name": "a", "group_size": size} for size in own]
        listed = {"orchestrator.train.source": sources, "orchestrator.batch_size": 64, "max_steps": 3}
        return read("prime-rl", {**listed, **{f"orchestrator.{key}": value for key, value in shared.items()}})

    for own, n in (((8, 8), 8), ((None, None), 4), ((4, None), 4), ((8, None), None)):
        assert sizes(*own, group_size=4).rollouts_per_problem == n
    assert any("overrides orchestrator.group_size" in note for note in sizes(8, group_size=4).notes)
    assert "groups of 4 and 8 are mixed" in sizes(8, None, group_size=4).unknown[0]
    with pytest.raises(BudgetError, match=r"source.0.group_size is 0"):
        sizes(0)


def test_a_learning_rate_stands_where_the_trainer_looks_for_it():
    for name, known in TRAINERS.items():
        written = convert(name, run_of(8, 4, 10, learning_rate=3e-6)).settings
        (key,) = (key for key, value in written.items() if value == 3e-6)
        assert read(name, written, world_size=1, problems=80).allocation == run_of(8, 4, 10).allocation
        # Those without logs: open-instruct and NeMo-RL.
        assert key in (known.logs.learning_rates if known.logs else ("learning_rate", "policy.optimizer.kwargs.lr"))
    with pytest.raises(BudgetError, match="learning_rate is -1"):
        run_of(8, 4, 1, learning_rate=-1)


VERL = "data.train_batch_size=12 actor_rollout_ref.actor.ppo_mini_batch_size=12 trainer.total_epochs=1 "
VERL += "actor_rollout_ref.rollout.n=2 "
ACTOR = "actor_rollout_ref.actor"
MEGATRON = f"{ACTOR}.strategy=megatron {ACTOR}.megatron.tensor_model_parallel_size=4 "
MEGATRON += f"{ACTOR}.megatron.pipeline_model_parallel_size=2 trainer.nnodes=2"
NEMO_RL = "cluster.gpus_per_node=8 policy.megatron_cfg.pipeline_model_parallel_size=8 "
NODES = f"cluster.num_nodes=4 policy.megatron_cfg.enabled=true {ENGINE}.enabled=false {ENGINE}.resources.num_nodes=2"
SKYRL = "trainer.placement.policy_num_gpus_per_node=8 generator.inference_engine.num_engines=8 "
SKYRL += "trainer.strategy=megatron trainer.policy.megatron_config.context_parallel_size=4"
MODEL = "tensor_model_parallel_size=2 pipeline_model_parallel_size=2"
GPUS = [
    ("verl", VERL + MEGATRON, 16, 2),
    ("verl", VERL + "actor_rollout_ref.rollout.tensor_model_parallel_size=4", 8, 8),
    ("verl", VERL + f"{ACTOR}.fsdp_config.ulysses_sequence_parallel_size=4", 8, 2),
    ("verl", VERL + f"{ACTOR}.use_dynamic_bsz=true {ACTOR}.ulysses_sequence_parallel_size=2", 8, 4),
    ("nemo-rl", NEMO_RL + "policy.dtensor_cfg.tensor_parallel_size=4", 8, 2),
    ("nemo-rl", NEMO_RL + NODES, 16, 2),
    ("skyrl", SKYRL, 8, 2),
    ("openrlhf", "ds.tensor_parallel_size=2 ds.ring_attn_size=2 train.batch_size=2 rollout.batch_size=2", 8, 2),
    ("openrlhf", "ring_attn_size=4 train_batch_size=2 rollout_batch_size=2", 8, 2),
    ("prime-rl", "deployment.num_train_gpus=8 trainer.model.cp=4", 8, 2),
    ("open-instruct", "num_learners_per_node=[8,8] sequence_parallel_size=4 total_episodes=640", 16, 4),
    ("slime", SLIME + "global_batch_size=32 actor_num_nodes=2 " + MODEL, 16, 4),
    # Devices that do not divide into copies of the model on three each.
    ("verl", f"{VERL} model_engine=megatron {ACTOR}.megatron.tensor_model_parallel_size=3", 8, None),
    ("open-instruct", "num_learners_per_node=[8] sequence_parallel_size=3 total_episodes=640", 8, None),
]


@pytest.mark.parametrize(("name", "settings", "devices", "ranks"), GPUS)
def test_devices_that_share_a_copy_of_the_model_are_one_rank(name, settings, devices, ranks):
    found = read(name, flags(settings.split()))
    assert (found.world_size, found.data_parallel) == (devices, ranks)
    uneven = "8 devices cannot be split into copies of the model on 3 each"
    assert [remark.startswith(uneven) for remark in found.inconsistent] == [True] * (ranks is None)
    assert not any("devices" in told for told in found.unknown)


def test_degrees_that_cannot_be_are_refused():
    with pytest.raises(BudgetError, match="tensor parallelism is 0"):
        Parallelism(tensor=0)
    with pytest.raises(BudgetError, match=r"context .* is 2,097,152"):
        Parallelism(context=2**21)
    with pytest.raises(BudgetError, match="world_size 4 or 8 would"):
        run_of(8, 4, 3, world_size=6, parallelism=Parallelism(tensor=2, context=2))
    with pytest.raises(BudgetError, match="problems_per_batch 2 or 4"):
        run_of(3, 11, 3, world_size=8, parallelism=Parallelism(tensor=4))


# Configurations of trainers that no package registry has, as their documentation describes them.
NEMO_RL_FILE = """
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
OPEN_INSTRUCT_FILE = """#!/bin/bash
python open_instruct/grpo_fast.py \\
    --num_unique_prompts_rollout 32 --num_samples_per_prompt_rollout 16 \\
    --total_episodes 51200 --num_mini_batches 2 --num_epochs 1 --async_steps 4 \\
    --num_learners_per_node 8 8 --sequence_parallel_size 2 --deepspeed_stage 3 \\
    --learning_rate 1e-6 --filter_zero_std_samples False \\
    --vllm_num_engines 16 --beta 0.0 --output_dir /tmp/run
"""
PRIME_RL_FILE = """
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
    ("nemo-rl", "grpo.yaml", NEMO_RL_FILE, (64, 8, 300, 16, 4), Parallelism(tensor=2, pipeline=2)),
    ("open-instruct", "launch.sh", OPEN_INSTRUCT_FILE, (32, 16, 100, 16, 8), Parallelism(context=4)),
    ("prime-rl", "rl.toml", PRIME_RL_FILE, (16, 32, 200, 16, 8), Parallelism(context=4)),
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
