"""TRL's ``GRPOTrainer``: every batch size counts completions, none counts prompts.

Read in ``trl/trainer/grpo_config.py`` and ``grpo_trainer.py`` of 1.16 and ``transformers/trainer.py`` of 5.23:

* ``generation_batch_size`` is ``per_device_train_batch_size`` × processes × ``steps_per_generation``, which is
  ``gradient_accumulation_steps`` unless it is set, and is filled with groups of ``num_generations``. It is generated
  anew every ``steps_per_generation`` × ``num_iterations`` micro-steps, counted from the start of the process: a resume
  begins with a new one. An epoch holds whole generation batches only, and its last optimizer step may be short.
* ``max_steps`` counts optimizer steps and overrides ``num_train_epochs``. The number of processes is the launcher's.
  ``GRPOConfig`` refuses context and sequence parallelism, and counts the processes of tensor parallelism as if each had
  rollouts of its own.
* ``num_tokens`` and ``completions/mean_length`` are logged exactly in the steps that generated, as means over the
  generation batches since the last entry; ``num_tokens`` is cumulative and counts the prompt of every completion.
* Evaluations log TRL's metrics under one name, whatever the evaluation set; the set is in the names of Trainer's own.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from fractions import Fraction

from ..errors import BudgetError
from .batching import Batching
from .counting import Evaluation, whole_of
from .logs.log import Layout, Log
from .rewards import Point, success_rates
from .schedule import Schedule
from .settings import MissingSettingError, Settings, exact_quotient
from .target import Configuration, Run
from .trainer import LogReader, Trainer
from .trl_counts import count, layers, progress

RUNTIME = re.compile(r"eval[_/](?:(?P<set>.+)_)?runtime$")


def write(run: Run) -> Configuration:
    """Settings for a run.

    Raises:
        BudgetError: A group of one, which TRL refuses.
    """
    a = run.allocation
    if a.rollouts_per_problem < 2:
        raise BudgetError("TRL refuses num_generations of 1, whose advantages are all zero; take 2 or more")
    accumulated = run.rank_rollouts // run.pass_rollouts
    return Configuration(
        framework="trl",
        settings={
            "num_generations": a.rollouts_per_problem,
            "per_device_train_batch_size": run.pass_rollouts,
            "gradient_accumulation_steps": accumulated,
            "steps_per_generation": accumulated,
            "num_iterations": 1,
            "max_steps": a.update_steps,
            **run.learning_rate_setting("learning_rate"),
        },
        notes=(
            f"start {run.world_size} process{'es' if run.world_size > 1 else ''}: "
            f"accelerate launch --num_processes {run.world_size}",
            "per_device_train_batch_size counts completions, not prompts",
            f"needs at least {a.problems_per_batch:,} problems, or no generation batch is complete",
        ),
    )


def parse(settings: Settings) -> Batching:
    """Interpret TRL's settings."""
    found = layers(settings)
    problems = exact_quotient(found.batch, found.n)
    updates = Fraction(found.every, found.accumulated) if found.every and found.accumulated else None
    steps = settings.whole("max_steps") if settings.values.get("max_steps") != -1 else None
    epochs = settings.fraction("num_train_epochs", default=3) if steps is None and settings.has_defaults else None
    generations = None
    if updates and found.every and found.accumulated and problems:
        batches = None if settings.problems is None else settings.problems // problems
        if batches == 0:
            settings.inconsistent.append(
                f"{settings.problems:,} problems hold no whole generation batch of {problems:,}: TRL generates nothing"
            )
            steps, generations = 0, 0
        else:
            schedule = Schedule(every=found.every, accumulation=found.accumulated, batches=batches)
            if steps is None and epochs is not None and schedule.epoch_steps:
                steps = -int(-epochs * schedule.epoch_steps // 1)
            generations = None if steps is None else schedule.generations(0, steps)
            if steps and batches is None and found.every % found.accumulated:
                settings.notes.append(
                    "the last optimizer step of an epoch may be short, and generate less; give --problems D to count it"
                )
    if steps is None:
        settings.unknown.append(
            "update steps: they follow from num_train_epochs and the number of problems; give --problems D"
        )
    if settings.text("eval_strategy", default="no") != "no":
        settings.notes.append(
            "evaluations generate in addition: num_generations_eval for each prompt of the evaluation set"
        )
    return settings.batching(
        problems_generated=problems,
        rollouts_per_problem=found.n,
        generations=generations,
        updates=updates,
        passes=found.iterations,
        update_steps=steps,
        world_size=found.world,
        data_parallel=found.world,
    )


def entry(metrics: Mapping[str, float]) -> Mapping[str, float]:
    """One entry with Trainer's names in the form of its own state, and its evaluation set in TRL's metrics."""
    plain = {re.sub(r"^train/|^eval/", lambda m: "" if m[0] == "train/" else "eval_", k): v for k, v in metrics.items()}
    sets = {match["set"] for key in plain if (match := RUNTIME.match(key)) and match["set"]}
    if len(sets) != 1:
        return plain
    (name,) = sets
    return {
        k if k.startswith(f"eval_{name}_") or not k.startswith("eval_") else f"eval_{name}_{k[5:]}": v
        for k, v in plain.items()
    }


def evaluations(log: Log, settings: Settings, batching: Batching) -> list[Evaluation]:
    """The evaluations of a run, or with ``train_reward`` the mean rewards of its training.

    Raises:
        BudgetError: A size is not known, the log contradicts it, or no metric is a success rate.
    """
    training = settings.is_on("train_reward")
    names = {k for _, metrics in log.rows for k in metrics}
    prefixes = {""} if training else {m[1] for k in names if (m := re.match(r"(eval_(?:.+_)?)rewards?(?:/.*)?$", k))}
    logged = {prefix: _metric(settings, prefix, names, log.name) for prefix in sorted(prefixes)}
    logged = {prefix: name for prefix, name in logged.items() if name in names}
    if not logged:
        return []
    n, own = settings.required("num_generations", default=8), settings.whole("num_generations_eval")
    samples = n if training or own is None else own
    counts, each = count(log, settings)[0], settings.whole("per_device_eval_batch_size", default=8)
    batch = batching.batch_rollouts if training else settings.product(each, batching.world_size)
    found = []
    for prefix, name in logged.items():
        questions = None if training else whole_of(log, f"{prefix}runtime", f"{prefix}samples_per_second")
        batches = exact_quotient(questions * samples, batch) if questions else None
        deviation = name[: -len("mean")] + "std" if name.endswith("/mean") else f"{name}_std"
        points = [
            Point(step=step, mean=m[name], deviation=m.get(deviation), batch=batch, batches=batches)
            for step, m in log.rows
            if name in m
        ]
        rates, said = success_rates(points, name, settings.text("scale"), where=log.name)
        settings.notes += [f"avg_at_{samples} is {name}", *([said] if said else [])]
        kind = prefix.removeprefix("eval_").removesuffix("_") or ("train" if training else "eval")
        before = 0
        for step, rate in rates.items():
            if training:
                questions, before = max((counts.rollouts(step) - before) // samples, 1), counts.rollouts(step)
            found.append(
                Evaluation(
                    step=step, rollouts=counts.rollouts(step), rollouts_error=counts.error(step),
                    tokens=counts.tokens[step], count_source=counts.source,
                    problem_set=kind, samples=samples, scores={f"avg_at_{samples}": rate}, questions=questions,
                    split="train" if training else "validation",
                )
            )  # fmt: skip
    if training:
        settings.notes.append(
            "TRAINING REWARD: measured on the problems that are trained on, by the policy before each update; it says "
            "how a run learnt, not how well it answers problems that it has not seen"
        )
    return sorted(found, key=lambda e: (e.step, e.problem_set))


def _metric(settings: Settings, prefix: str, names: set[str], where: str) -> str:
    """The metric to read: the one named, else that of the only reward function."""
    wanted = settings.text("metric")
    if wanted:
        whole = [n for n in (wanted, re.sub("^eval/", "eval_", wanted)) if n in names and n.startswith(prefix)]
        return whole[0] if whole else f"{prefix}rewards/{wanted}/mean"
    each = sorted(k for k in names if k.startswith(f"{prefix}rewards/") and k.endswith("/mean"))
    if len(each) > 1:
        functions = ", ".join(k.split("/")[1] for k in each)
        raise MissingSettingError(
            f"{where}: {prefix}reward sums the rewards {functions}, of which one may be the success rate: name it with "
            "--set metric=NAME", name="metric", choices=functions,
        )  # fmt: skip
    return each[0] if each else f"{prefix}reward"


TRL = Trainer(
    name="trl",
    title="TRL",
    style="dashes",
    write=write,
    parse=parse,
    logs=LogReader(
        layout=Layout(
            steps=("train/global_step", "global_step", "step"),
            needed=re.compile(r"(?:train/)?completions/mean_length$|(?:train/)?num_tokens$|eval[/_](?!runtime|.*per_second)"),
            entry=entry,
        ),
        marks=re.compile(r"completions/mean_length$|num_tokens$|eval_(?:.*_)?completions/"),
        seeds=("seed",),
        learning_rates=("learning_rate",),
        evaluations=evaluations,
        progress=progress,
    ),
)  # fmt: skip
