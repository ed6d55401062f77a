"""TRL's GRPOTrainer: batch sizes count completions, and the step counts optimizer steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..errors import FrontierError
from .history import Run
from .settings import Settings


def rows(run: Run, settings: Settings) -> tuple[list[dict[str, Any]], list[str]]:
    """Rows of ``evals`` from ``eval_…`` metrics; the reward is avg@k over the evaluation's generations."""
    n = settings.whole("rollouts_per_problem", "num_generations")
    generated = _generated(run, settings, n)
    common = settings.common(n=n, problems=generated.batch // n, seed_keys=("seed",))
    samples = settings.whole("samples", "num_generations_eval", "num_generations")
    metric = settings.text("metric", default="")
    found, notes = [], []
    tokens, before, length = 0.0, 0, 0.0
    for step, metrics in run.rows:
        rollouts = generated.after(step)
        # An evaluation between two logs of training takes the last length known.
        length = metrics.get("completions/mean_length", metrics.get("train/completions/mean_length", length))
        tokens += (rollouts - before) * length
        before = rollouts
        name, value = _score(metrics, metric)
        if value is None:
            continue
        if not 0 <= value <= 1:
            raise FrontierError(
                f"{run.name}: {name} is {value:g} at step {step}, no success rate: name the accuracy's own metric "
                "with --set metric=NAME"
            )
        notes.append(f"avg_at_{samples} is {name}")
        found.append(
            {**common, "step": step, "rollouts": rollouts, "tokens": int(tokens),
             "problem_set": settings.text("problem_set", default="eval"), "samples": samples,
             f"avg_at_{samples}": value}
        )  # fmt: skip
    if tokens == 0 and any(row["step"] for row in found):
        notes.append("completions/mean_length is not logged: tokens are 0 (num_tokens counts prompts too)")
    return found, sorted(set(notes))


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """How the trainer generates: ``batch`` completions before every ``every`` micro-batches.

    An optimizer step takes ``accumulation`` micro-batches, so after s steps ⌈s·accumulation / every⌉ batches
    have been generated.
    """

    batch: int
    every: int
    accumulation: int

    def after(self, step: int) -> int:
        """Completions generated up to and including an optimizer step."""
        return -(-step * self.accumulation // self.every) * self.batch


def _generated(run: Run, settings: Settings, n: int) -> Generation:
    per_device = settings.whole("per_device_train_batch_size", "per_device_train_batch_size",
                                "trainer_state.train_batch_size")  # fmt: skip
    accumulation = settings.whole("gradient_accumulation_steps", "gradient_accumulation_steps",
                                  meaning="micro-batches in an optimizer step")  # fmt: skip
    micro = per_device * settings.whole("world_size", "world_size", "num_processes", default=1)
    batch = (
        settings.whole("generation_batch_size", "generation_batch_size", default=0)
        if _known(settings, "generation_batch_size")
        else micro * settings.whole("steps_per_generation", "steps_per_generation", default=accumulation)
    )
    if batch % n or batch % micro:
        raise FrontierError(
            f"{run.name}: a generation batch of {batch} completions has to be a multiple of num_generations = {n} and "
            f"of the {micro} completions of a micro-batch (per_device_train_batch_size counts completions)"
        )
    iterations = settings.whole("num_iterations", "num_iterations", default=1)
    return Generation(batch=batch, every=batch // micro * iterations, accumulation=accumulation)


def _known(settings: Settings, name: str) -> bool:
    return settings.text(name, name, default="") not in ("", "None")


def _score(metrics: dict[str, float], wanted: str) -> tuple[str, float | None]:
    """The evaluation's success rate: the metric named, else the one reward there is."""
    names = [wanted] if wanted else ["eval_reward", "eval/reward"]
    for name in names:
        if name in metrics:
            return name, metrics[name]
    return "", None
