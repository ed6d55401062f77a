"""Rollouts with random tokens, and the log-probabilities that a model gives them."""

import numpy as np
import polars as pl
import torch


def recorded(*, groups: int = 4, n: int = 4, version: int = 0, step: int = 1, seed: int = 0) -> pl.DataFrame:
    """Rollouts with random tokens and rewards; their log-probabilities are for ``scored`` to fill in."""
    rng = np.random.default_rng([seed, step])
    prompts = [rng.integers(0, 12, rng.integers(2, 6)).tolist() for _ in range(groups)]
    return pl.DataFrame(
        [
            {
                "run_id": "r",
                "step": step,
                "phase": "train",
                "problem_id": f"p{g}",
                "sample": s,
                "prompt_ids": prompts[g],
                "response_ids": rng.integers(0, 12, rng.integers(1, 8)).tolist(),
                "reward": float(s < 1 + g % 2),
                "finish_reason": "stop",
                "weights_version": version,
            }
            for g in range(groups)
            for s in range(n)
        ]
    )


def scored(policy: torch.nn.Module, rollouts: pl.DataFrame, numbers: type[pl.DataType] = pl.Float32) -> pl.DataFrame:
    """Rollouts with the log-probabilities that a model gives them, one response at a time."""
    logprobs = []
    for prompt, response in rollouts.select("prompt_ids", "response_ids").iter_rows():
        with torch.no_grad():
            scores = torch.log_softmax(policy(torch.tensor([prompt + response])).logits[0], -1)
        logprobs.append([float(scores[len(prompt) + i - 1, token]) for i, token in enumerate(response)])
    return rollouts.with_columns(pl.Series("logprobs", logprobs, dtype=pl.List(numbers)))


def moved(model: torch.nn.Module, size: float) -> torch.nn.Module:
    """A model whose weights are all a little off, in place."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += size * torch.sin(torch.arange(parameter.numel())).view_as(parameter)
    return model
