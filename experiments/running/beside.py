"""vLLM beside the sampler that a rule chose in its place: do both give the same tokens the same log-probabilities?"""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing
from multiprocessing import get_context
from typing import TYPE_CHECKING, Any

import polars as pl
from isocompute.rollout import EngineConfig, open_sampler

from ..errors import ExperimentError
from .cells import Generation

if TYPE_CHECKING:
    from isocompute.learner.records.steps import Agreement

TOLERANCE = 1e-4
"""Nats that two programs' log-probabilities of a token may differ by in float32; by rounding they differ by 3e-6."""
PROBLEMS, SAMPLES = 4, 2


def compare_with_vllm(model: str, generation: Generation, problems: pl.DataFrame) -> Agreement:
    """Compare a model's log-probabilities in vLLM with those in transformers, of tokens that vLLM has sampled.

    vLLM runs in a process of its own, which ends: what it loads and sets must reach no result of this one.

    Args:
        model: Folder of the model.
        problems: Of which the first few are answered.

    Raises:
        ExperimentError: They differ by more than ``TOLERANCE``, or vLLM's process ended.
    """
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as apart:
        try:
            found = apart.submit(_compared, model, generation, problems.head(PROBLEMS)).result()
        except BrokenProcessPool:
            raise ExperimentError(f"{model}: the process that was to answer with vLLM ended before it had") from None
    check(found, model)
    return found


def check(found: Agreement, model: str) -> None:
    """Refuse a model that the two programs do not agree on."""
    # Not «above»: a NaN is no agreement.
    if not found.maximum <= TOLERANCE:
        raise ExperimentError(
            f"{model}: vLLM's log-probabilities of tokens differ from those of transformers by up to "
            f"{found.maximum:.2g} nats, which must be at most {TOLERANCE:g}: one of the two does not compute this "
            "model; name the right one in resources.sampler"
        )


def _compared(model: str, generation: Generation, problems: pl.DataFrame) -> Agreement:
    import torch
    from isocompute.learner import Learner, LearnerConfig

    torch.set_num_threads(1)
    options: dict[str, Any] = {
        "prompting": generation.prompting,
        "scoring": generation.scoring,
        "engine": EngineConfig(profile="cpu"),
        "responses": PROBLEMS * SAMPLES,
    }
    with closing(open_sampler("vllm", model, generation.sampling, **options)) as sampler:
        rollouts = sampler.sample(problems, samples=SAMPLES, seed=0, step=0, phase="canary")
    learner = Learner(model, LearnerConfig(learning_rate=1.0, temperature=generation.sampling.temperature))
    return learner.agreement(rollouts)
