"""Inputs of veRL's runs: a case, its configuration, problems, a tokenizer and a reward."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

WORDS = ["<pad>", "<eos>", "<unk>", *"0123456789+=", "user", "assistant", ":"]
TEMPLATE = (
    "{% for m in messages %}{{ m['role'] }}:{{ m['content'] }}<eos>{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)


# Nobody solves the first problem, so that an epoch has a group without a spread of rewards, whatever is sampled.
REWARD = """
def compute_score(solution_str, ground_truth, **_):
    return float(ground_truth != "0" and len(solution_str.split()) % 2)
"""


TOOLS = """
from verl.experimental.agent_loop.single_turn_agent_loop import SingleTurnAgentLoop


class Tooled(SingleTurnAgentLoop):
    async def run(self, *args, **options):
        output = await super().run(*args, **options)
        output.response_mask[-1] = 0
        return output
"""
TOOLED = "- name: tooled\n  _target_: tools_of_a_test.Tooled\n"


SEPARATE = (
    "actor_rollout_ref.hybrid_engine=False",
    "actor_rollout_ref.rollout.nnodes=1",
    "actor_rollout_ref.rollout.n_gpus_per_node=1",
    "actor_rollout_ref.rollout.checkpoint_engine.backend=nccl",
)


@dataclass
class Case:
    """A run of veRL: ``kills`` are the steps in which each process is killed when it has sampled."""

    mode: str = "sync"
    batch: int = 2
    n: int = 2
    samples: int = 1
    limits: dict[str, Any] = field(default_factory=dict)
    filtered: bool = False
    failing: float = 0.0
    steps: int = 20
    kills: list[int] = field(default_factory=list)
    save_freq: int = 1
    test_freq: int = 100
    overrides: list[str] = field(default_factory=list)
    tools: bool = False
    for_real: bool = False
    in_actor: bool = False


def configuration(case, folder):
    """Compose a run's configuration of veRL's defaults, as Hydra does."""
    from hydra import compose, initialize_config_module

    here, limits = folder.parent, {"ledger": folder / "run.ledger", **case.limits}
    rollout, sampler = "actor_rollout_ref.rollout", "trainer.v1.sampler"
    overrides = [
        *f"""
        +{rollout}.agent.agent_loop_manager_class=isocompute.budget.verl.AgentLoopManager
        {sampler}.custom_sampler.path=pkg://isocompute.budget.verl {sampler}.custom_sampler.name=ReplayBuffer
        trainer.v1.trainer_mode={case.mode} trainer.v1.separate_async.parameter_sync_step={case.samples}
        data.train_batch_size={case.batch} {rollout}.n={case.n}
        actor_rollout_ref.actor.ppo_mini_batch_size={case.batch // case.samples}
        trainer.total_training_steps={case.steps} trainer.save_freq={case.save_freq} trainer.test_freq={case.test_freq}
        trainer.val_before_train=True trainer.total_epochs=1000 trainer.default_local_dir={folder / "checkpoints"}
        trainer.resume_mode=auto trainer.nnodes=1 trainer.n_gpus_per_node=1 trainer.device=cpu trainer.logger=[file]
        data.train_files={here / "train.parquet"} data.val_files={here / "validation.parquet"}
        data.max_prompt_length=32 data.max_response_length=8 data.dataloader_num_workers=0 data.return_raw_chat=True
        data.filter_overlong_prompts=False actor_rollout_ref.model.path={here / "model"}
        {rollout}.name=vllm {rollout}.agent.num_workers=1
        {rollout}.val_kwargs.n=3 {rollout}.val_kwargs.temperature=0.5 {rollout}.val_kwargs.do_sample=True
        algorithm.adv_estimator=grpo
        algorithm.filter_groups.enable={case.filtered} algorithm.filter_groups.metric=reward
        reward.num_workers=1 reward.custom_reward_function.path={here / "reward.py"}
        transfer_queue.enable=True transfer_queue.backend.SimpleStorage.num_data_storage_units=1
        """.split(),
        *(f"+{sampler}.sampler_kwargs.{name}={value}" for name, value in limits.items()),
        *(SEPARATE if case.mode == "separate_async" else ()),
        *case.overrides,
    ]
    if case.tools:
        agent = f"{rollout}.agent"
        overrides += [f"{agent}.default_agent_loop=tooled", f"{agent}.agent_loop_config_path={here / 'tools.yaml'}"]
    with initialize_config_module("verl.trainer.config", version_base=None):
        return compose("ppo_trainer", overrides)


def random_case(rng):
    """A layout, a limit, and steps in which it is killed."""
    mode = rng.choice(["sync", "sync", "colocate_async", "colocate_async", "separate_async"])
    samples = rng.choice([1, 2]) if mode == "separate_async" else 1
    batch, n = samples * rng.choice([1, 2, 3]), rng.choice([1, 2, 4])
    filtered = n == 4 and rng.random() < 0.7
    steps = rng.choice([2.5, 4, 5.5])
    kind = rng.choice(["rollouts", "rollouts", "rollouts", "response_tokens", "device_hours"])
    overrides = []
    ahead = 0.0
    if mode != "sync":
        ahead = rng.choice([0, 0.5, 1, 2])
        overrides = [f"trainer.v1.{mode}.num_warmup_batches={ahead}"]
        threshold = rng.choice([1, 2, 8])
        strategy = rng.choice(["drop", "wait"])
        overrides += [f"trainer.v1.sampler.max_off_policy_threshold={threshold}"]
        overrides += [f"trainer.v1.sampler.max_off_policy_strategy={strategy}"]
    amount = int((steps + ahead) * batch * n * (2 if filtered else 1))
    limit = {"rollouts": amount, "response_tokens": int(amount * 2.5), "device_hours": 3 / 3600}[kind]
    return Case(
        mode=mode,
        batch=batch,
        n=n,
        samples=samples,
        filtered=filtered,
        overrides=overrides,
        # How many fit into a time is the machine's affair.
        steps=10_000 if kind == "device_hours" else 20,
        limits={kind: limit, "counted": rng.choice(["paid", "paid", "used"])},
        failing=rng.choice([0.0, 0.0, 0.1]) if mode != "sync" else 0.0,
        kills=rng.choice([[], [], [2], [3, 4]]),
        save_freq=rng.choice([1, 2]),
        test_freq=rng.choice([2, 100]),
    )


def prepare(folder):
    """A tokenizer, a model's configuration, and problems."""
    import pandas
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, PreTrainedTokenizerFast

    folder.mkdir(parents=True, exist_ok=True)
    plain = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<unk>"))
    plain.pre_tokenizer = pre_tokenizers.Split(Regex("user|assistant|."), "isolated")
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=plain, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>")
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder / "model")
    model = LlamaConfig(vocab_size=len(WORDS), hidden_size=32, num_hidden_layers=1, architectures=["LlamaForCausalLM"])
    model.save_pretrained(folder / "model")
    (folder / "tools_of_a_test.py").write_text(TOOLS)
    (folder / "tools.yaml").write_text(TOOLED)
    (folder / "reward.py").write_text(REWARD)
    for name, count in (("train", 24), ("validation", 3)):
        table = {
            "prompt": [[{"role": "user", "content": f"{k}+{k * k}="}] for k in range(count)],
            "data_source": ["sums"] * count,
            "reward_model": [{"style": "rule", "ground_truth": str(k + k * k)} for k in range(count)],
            "extra_info": [{"index": k} for k in range(count)],
        }
        pandas.DataFrame(table).to_parquet(folder / f"{name}.parquet")
