"""Responses of random tokens, and their log-probabilities by the learner's way and by transformers' own."""

from pathlib import Path

import numpy as np
import polars as pl
import torch
from isocompute.learner.batch.packing import MicroBatch
from isocompute.learner.batch.responses import read
from isocompute.learner.policy.forward import Forward
from transformers import AutoModelForCausalLM


def rollouts(*, groups: int = 3, samples: int = 4, longest: int = 7) -> pl.DataFrame:
    generator = np.random.default_rng(3)
    prompts = [generator.integers(0, 12, 2 + g).tolist() for g in range(groups)]
    responses = [generator.integers(0, 12, 1 + (5 * i) % longest).tolist() for i in range(groups * samples)]
    return pl.DataFrame(
        {
            "problem_id": [f"p{i // samples}" for i in range(len(responses))],
            "sample": list(range(len(responses))),
            "prompt_ids": [prompts[i // samples] for i in range(len(responses))],
            "response_ids": responses,
            "logprobs": [[0.0] * len(r) for r in responses],
        }
    )


def of_transformers(folder: Path, table: pl.DataFrame) -> torch.Tensor:
    """Log-probabilities one response at a time."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    found = []
    for prompt, response in table.select("prompt_ids", "response_ids").iter_rows():
        with torch.no_grad():
            scores = torch.log_softmax(model(torch.tensor([prompt + response])).logits[0] / 0.7, -1)
        found += [float(scores[len(prompt) + i - 1, token]) for i, token in enumerate(response)]
    return torch.tensor(found)


def of_learner(forward: Forward, table: pl.DataFrame) -> torch.Tensor:
    """Log-probabilities by the learner's way, response by response in the order of the table."""
    responses = read(table, vocabulary=int(1e9))
    found = torch.zeros(int(responses.counts.sum()))
    for piece in forward.pieces(responses, np.arange(len(responses))):
        found[responses.tokens_of(piece.rows)] = forward.logprobs(forward.micro_batch(responses, piece))
    return found


def micro_batches(forward: Forward, table: pl.DataFrame) -> list[MicroBatch]:
    responses = read(table, vocabulary=12)
    return [forward.micro_batch(responses, piece) for piece in forward.pieces(responses, np.arange(len(responses)))]
