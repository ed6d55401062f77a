"""One rank of the learner: it holds a policy and its optimizer, and turns rollouts into an update."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
import torch.distributed as dist

from . import policy as policies
from .adam import Optimizer
from .batch import MicroBatch, Responses, read
from .collective import Collective
from .config import LearnerConfig
from .errors import DivergenceError, LearnerError, SyncError
from .metrics import Mean, added, reduced
from .objective.loss import ObjectiveInputs, loss_metrics, objective
from .objective.prepare import sampled_counts
from .objective.ragged import Ragged, listed
from .rate import matmul_rate, shape_of, training_operations
from .reports import Agreement, Average, UpdateReport
from .skipping import skipped
from .state import take_over, tensors_of
from .sync import BROKEN, agreement, check_finite, check_sync, compare


class Learner:
    """A policy, its AdamW state, and the base model or a critic where the settings need them.

    With a process group, each rank is given its share of the batch (which may be empty) and all ranks take the same
    update: a gradient is a weighted sum over tokens, and sums add up. Tokens are those that the policy sampled (column
    ``sampled``).

    Args:
        model: The base model.
        config: The learner's settings.
        device: A torch device.
        ranks: The learners that take every update together, or None for this one alone.
        dtype: Type of weights, gradients and moments.

    Raises:
        LearnerError: The model cannot be used; see ``policy.load_policy``.
    """

    def __init__(
        self,
        model: str | Path,
        config: LearnerConfig,
        *,
        device: str = "cpu",
        ranks: dist.ProcessGroup | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.device, self.model, self._dtype = device, str(model), dtype
        self._together = Collective(ranks, device)
        self._load(config)

    def reset(self, config: LearnerConfig) -> None:
        """Go back to the base model's weights, a fresh optimizer and version 0."""
        # The base model is read again, so that no copy of it is held; what there was is freed first.
        del self.policy, self._forward, self._optimizer, self._reference
        self._load(config)

    def _load(self, config: LearnerConfig) -> None:
        self.config, self.version = config, 0
        settings: dict[str, Any] = {"temperature": config.temperature, "device": self.device}
        self.policy = policies.load_policy(self.model, device=self.device, dtype=self._dtype)
        self._forward = policies.Forward(self.policy, config.compute, **settings)
        self._reference: policies.Forward | None = None
        if config.kl.coefficient:
            lower = config.compute.precision == "bfloat16" and self._dtype == torch.float32
            kind = torch.bfloat16 if lower else self._dtype
            base = policies.reference_of(self.model, device=self.device, dtype=kind)
            self._reference = policies.Forward(base, config.compute, **settings)
        self.critic: policies.ValueHead | None = None
        if config.objective.resolved.baseline == "gae":
            share = config.critic.coefficient if config.critic.through_policy else 0.0
            size = self.policy.get_output_embeddings().weight.shape[1]
            self.critic = policies.ValueHead(size, share=share, device=self.device, dtype=self._dtype)
        self._optimizer = Optimizer(self.policy, self.critic, config)
        self._shape = shape_of(self.policy)

    def weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        """The policy's tensors by their Hugging Face names; see ``policy.tensors``."""
        for name, tensor in policies.tensors(self.policy).items():
            yield name, tensor.detach()

    def agreement(self, rollouts: pl.DataFrame) -> Agreement:
        """How far the sampler's log-probabilities are from this rank's, over all responses.

        Raises:
            DivergenceError: A log-probability of the learner's own is not finite.
            LearnerError: There is no response token to compare.
        """
        batches = self._batches(self._read(rollouts))
        compared = [compare(self._forward.logprobs(batch), batch.sampler_logprobs) for batch in batches]
        if not compared:
            raise LearnerError("the rollouts have no response token whose log-probability could be compared")
        joined = torch.cat(compared, dim=1)
        return agreement(joined, step=self.version + 1, largest=_alone, total=_alone)

    def sync_error(self, rollouts: pl.DataFrame) -> float:
        """The largest difference alone (nats); see ``agreement``."""
        return self.agreement(rollouts).maximum

    def measure(self, rollouts: pl.DataFrame) -> pl.DataFrame:
        """Pass responses through the model without learning from them.

        Args:
            rollouts: This rank's share of completed responses.

        Returns:
            The table with list columns of a number for each sampled token: ``old_logprobs``, with a KL term
            ``reference_logprobs``, with a critic ``values``.

        Raises:
            SyncError: The responses were sampled with other weights than the learner's.
            DivergenceError: A log-probability of the learner's own is not finite.
            LearnerError: The rollouts do not fit the model.
        """
        self._check_version(rollouts)
        found: dict[str, list[torch.Tensor]] = {"old_logprobs": []}
        found |= {"reference_logprobs": []} if self._reference is not None else {}
        found |= {"values": []} if self.critic is not None else {}
        compared = [self._nothing(3, 0)]
        for batch in self._batches(self._read(rollouts)):
            with torch.no_grad(), self._forward.attending(batch):
                hidden = self._forward.hidden(batch)
                found["old_logprobs"].append(self._forward.terms(hidden, batch).logprobs)
                if self.critic is not None:
                    found["values"].append(self.critic(hidden))
            if self._reference is not None:
                found["reference_logprobs"].append(self._reference.logprobs(batch))
            compared.append(compare(found["old_logprobs"][-1], batch.sampler_logprobs))
        self._verify(torch.cat(compared, dim=1))
        lengths = sampled_counts(rollouts)
        return rollouts.with_columns(
            listed(name, Ragged(values=torch.cat([self._nothing(0), *parts]).cpu().numpy(), lengths=lengths))
            for name, parts in found.items()
        )

    def update(self, batch: pl.DataFrame, /, *, advance: bool = True) -> UpdateReport:
        """Take one optimizer step.

        Args:
            batch: This rank's share of an update's responses, with the columns of ``objective.prepare``.
            advance: Whether the version of the weights is counted up: with the last optimizer step of a batch.

        Returns:
            What the step did, over the shares of all ranks.

        Raises:
            SyncError: The responses were sampled with other weights than the learner's. The policy is as it was.
            DivergenceError: The gradient, the loss or a log-probability of the learner's own is not finite. The
                policy is as it was.
            LearnerError: No rank has a response token, or the rollouts do not fit the model. The policy is as it was.
        """
        self._check_version(batch)
        responses = self._read(batch)
        tokens = int(self._together.total(int(responses.counts.sum())))
        if not tokens:
            raise LearnerError(f"step {self.version + 1} has no response token to learn from")
        left_out = skipped(responses.of_rows["advantage"], responses.of_rows["zero_variance"], self.config)
        found, means, broken, operations = self._backward(responses, np.flatnonzero(~left_out))
        self._together.gradients(self._optimizer.parameters)
        norm = self._optimizer.clip()
        means = reduced(means, self._together.sum)
        self._check_outcome(norm, means["loss"].value, broken)
        rate = self._optimizer.step(self.version + 1)
        self._optimizer.forget_gradients()
        self.version += advance
        counted = [self._together.total(int(count)) for count in (left_out.sum(), len(responses))]
        return UpdateReport(
            objective={name: Average.of(mean) for name, mean in means.items()},
            gradient_norm=norm,
            learning_rate=rate,
            sync_error=found.maximum,
            sync_mean=found.mean,
            sync_k3=found.k3,
            sync_quantile=found.quantile,
            trained_tokens=tokens,
            skipped=Average(total=counted[0], count=counted[1]),
            operations=self._together.total(operations),
            machine_rate=self._together.total(matmul_rate(self.device, self._forward.dtype)),
        )

    def _read(self, rollouts: pl.DataFrame) -> Responses:
        return read(rollouts, vocabulary=policies.vocabulary(self.policy))

    def _batches(self, responses: Responses, rows: np.ndarray | None = None) -> Iterator[MicroBatch]:
        rows = np.arange(len(responses)) if rows is None else rows
        for piece in self._forward.pieces(responses, rows):
            yield self._forward.micro_batch(responses, piece)

    def _check_version(self, rollouts: pl.DataFrame) -> None:
        stale = rollouts.filter(pl.col("weights_version") != self.version)
        if self._together.total(len(stale)):
            versions = stale["weights_version"].unique().sort().to_list() or "others (on another rank)"
            raise SyncError(
                f"a batch for step {self.version + 1} was sampled with weights version {versions}, "
                f"and the learner is at {self.version}: a sync was skipped"
            )

    def _backward(
        self, responses: Responses, rows: np.ndarray
    ) -> tuple[Agreement, dict[str, Mean], tuple[float, float], float]:
        """Gradients of this rank's share, after its first micro-batch was compared with the sampler.

        Returns:
            How the sampler agrees (over all ranks), this rank's metrics, and how many log-probabilities of the learner
            and of the sampler are not finite (over all ranks), and this rank's arithmetic.
        """
        self._optimizer.forget_gradients()
        operations = 0.0
        means = loss_metrics(self.config, self.device)
        broken = self._nothing(2)
        measured = "old_logprobs" in responses.of_tokens
        found = self._verify(self._compared(responses, rows)) if measured or not len(rows) else None
        for batch in self._batches(responses, rows):
            with self._forward.attending(batch):
                inputs = self._inputs(batch)
                if found is None:
                    found = self._verify(compare(inputs.logprobs, batch.sampler_logprobs))
                loss, parts = objective(inputs, self.config)
                loss.backward()
            means = added(means, parts)
            operations += self._operations(batch)
            broken += torch.stack([(~each.isfinite()).sum() for each in (inputs.logprobs, batch.sampler_logprobs)])
        assert found is not None
        self._together.sum(broken)
        learner_broken, sampler_broken = broken.tolist()
        return found, means, (learner_broken, sampler_broken), operations

    def _compared(self, responses: Responses, rows: np.ndarray) -> torch.Tensor:
        """Compare with the sampler where no forward pass of a policy that just sampled follows."""
        if "old_logprobs" in responses.of_tokens:
            old = torch.tensor(responses.of_tokens["old_logprobs"].values, dtype=self._dtype)
            sampler = torch.tensor(responses.logprobs.values[responses.sampled], dtype=self._dtype)
            return compare(old.to(self.device), sampler.to(self.device))
        if not len(rows) and len(responses):
            # Nothing can change the update; stale weights must show all the same.
            batch = next(self._batches(responses, np.arange(1)))
            return compare(self._forward.logprobs(batch), batch.sampler_logprobs)
        # This rank's share is empty, and the others wait for it in the collective.
        return self._nothing(3, 0)

    def _inputs(self, batch: MicroBatch) -> ObjectiveInputs:
        entropy = self.config.entropy
        hidden = self._forward.hidden(batch)
        terms = self._forward.terms(
            hidden,
            batch,
            entropy=bool(entropy.coefficient) or entropy.measured,
            entropy_gradient=bool(entropy.coefficient),
        )
        reference = batch.measured.get("reference_logprobs")
        if self._reference is not None and reference is None and self.config.kl.place == "loss":
            reference = self._reference.logprobs(batch)
        return ObjectiveInputs(
            logprobs=terms.logprobs,
            sampler_logprobs=batch.sampler_logprobs,
            advantages=batch.advantages,
            weights=batch.weights,
            response=batch.response,
            responses=batch.responses,
            zero_variance=batch.zero_variance,
            entropy=terms.entropy,
            old_logprobs=batch.measured.get("old_logprobs"),
            reference_logprobs=reference,
            values=None if self.critic is None else self.critic(hidden),
            old_values=batch.measured.get("old_values"),
            returns=batch.measured.get("returns"),
        )

    def _operations(self, batch: MicroBatch) -> float:
        """Arithmetic of a forward and a backward pass; see ``rate.training_operations``."""
        if self._shape is None:
            return 0.0
        places = batch.position_ids
        if batch.attention_mask is not None:
            places = places[batch.attention_mask.bool()]
        keys = int((places + 1).sum())
        return training_operations(self._shape, tokens=places.numel(), predictions=len(batch.tokens), keys=keys)

    def _check_outcome(self, norm: float, loss: float, broken: tuple[float, float]) -> None:
        """Refuse a step whose numbers are not finite; these are sums over the ranks, so all refuse or none does."""
        step = self.version + 1
        check_finite(broken[0], step=step)
        if broken[1]:
            check_sync(BROKEN, self.config, step=step)
        if not math.isfinite(norm):
            raise DivergenceError(
                f"step {step} has a gradient that is not finite ({norm}): an advantage of the batch is not finite, "
                "or the policy has diverged; no update was made"
            )
        if not math.isfinite(loss):
            raise DivergenceError(
                f"step {step} has a loss that is not finite ({loss}): the policy has diverged; no update was made"
            )

    def _verify(self, compared: torch.Tensor) -> Agreement:
        """Compare with the sampler before any backward; all ranks fail together or none does."""
        step = self.version + 1
        found = agreement(compared, step=step, largest=self._together.largest, total=self._together.sum)
        check_sync(found, self.config, step=step)
        return found

    def _nothing(self, *shape: int) -> torch.Tensor:
        return torch.zeros(*shape, dtype=torch.float64, device=self.device)

    def state(self) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        """Return what a checkpoint must hold: tensors, the live ones and not copies, and plain values."""
        return tensors_of(self.policy, self.critic, self._optimizer), {"version": self.version}

    def load_state(self, tensors: dict[str, torch.Tensor], values: dict[str, Any]) -> None:
        """Continue from what ``state`` returned, which is copied.

        Args:
            tensors: The tensors of the policy, the critic and the optimizer by their names in the state.
            values: The plain values of the state.

        Raises:
            LearnerError: It is the state of another model.
        """
        take_over(tensors, self.policy, self.critic, self._optimizer, model=self.model)
        self.version = int(values["version"])


def _alone(tensor: torch.Tensor) -> None:
    """Combine over one rank."""
    del tensor
