"""SkyRL: ``trainer.train_batch_size`` and ``policy_mini_batch_size`` count prompts; micro-batches count samples.

Read in ``skyrl/train/config/config.py`` and ``skyrl/train/utils/utils.py`` of 0.4: each mini-batch is an optimizer
step, ``trainer.max_training_steps`` ends a run that ``trainer.epochs`` has not ended before. Training and inference
share their devices by default (``placement.colocate_all``), which needs as many devices of engines as of the policy;
the reference model, which the default KL loss needs, is placed by settings of its own. Tensor and pipeline parallelism
are Megatron's, sequence parallelism alone is FSDP's.
"""

from __future__ import annotations

from .settings import Batching, Configuration, RunPlan, Settings, Value, exact_quotient
from .trainer import Trainer

POLICY, REFERENCE = "trainer.policy", "trainer.ref"
PLACEMENT = "trainer.placement"
ENGINE = "generator.inference_engine"
DEGREES = ("tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size")


def write(run: RunPlan) -> Configuration:
    """Settings for a run."""
    a = run.allocation
    nodes, per_node = run.nodes
    # An engine is spread like the policy where its devices are on one machine.
    tensor = run.parallelism.tensor if per_node % run.parallelism.tensor == 0 else 1
    return Configuration(
        framework="skyrl",
        settings={
            "trainer.train_batch_size": a.problems_per_batch,
            "generator.n_samples_per_prompt": a.rollouts_per_problem,
            "trainer.policy_mini_batch_size": a.problems_per_batch,
            "trainer.update_epochs_per_batch": 1,
            "trainer.micro_train_batch_size_per_gpu": run.pass_rollouts,
            "trainer.micro_forward_batch_size_per_gpu": run.pass_rollouts,
            f"{PLACEMENT}.policy_num_nodes": nodes,
            f"{PLACEMENT}.policy_num_gpus_per_node": per_node,
            f"{PLACEMENT}.ref_num_nodes": nodes,
            f"{PLACEMENT}.ref_num_gpus_per_node": per_node,
            f"{ENGINE}.num_engines": run.world_size // tensor,
            f"{ENGINE}.tensor_parallel_size": tensor,
            **_parallel(run),
            "trainer.max_training_steps": a.update_steps,
            "trainer.epochs": run.epochs,
            **run.learning_rate_setting(f"{POLICY}.optimizer_config.lr"),
        },
        notes=(
            "policy_mini_batch_size counts prompts, the micro-batches count samples",
            f"engines and policy share {run.world_size} devices ({PLACEMENT}.colocate_all, the default): num_engines × "
            "tensor_parallel_size must equal their number",
        ),
    )


def _parallel(run: RunPlan) -> dict[str, Value]:
    """Megatron where matrices or layers are shared, FSDP where only sequences are; the reference model alike."""
    p = run.parallelism
    if p.tensor > 1 or p.pipeline > 1:
        degrees = dict(zip(DEGREES, (p.tensor, p.pipeline, p.context), strict=True))
        models = {
            f"{model}.megatron_config.{name}": degree
            for model in (POLICY, REFERENCE)
            for name, degree in degrees.items()
        }
        return {"trainer.strategy": "megatron", **models}
    if p.context > 1:
        return {f"{model}.sequence_parallel_size": p.context for model in (POLICY, REFERENCE)}
    return {}


def parse(settings: Settings) -> Batching:
    """Interpret SkyRL's settings."""
    problems = settings.whole("trainer.train_batch_size", default=1024)
    n = settings.whole("generator.n_samples_per_prompt", default=5)
    mini = settings.whole("trainer.policy_mini_batch_size", default=256)
    passes = settings.whole("trainer.update_epochs_per_batch") or 1
    nodes = settings.whole(f"{PLACEMENT}.policy_num_nodes", default=1)
    per_node = settings.whole(f"{PLACEMENT}.policy_num_gpus_per_node", default=1)
    world = nodes * per_node if nodes and per_node else None
    ranks = _ranks(settings, world)
    mini_batches = exact_quotient(problems, mini)
    if problems and mini and mini_batches is None:
        settings.inconsistent.append(
            f"trainer.train_batch_size of {problems:,} prompts is not a multiple of policy_mini_batch_size {mini:,}, "
            "which SkyRL refuses; both count prompts"
        )
    samples = settings.product(mini, n)
    settings.check_divides(samples, ranks, world, "policy_mini_batch_size × n_samples_per_prompt")
    micro = settings.whole("trainer.micro_train_batch_size_per_gpu")
    share = exact_quotient(samples, ranks)
    if micro and share and share % micro:
        settings.inconsistent.append(
            f"micro_train_batch_size_per_gpu counts samples: {micro} does not divide the {share:,} of a data-parallel "
            "rank"
        )
    _placement(settings, world, (nodes, per_node))
    steps = settings.steps(
        settings.whole("trainer.max_training_steps"),
        settings.whole("trainer.epochs", default=1),
        problems,
        "trainer.epochs",
    )
    if settings.values.get("trainer.algorithm.dynamic_sampling.type") is not None:
        settings.notes.append(
            "dynamic sampling generates more than B_p · n · M rollouts; how many is known only afterwards"
        )
    return settings.batching(
        problems_generated=problems,
        rollouts_per_problem=n,
        generations=steps,
        updates=mini_batches * passes if mini_batches else None,
        passes=passes,
        world_size=world,
        data_parallel=ranks,
    )


def _ranks(settings: Settings, world: int | None) -> int | None:
    """Data-parallel ranks of the policy, under Megatron or FSDP."""
    if settings.values.get("trainer.strategy") == "megatron":
        tensor, pipeline, context = ((f"{POLICY}.megatron_config.{name}",) for name in DEGREES)
        return settings.ranks(world, tensor=tensor, pipeline=pipeline, context=context)
    return settings.ranks(world, context=(f"{POLICY}.sequence_parallel_size",))


def _placement(settings: Settings, world: int | None, policy: tuple[int | None, int | None]) -> None:
    """Note numbers of devices for engines and reference model that SkyRL refuses, given those of the policy."""
    if world is None:
        return
    if settings.is_on(f"{PLACEMENT}.colocate_all", default=True):
        each = 1
        for size in ("tensor", "pipeline", "data"):
            # Releases before 0.4 have the second name.
            names = (f"{ENGINE}.{size}_parallel_size", f"generator.inference_engine_{size}_parallel_size")
            each *= settings.whole(*names) or 1
        engines = settings.whole(f"{ENGINE}.num_engines", "generator.num_inference_engines") or 1
        if engines * each != world:
            settings.inconsistent.append(
                f"colocate_all: {engines} engines of {each} devices are {engines * each}, and the policy has {world}; "
                "SkyRL requires the two to be equal"
            )
        return
    reference = tuple(settings.whole(f"{PLACEMENT}.ref_num_{part}") or 1 for part in ("nodes", "gpus_per_node"))
    used = settings.is_on("trainer.algorithm.use_kl_loss", default=True) or settings.is_on(
        "trainer.algorithm.use_kl_in_reward"
    )
    if used and settings.is_on(f"{PLACEMENT}.colocate_policy_ref", default=True) and reference != policy:
        settings.inconsistent.append(
            f"colocate_policy_ref: the policy has {policy[0]} × {policy[1]} devices and the reference model "
            f"{reference[0]} × {reference[1]}; SkyRL requires them to be the same"
        )


SKYRL = Trainer(
    name="skyrl", title="SkyRL", style="hydra", write=write, parse=parse, parallelism=("tensor", "pipeline", "context")
)
