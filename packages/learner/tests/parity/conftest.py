"""veRL and TRL themselves, and random batches in float64: ``nox -s trainers`` installs both."""

import importlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from isocompute.learner.config import LearnerConfig
from isocompute.learner.objective.loss import ObjectiveInputs, loss_weights, objective
from isocompute.learner.records.steps import Mean


@pytest.fixture(scope="session")
def needed() -> Callable[[str], Any]:
    """A trainer's module by its name; the session that installs the trainers does not let one be missing."""

    def module(name: str) -> Any:
        if "ISOCOMPUTE_TRAINERS" in os.environ:
            return importlib.import_module(name)
        return pytest.importorskip(name, exc_type=ImportError)

    return module


@pytest.fixture(scope="session")
def verl(needed: Callable[[str], Any]) -> Any:
    return needed("verl.trainer.ppo.core_algos")


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Padded responses in groups of four, as the trainers have them: matrices of shape (responses, longest)."""

    groups: np.ndarray
    rewards: torch.Tensor
    mask: torch.Tensor
    logprobs: torch.Tensor
    old: torch.Tensor
    sampler: torch.Tensor
    reference: torch.Tensor
    entropy: torch.Tensor
    advantages: torch.Tensor
    values: torch.Tensor
    old_values: torch.Tensor
    returns: torch.Tensor

    @property
    def counts(self) -> np.ndarray:
        return self.mask.sum(1).numpy()

    def learn(
        self, config: LearnerConfig, *, per_token: bool = False
    ) -> tuple[torch.Tensor, torch.Tensor, dict[str, Mean]]:
        """Our loss, its gradient with respect to the matrix of log-probabilities, and our metrics."""
        chosen = config.objective.resolved
        length = chosen.constant_length
        weights = loss_weights(self.counts, self.groups, aggregation=chosen.aggregation, constant_length=length)
        response = self.mask.nonzero()[:, 0]
        logprobs = self.logprobs.clone().requires_grad_()
        loss, metrics = objective(
            ObjectiveInputs(
                logprobs=logprobs[self.mask],
                sampler_logprobs=self.sampler[self.mask],
                advantages=self.returns[self.mask] if per_token else self.advantages[response],
                weights=torch.from_numpy(weights)[response],
                response=response,
                responses=len(self.mask),
                zero_variance=torch.zeros(len(response), dtype=torch.bool),
                entropy=(self.entropy * -logprobs)[self.mask],
                old_logprobs=self.old[self.mask],
                reference_logprobs=self.reference[self.mask],
            ),
            config,
        )
        loss.backward()
        return loss.detach(), logprobs.grad, metrics


@pytest.fixture(scope="session")
def batch() -> Callable[..., Batch]:
    """A random batch for a seed: three groups of four responses of 1 to 7 tokens, some of which were not sampled."""

    def of(seed: int) -> Batch:
        random = np.random.default_rng(seed)
        lengths = random.integers(1, 8, 12)
        mask = np.arange(7)[None, :] < lengths[:, None]
        # The first token of each stays.
        mask[:, 1:] &= random.random((12, 6)) < 0.8

        def normal(scale: float = 1.0) -> torch.Tensor:
            return torch.from_numpy(random.normal(0.0, scale, mask.shape))

        old = -normal(2.0).abs() - 0.1
        return Batch(
            groups=np.repeat(np.arange(3), 4),
            rewards=torch.from_numpy(random.integers(0, 9, 12) / 8),
            mask=torch.from_numpy(mask),
            logprobs=old + normal(0.3),
            old=old,
            sampler=old + normal(0.3),
            reference=old + normal(0.5),
            entropy=normal().abs(),
            advantages=torch.from_numpy(random.normal(0.0, 1.0, 12)),
            values=normal(),
            old_values=normal(),
            returns=normal(),
        )

    return of
