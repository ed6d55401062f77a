"""ms-swift's GRPO: TRL's trainer and its batches, with its own defaults, resampling and log file.

Read in ``swift/rlhf_trainers/{grpo_trainer,args_mixin}.py``, ``swift/trainers/{arguments,patcher}.py`` and
``swift/arguments`` of August 2026:

* The settings have TRL's names and meanings. Micro-batches default to 1, in training and evaluation. The number of
  processes is the launcher's ``NPROC_PER_NODE`` × ``NNODES``; ``args.json``, beside the log, gives it as
  ``global_world_size``.
* ``logging.jsonl`` has TRL's metrics, averaged over the generation batches since the last entry, without
  ``num_tokens``. Its steps are texts, ``12/50``. Other loggers get TRL's entries; the settings stored with them tell
  the trainer.
* ``dynamic_sample`` generates up to ``max_resample_times`` further batches for each one, until enough groups have a
  spread of rewards. How many is not logged, and the lengths cover what was kept.
* Lengths cover the tokens that are trained on, so they exclude tool output.

Its Megatron trainer writes ``iteration`` where this one writes ``global_step/max_steps``. It has other settings, and
its logs are refused.
"""

from __future__ import annotations

import re
from dataclasses import replace

from ..errors import BudgetError
from . import trl
from .counting import LoggedEvaluation, StepCount, StepCounts
from .logs.log import Log
from .settings import Batching, Configuration, RunPlan, Settings
from .trainer import LogReader, Trainer

MICRO_BATCHES = ("per_device_train_batch_size", "per_device_eval_batch_size")
PROCESSES = {"num_processes": ("global_world_size",), "nproc_per_node": ("NPROC_PER_NODE",), "nnodes": ("NNODES",)}
"""TRL's names of the launcher's settings, with ms-swift's names."""


def _write(run: RunPlan) -> Configuration:
    made = trl.write(run)
    return Configuration(
        settings={"rlhf_type": "grpo", **made.settings},
        notes=(f"start {run.world_size} processes: NPROC_PER_NODE={run.world_size} swift rlhf", *made.notes[1:]),
    )


def parse(settings: Settings) -> Batching:
    """Interpret ms-swift's settings as TRL's, after adding what they lack."""
    added = {}
    for name, names in PROCESSES.items():
        value = settings.find(name, *names)[1]
        if value is not None:
            added[name] = value
    for name in MICRO_BATCHES if settings.has_defaults else ():
        if settings.find(name)[1] is None:
            added[name] = 1
            settings.notes.append(f"{name} is not set; the default of 1 is assumed")
    settings.values = {**settings.values, **added}
    if settings.find("train_iters")[1] is not None:
        raise BudgetError(f"{settings.where}: is of ms-swift's Megatron trainer (train_iters), whose logs are not read")
    if settings.is_on("dynamic_sample"):
        settings.notes.append("dynamic_sample generates more than B_p · n · M rollouts; how many is not logged")
    return trl.parse(settings)


def evaluations(log: Log, settings: Settings, batching: Batching) -> list[LoggedEvaluation]:
    """The evaluations of a run, or its training rewards, read like TRL's."""
    found = trl.evaluations(log, settings, batching)
    each = _resampled(settings)
    if each is None:
        return found
    return [replace(e, count=replace(_recounted(e.count, each), rollouts_error=0)) for e in found]


def _progress(log: Log, settings: Settings, batching: Batching) -> StepCounts:
    counts = trl.progress(log, settings, batching)
    each = _resampled(settings)
    if each is None:
        return counts
    return StepCounts.of([_recounted(point, each) for point in counts.points], each, plain=counts.plain)


def _recounted(count: StepCount, each: int) -> StepCount:
    """A count with this many rollouts per step, and the same tokens per response as before."""
    rollouts = count.step * each
    tokens = count.tokens * rollouts // max(count.rollouts, 1)
    return replace(count, rollouts=rollouts, tokens=tokens, count_source="formula")


def _resampled(settings: Settings) -> int | None:
    """Rollouts per step if groups were resampled, or None if they were not."""
    each = settings.whole("rollouts_per_step")
    if not settings.is_on("dynamic_sample"):
        return None
    if each is None:
        because = "dynamic_sample generates until enough groups have a spread, and how often is not logged"
        raise settings.missing("rollouts_per_step", because=because)
    return each


SWIFT = Trainer(
    name="swift",
    title="ms-swift",
    style="dashes",
    write=_write,
    parse=parse,
    logs=LogReader(
        layout=replace(trl.LOGS.layout, steps=("global_step/max_steps", "iteration", *trl.LOGS.layout.steps)),
        marks=re.compile(r"train_speed\((?:s/it|iter/s)\)$|rlhf_type$|dynamic_sample$"),
        seeds=trl.LOGS.seeds,
        learning_rates=trl.LOGS.learning_rates,
        evaluations=evaluations,
        progress=_progress,
        understands=(*trl.LOGS.understands, "rollouts_per_step"),
        beside=re.compile(r"completions\.jsonl|val_dataset\.jsonl"),
    ),
)
