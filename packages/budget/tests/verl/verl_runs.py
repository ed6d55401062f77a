"""Runs of veRL's trainers on a CPU with a budget, killed and resumed, against what was dispatched and sampled.

Real are: the configuration that Hydra composes from veRL's defaults, its TaskRunner (as an actor
where a case says so), loaders, trainers (``fit``, steps, warm-up, re-issue, validation, checkpoints), replay buffers,
dataloader, agent loop manager with its worker as a Ray actor, single-turn agent loop, reward worker, and TransferQueue.
Stood in for are, since they need GPUs: the engine, by ``Engine``, which answers with random tokens; the worker group of
the actor, which only makes folders for its checkpoints; and what a step computes after it has sampled.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import traceback
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import SimpleNamespace
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


class KilledError(Exception):
    """The process would be dead by now."""


@dataclass
class Found:
    """Results of a run: rollouts dispatched and tokens made by ``train`` and ``eval``, and of its steps."""

    dispatched: dict[str, int] = field(default_factory=dict)
    made: dict[str, list[int]] = field(default_factory=dict)
    taken: list[int] = field(default_factory=list)
    resumed: list[int] = field(default_factory=list)
    restored: list[int] = field(default_factory=lambda: [0, 0])
    validated: list[int] = field(default_factory=list)
    saved: list[int] = field(default_factory=list)
    log: dict[int, dict[str, float]] = field(default_factory=dict)
    reason: str = ""
    error: str = ""


class Engine:
    """Stands in for veRL's client of an inference server: random tokens, and every request in a file."""

    def __init__(self, path, failing):
        self.path, self.failing = path, failing

    async def generate(self, request_id, *, prompt_ids, sampling_params, **_):
        """Answer a request, or fail."""
        import asyncio

        from verl.workers.rollout.replica import TokenOutput

        rng = random.Random(request_id)
        await asyncio.sleep(rng.random() * 0.05)
        training = sampling_params["temperature"] == 1
        failed = training and rng.random() < self.failing
        tokens = [rng.randrange(3, 15) for _ in range(0 if failed else rng.randint(1, 4))]
        made = ["train" if training else "eval", 1, 0 if failed else len(prompt_ids), len(tokens)]
        append(self.path / "made.jsonl", made)
        if failed:
            raise RuntimeError("the engine failed")
        versions = {"min_global_steps": 0, "max_global_steps": 0}
        return TokenOutput(token_ids=tokens, log_probs=[0.0] * len(tokens), extra_fields=versions)


def append(path, row):
    """Add a line to a file at once."""
    with path.open("a") as stream:
        stream.write(json.dumps(row) + "\n")


def rows(path):
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def on_a_cpu(trainer_class, case, folder, found):
    """A trainer of veRL's, with stand-ins for what needs GPUs."""
    from verl.experimental.reward_loop import RewardLoopManager

    class OnCpu(trainer_class):
        def _setup(self):
            self._init_tokenizer()
            self._init_dataloader()
            self._init_dump_executor()
            self._init_resource_pool_mgr()
            self.reward_loop_manager = RewardLoopManager(config=self.config)
            self.teacher_model_manager = None
            self.llm_server_manager = SimpleNamespace(get_client=lambda **_: Engine(folder, case.failing))
            self.standalone_server_manager = self.llm_server_manager
            nothing = ("sleep_replicas", "update_weights", "abort_replicas", "resume_generation_replicas")
            self.checkpoint_manager = SimpleNamespace(**dict.fromkeys(nothing, lambda *_, **__: None))
            self.standalone_checkpoint_manager = self.checkpoint_manager
            self.actor_rollout_wg = SimpleNamespace(
                save_checkpoint=lambda path, *_, **__: Path(path).mkdir(parents=True, exist_ok=True),
                load_checkpoint=lambda **_: None,
            )
            if case.mode == "separate_async":
                from verl.trainer.ppo.v1.trainer_separate_async import HybridEngineMode

                self.current_mode = HybridEngineMode.TRAINER
            self.replay_buffer.poll_interval = 0.1
            self._load_checkpoint()
            found.resumed.append(self.global_steps)
            buffer = self.replay_buffer
            buffer._sync_metadata_from_transfer_queue()
            ended = buffer.finished_keys["train"] | buffer.failure_keys["train"]
            tags = [tag for key, tag in buffer.partitions["train"].items() if key.split("_")[0] in ended]
            found.restored[0] += len(tags)
            found.restored[1] += sum(tag["response_len"] for tag in tags)
            append(folder / "lives.jsonl", self.global_steps)

        def _balance_batch(self, batch, *_, **__):
            last = self.local_trigger_step + 1 == self.parameter_sync_step
            kills = case.kills[(lives := len(rows(folder / "lives.jsonl"))) - 1 : lives]
            if last and self.global_steps in kills:
                if case.for_real:
                    os.kill(os.getpid(), signal.SIGKILL)
                raise KilledError
            return batch

        def _save_checkpoint(self):
            super()._save_checkpoint()
            found.saved.append(self.global_steps)

        def _validate(self):
            found.validated.append(self.global_steps)
            return super()._validate()

        def _compute_metrics(self, batch, metrics, *_, **__):
            found.taken.append(self.global_steps)
            found.log[self.global_steps] = {k: v for k, v in metrics.items() if k.startswith("budget/")}

    for name in ("_compute_old_log_prob", "_compute_ref_log_prob", "_compute_advantage", "_update_actor"):
        setattr(OnCpu, name, lambda self, batch, *_, **__: batch)
    return OnCpu


