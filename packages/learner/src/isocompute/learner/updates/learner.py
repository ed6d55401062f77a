"""One rank of the learner: it holds a policy and its optimizer, and turns rollouts into an update."""

from __future__ import annotations

import gc
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
import torch.distributed as dist

from ..batch.micro import MicroBatch
from ..batch.responses import Responses, read
from ..batch.splitting import Piece
from ..config import LearnerConfig
from ..cost.rate import matmul_rate, shape_of
from ..errors import LearnerError
from ..objective.loss import CLIPPED, ObjectiveInputs, loss_metrics, objective
from ..objective.prepare import sampled_counts
from ..objective.ragged import Ragged, listed
from ..policy.critic import ValueHead
from ..policy.sharding import is_sharded
from ..policy.weights import WholeTensors, vocabulary, weights
from ..records.metrics import Mean, added, reduced, with_zeros
from ..records.updates import Agreement, Average, UpdateReport
from .adam import Optimizer
from .collective import Collective
from .models import load_models
from .passes import inputs_of, measured, operations_of, passes
from .refusals import check_outcome, check_prepared, check_versions
from .skipping import skipped
from .state import make_ready, take_over, tensors_of
from .sync import agreement, check_sync, compare


class Learner:
    """A policy, its AdamW state, and the base model or a critic where the settings need them.

    With a process group, each rank is given its share of the batch (which may be empty) and all ranks take the same
    update: a gradient is a weighted sum over tokens, and sums add up. The ranks share the policy, too, unless
    ``compute.sharding`` is ``none``; where they do, every method is called on all of them. Tokens are those that the
    policy sampled (column ``sampled``).

    Args:
        ranks: The learners that take every update together, or None for this one alone.

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
        self._ranks, self._together = ranks, Collective(ranks, device)
        self._load(config)

    def reset(self, config: LearnerConfig) -> None:
        """Go back to the base model's weights, a fresh optimizer and version 0.

        Where that fails the learner has no model until it is reset again.
        """
        # The base model is read again, so that no copy of it is held; what there was is freed first.
        for name in ("_models", "_optimizer"):
            self.__dict__.pop(name, None)
        # A policy that is shared out refers to itself in a circle.
        gc.collect()
        self._load(config)

    @property
    def policy(self) -> torch.nn.Module:
        """The policy.

        Raises:
            LearnerError: There is none, because the last reset failed.
        """
        if "_models" not in self.__dict__:
            raise LearnerError("the learner has no model, because its last reset failed; call reset() again")
        return self._models.policy

    @property
    def critic(self) -> ValueHead | None:
        """The critic; None without one."""
        return self._models.critic

    def _load(self, config: LearnerConfig) -> None:
        self.config, self.version = config, 0
        self._models = load_models(self.model, config, device=self.device, ranks=self._ranks, dtype=self._dtype)
        self._forward = self._models.forward
        self._rate = matmul_rate(self.device, self._forward.dtype)
        self._optimizer = Optimizer(self.policy, self.critic, config, total=self._together.total)
        self._shape = shape_of(self.policy)

    def weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        """The policy's tensors by their Hugging Face names, one at a time, an adapter merged; see ``policy.weights``.

        Ranks that share the policy must all take all of them, before the next update.
        """
        yield from weights(self.policy).items()

    def agreement(self, rollouts: pl.DataFrame) -> Agreement:
        """How far the sampler's log-probabilities are from this rank's, over all responses.

        Args:
            rollouts: Responses, on ranks that share the policy the same on each.

        Raises:
            DivergenceError: A log-probability of the learner's own is not finite.
            LearnerError: There is no response token to compare.
        """
        responses = self._read(rollouts)
        batches = self._passes(responses, np.arange(len(responses)))
        compared = [compare(self._forward.logprobs(batch), batch.sampler_logprobs) for _, batch in batches]
        if not compared:
            raise LearnerError("the rollouts have no response token whose log-probability could be compared")
        joined = torch.cat(compared, dim=1)
        return agreement(joined, step=self.version + 1, largest=_alone, total=_alone)

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
        check_versions(rollouts, self.version, self._together.total)
        responses = self._read(rollouts)
        used = ~self._left_out(responses) if "advantage" in rollouts.columns else np.ones(len(responses), dtype=bool)
        names = ["old_logprobs", *(["reference_logprobs"] if self._models.reference is not None else [])]
        names += ["values"] if self.critic is not None else []
        found = {name: np.zeros(responses.counts.sum()) for name in names}
        # Nothing reads those of a response that is left out of the update, too.
        found["old_logprobs"] += responses.logprobs.values[responses.sampled]
        compared = [self._nothing(3, 0)]
        for piece, batch in self._passes(responses, np.flatnonzero(used)):
            numbers = measured(self._models, batch)
            if piece is None:
                continue
            tokens = responses.tokens_of(piece.rows)
            compared.append(compare(numbers["old_logprobs"], batch.sampler_logprobs))
            for name, values in numbers.items():
                found[name][tokens] = values.double().cpu().numpy()
        self._verify(torch.cat(compared, dim=1))
        lengths = sampled_counts(rollouts)
        return rollouts.with_columns(
            listed(name, Ragged(values=values, lengths=lengths)) for name, values in found.items()
        )

    def update(self, batch: pl.DataFrame, /, *, advance: bool = True) -> UpdateReport:
        """Take one optimizer step; none where that would change no weight, as of a first batch of equal rewards.

        Args:
            batch: This rank's share of an update's responses, with the columns of ``objective.prepare``.
            advance: Whether the version of the weights is counted up, if they change: with the last optimizer step of
                a batch.

        Returns:
            What the step did, over the shares of all ranks.

        Raises:
            SyncError: The responses were sampled with other weights than the learner's. The policy is as it was.
            DivergenceError: The gradient, the loss or a log-probability of the learner's own is not finite. The
                policy is as it was.
            LearnerError: No rank has a response token, the batch was not prepared, or it does not fit the model. The
                policy is as it was.
        """
        check_versions(batch, self.version, self._together.total)
        check_prepared(batch, step=self.version + 1)
        responses = self._read(batch)
        left_out = self._left_out(responses)
        own = responses.counts.sum(), responses.counts[~left_out].sum(), left_out.sum(), len(responses)
        tokens, passed, *counted = (int(self._together.total(int(count))) for count in own)
        if not tokens:
            raise LearnerError(f"step {self.version + 1} has no response token to learn from")
        found, means, broken, operations = self._backward(responses, np.flatnonzero(~left_out))
        self._together.gradients(self._optimizer.parameters)
        norm = self._optimizer.clip()
        # A token that was skipped has no advantage, so that no bound takes a gradient from it.
        means = with_zeros(reduced(means, self._together.sum), CLIPPED, tokens - passed)
        check_outcome(norm, means["loss"].value, broken, self.config, step=self.version + 1)
        steps = 0 if self._optimizer.idle(norm) else 1
        rate = self._optimizer.step(self.version + 1) if steps else 0.0
        self._optimizer.forget_gradients()
        self.version += advance and steps
        return UpdateReport(
            objective={name: Average.of(mean) for name, mean in means.items()},
            gradient_norm=norm,
            learning_rate=rate,
            sync_error=found.maximum,
            sync_mean=found.mean,
            sync_k3=found.k3,
            sync_quantile=found.quantile,
            optimizer_steps=steps,
            trained_tokens=tokens,
            passed_tokens=passed,
            skipped=Average(total=counted[0], count=counted[1]),
            operations=self._together.total(operations),
            machine_rate=self._together.total(self._rate),
        )

    def _read(self, rollouts: pl.DataFrame) -> Responses:
        return read(rollouts, vocabulary=vocabulary(self.policy))

    def _passes(
        self, responses: Responses, rows: np.ndarray, *, least: int = 0
    ) -> Iterator[tuple[Piece | None, MicroBatch]]:
        return passes(self._forward, responses, rows, most=self._together.most, least=least)

    def _backward(
        self, responses: Responses, rows: np.ndarray
    ) -> tuple[Agreement, dict[str, Mean], tuple[float, float], float]:
        """Gradients of this rank's share, after its first micro-batch was compared with the sampler.

        Returns:
            How the sampler agrees (over all ranks), this rank's metrics, and how many log-probabilities of the learner
            and of the sampler are not finite (over all ranks), and this rank's arithmetic.
        """
        self._optimizer.forget_gradients()
        operations, found = 0.0, None
        means = loss_metrics(self.config, self.device)
        broken = self._nothing(2)
        # Of the columns, which all shares have: ranks that share the reference run it together.
        refers = self._models.reference is not None and self.config.kl.place == "loss"
        refers = refers and "reference_logprobs" not in responses.of_tokens
        for piece, batch in self._passes(responses, rows, least=1):
            with self._forward.attending(batch):
                inputs = inputs_of(self._models, batch, self.config.entropy, with_reference=refers)
                if found is None:
                    found = self._verify(self._compared(responses, rows, inputs))
                if piece is None:
                    if is_sharded(self.policy):
                        # The others wait for this rank's part of each sum.
                        (inputs.logprobs.sum() * 0).backward()
                    continue
                loss, parts = objective(inputs, self.config)
                loss.backward()
            means = added(means, parts)
            operations += operations_of(self._shape, batch, with_reference=refers)
            broken += torch.stack([(~each.isfinite()).sum() for each in (inputs.logprobs, inputs.sampler_logprobs)])
        assert found is not None
        self._together.sum(broken)
        learner_broken, sampler_broken = broken.tolist()
        return found, means, (learner_broken, sampler_broken), operations

    def _compared(self, responses: Responses, rows: np.ndarray, first: ObjectiveInputs) -> torch.Tensor:
        """Compare the sampler with the policy that it sampled from.

        Args:
            first: The first pass: of some of these, or, so that stale weights show all the same, of a response that
                cannot change the update.
        """
        if len(rows) and "old_logprobs" in responses.of_tokens:
            # Updates of the same batch may have come before this one.
            tokens = responses.tokens_of(rows)
            old = torch.tensor(responses.of_tokens["old_logprobs"].values[tokens], dtype=self._dtype)
            sampler = torch.tensor(responses.logprobs.values[responses.sampled][tokens], dtype=self._dtype)
            return compare(old.to(self.device), sampler.to(self.device))
        # A response that was made up was not sampled.
        return compare(first.logprobs, first.sampler_logprobs) if len(responses) else self._nothing(3, 0)

    def _left_out(self, responses: Responses) -> np.ndarray:
        """Which responses cannot change the update, so that they do not pass through the model."""
        return skipped(responses.of_rows["advantage"], responses.of_rows["zero_variance"], self.config)

    def _verify(self, compared: torch.Tensor) -> Agreement:
        """Compare with the sampler before any backward; all ranks fail together or none does."""
        step = self.version + 1
        found = agreement(compared, step=step, largest=self._together.largest, total=self._together.sum)
        check_sync(found, self.config, step=step)
        return found

    def _nothing(self, *shape: int) -> torch.Tensor:
        return torch.zeros(*shape, dtype=torch.float64, device=self.device)

    def state(self) -> tuple[WholeTensors, dict[str, Any]]:
        """Return what a checkpoint must hold: tensors, to be read before the next update, and plain values.

        Tensors are the live ones and not copies; those that ranks share are gathered one at a time, as they are read.
        With an adapter it is the policy's only part here, since the model beneath it is the base model.
        """
        return tensors_of(self.policy, self.critic, self._optimizer), {"version": self.version}

    def load_state(self, tensors: Mapping[str, torch.Tensor], values: dict[str, Any]) -> None:
        """Continue from what ``state`` returned, which is copied.

        Args:
            tensors: The tensors of the policy, the critic and the optimizer by their names in the state.

        Raises:
            LearnerError: It is the state of another model. Nothing is taken over where the names show it; where a shape
                does, the learner must be reset.
        """
        self.expect(list(tensors))
        self.take(tensors)
        self.version = int(values["version"])

    def expect(self, names: Collection[str]) -> None:
        """Make ready to ``take`` a state in parts, of which these are all names.

        Raises:
            LearnerError: It is the state of another model.
        """
        make_ready(names, self.policy, self.critic, self._optimizer, model=self.model)

    def take(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Take over a part of a state, which is copied.

        Raises:
            LearnerError: It is the state of another model.
        """
        take_over(tensors, self.policy, self.critic, self._optimizer, model=self.model)


def _alone(tensor: torch.Tensor) -> None:
    """Combine over one rank."""
    del tensor
