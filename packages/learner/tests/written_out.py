"""The gradient of a batch as the objective's formula has it, with nothing of the learner's."""

from typing import Any

import polars as pl
import torch
from isocompute.learner.config import LearnerConfig


def written_out(
    policy: Any, base: Any, batch: pl.DataFrame, config: LearnerConfig
) -> tuple[torch.Tensor, float, float]:
    """The gradient token by token, without padding or micro-batches; see the parity chain in ``sync``.

    Args:
        policy: The policy, whose gradients are filled in: its call returns logits.
        base: The base model.
        batch: Prepared rollouts.
        config: The coefficients, and the cap of the importance weight.

    Returns:
        The gradient, the mean entropy (nats), and the largest difference from the sampler's log-probabilities (nats).
    """
    marks = batch["sampled"] if "sampled" in batch.columns else [[True] * len(r) for r in batch["response_ids"]]
    tokens = sum(map(sum, marks))
    entropy, worst = 0.0, 0.0
    for row, sampled in zip(batch.iter_rows(named=True), marks, strict=True):
        ids = torch.tensor([row["prompt_ids"] + row["response_ids"]])
        scores, known = (torch.log_softmax(m(ids).logits[0], -1) for m in (policy, base))
        for place, token in enumerate(row["response_ids"]):
            if not sampled[place]:
                continue
            i = len(row["prompt_ids"]) + place - 1
            own, spread = scores[i, token], -(scores[i].exp() * scores[i]).sum()
            weight = (own.detach() - row["logprobs"][place]).exp().clamp(max=config.importance.cap)
            apart = known[i, token].detach() - own
            term = -weight * row["advantage"] * own
            term += config.kl.coefficient * (apart.exp() - apart - 1) - config.entropy.coefficient * spread
            (term / tokens).backward(retain_graph=True)
            entropy += float(spread.detach()) / tokens
            worst = max(worst, abs(float(own.detach()) - row["logprobs"][place]))
    return torch.cat([p.grad.flatten() for p in policy.parameters()]), entropy, worst