def live(case, folder, found):
    """One process of a run."""
    import ray
    from verl.trainer import main_ppo

    config = configuration(case, folder)
    task_runner = main_ppo.TaskRunnerV1.__ray_metadata__.modified_class
    if not case.in_actor:
        runner = task_runner()
        drive(runner, runner.run, config, case, folder, found)
        return

    class InActor(task_runner):
        def run(self, config):
            found = Found()
            try:
                drive(self, super().run, config, case, folder, found)
            finally:
                (folder / "found.json").write_text(json.dumps(asdict(found)))

    try:
        main_ppo.run_ppo(config, task_runner_class=ray.remote(InActor))
    finally:
        if (folder / "found.json").exists():
            vars(found).update(json.loads((folder / "found.json").read_text()))


def drive(runner, run, config, case, folder, found):
    """Let a TaskRunner run, with what stands in and what counts."""
    import ray
    from verl.trainer.ppo.v1 import agent_loop_tq, trainer_base

    real, dispatch = trainer_base.TRAINER_REGISTRY[case.mode], agent_loop_tq.AgentLoopManagerTQ.generate_sequences

    def hooked(self, prompts):
        evaluated = "validate" in prompts.keys()  # noqa: SIM118
        rollouts = len(prompts) * (3 if evaluated else case.n)
        append(folder / "dispatched.jsonl", ["eval" if evaluated else "train", rollouts])
        dispatch(self, prompts)

    agent_loop_tq.AgentLoopManagerTQ.generate_sequences = hooked
    trainer_base.TRAINER_REGISTRY[case.mode] = on_a_cpu(real, case, folder, found)
    try:
        run(config)
    finally:
        trainer_base.TRAINER_REGISTRY[case.mode] = real
        agent_loop_tq.AgentLoopManagerTQ.generate_sequences = dispatch
        budget = getattr(getattr(runner.trainer, "replay_buffer", None), "budget", None)
        if budget is not None:
            found.reason = budget.reason
            budget.close()
        for manager in (runner.agent_loop_manager, getattr(runner.trainer, "reward_loop_manager", None)):
            for worker in getattr(manager, "agent_loop_workers", None) or getattr(manager, "reward_loop_workers", ()):
                ray.kill(worker)


def train(case, folder):
    """Train until the run ends by itself."""
    from isocompute.budget import BudgetError

    found = Found()
    folder.mkdir(parents=True, exist_ok=True)
    while True:
        try:
            live(case, folder, found)
        except KilledError:
            continue
        except BudgetError as error:
            found.error = str(error)
        break
    for mode in ("train", "eval"):
        found.dispatched[mode] = sum(n for kind, n in rows(folder / "dispatched.jsonl") if kind == mode)
        made = [row[1:] for row in rows(folder / "made.jsonl") if row[0] == mode]
        found.made[mode] = [sum(column) for column in zip([0, 0, 0], *made, strict=True)]
    return found


def main(cases, folder, out):
    """Train cases one after the other."""
    import ray

    place = Path(folder).resolve()
    place.mkdir(parents=True, exist_ok=True)
    # Where veRL writes its log.
    os.chdir(place)
    if not (place / "model").is_dir():
        prepare(place)
    # For the actors.
    paths = [str(Path(__file__).parent), folder, os.environ.get("PYTHONPATH", "")]
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)
    said = bool(os.environ.get("ISOCOMPUTE_VERL_SAID"))
    ray.init(num_cpus=64, include_dashboard=False, object_store_memory=10**8, log_to_driver=said)
    found = []
    for number, case in enumerate(json.loads(Path(cases).read_text())):
        try:
            found.append(asdict(train(Case(**case), place / str(number))))
        except Exception:
            found.append({"raised": traceback.format_exc()})
        Path(out).write_text(json.dumps(found))
    ray.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:])
