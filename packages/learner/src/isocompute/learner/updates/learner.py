"""One rank of the learner: it holds a policy and its optimizer, and turns rollouts into updates.

Its state is read by name, as whole tensors one at a time, so that a different number of ranks can continue from it.
With an adapter the state is the adapter alone, since the model beneath is the base model.
"""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from ..batch.packing import MicroBatch, Piece
from ..batch.responses import Lists, Responses, check_columns, last_version, read
from ..config import AdapterConfig, EntropyConfig, LearnerConfig
from ..cost.rate import Shape, forward_operations, matmul_rate, shape_of, training_operations
from ..errors import DivergenceError, LearnerError, SyncError
from ..objective.advantages import listed
from ..objective.loss import CLIPPED, ObjectiveInputs, loss_metrics, objective
from ..objective.prepare import sampled_counts
from ..policy.forward import Forward, probe
from ..policy.head import ValueHead
from ..policy.loading import (
    Sharding,
    WholeTensors,
    base_hash,
    copy_into,
    is_sharded,
    learnt,
    load_policy,
    vocabulary,
    weights,
)
from ..records.steps import Agreement, Mean, UpdateReport, added, reduced, with_zeros
from .adam import CRITIC, POLICY, Optimizer
from .sync import BROKEN, agreement, check_finite, check_sync, compare


class Learner:
    """A policy, its AdamW state, and the base model or a critic if the settings need them.

    With a process group, each rank gets its share of the batch (which may be empty) and all ranks take the same update:
    a gradient is a weighted sum over tokens, and sums add up. The ranks also share the policy unless
    ``compute.sharding`` is ``none``; every method must then be called on all of them. Tokens are those that the policy
    sampled (column ``sampled``).
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

        If that fails, the learner has no model until it is reset again.
        """
        # The base model is read again instead of holding a copy; the old models are freed first.
        for name in ("_models", "_optimizer"):
            self.__dict__.pop(name, None)
        # A sharded policy contains reference cycles.
        gc.collect()
        self._load(config)

    @property
    def policy(self) -> torch.nn.Module:
        """The policy."""
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
        self.base = base_hash(self.model, self.policy)
        self._forward = self._models.forward
        self._rate = matmul_rate(self.device, self._forward.dtype)
        self._optimizer = Optimizer(self.policy, self.critic, config, total=self._together.total)
        self._shape = shape_of(self.policy)

    def weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        """The policy's tensors, one at a time, valid until the next update; see ``loading.weights``."""
        yield from weights(self.policy).items()

    def agreement(self, rollouts: pl.DataFrame) -> Agreement:
        """Compare the sampler with this rank; ranks that share a policy must all get the same responses."""
        responses = self._read(rollouts)
        batches = self._passes(responses, np.arange(len(responses)))
        compared = [compare(self._forward.logprobs(batch), batch.sampler_logprobs) for _, batch in batches]
        if not compared:
            raise LearnerError("the rollouts have no response token whose log-probability could be compared")
        joined = torch.cat(compared, dim=1)
        return agreement(joined, step=self.version + 1, largest=ALONE.largest, total=ALONE.sum)

    def measure(self, rollouts: pl.DataFrame) -> pl.DataFrame:
        """Pass responses through the model without learning from them; see ``protocols.Updater``."""
        check_versions(rollouts, self.version, self._together.total, lag=self.config.pipeline.lag)
        responses = self._read(rollouts)
        used = ~self._left_out(responses) if "advantage" in rollouts.columns else np.ones(len(responses), dtype=bool)
        names = ["old_logprobs", *(["reference_logprobs"] if self._models.reference is not None else [])]
        names += ["values"] if self.critic is not None else []
        found = {name: np.zeros(responses.counts.sum()) for name in names}
        # Responses that are left out of the update keep the sampler's values, which nothing reads.
        found["old_logprobs"] += responses.logprobs.values[responses.sampled]
        compared = [self._nothing(3, 0)]
        for piece, batch in self._passes(responses, np.flatnonzero(used), least=int(not used.any())):
            with torch.no_grad(), self._forward.attending(batch):
                hidden, terms = self._forward.run(batch)
                numbers = {"old_logprobs": terms.logprobs}
                if self.critic is not None:
                    numbers["values"] = self.critic(hidden)
            if self._models.reference is not None:
                numbers["reference_logprobs"] = self._models.reference.logprobs(batch)
            if len(responses):
                compared.append(compare(terms.logprobs, batch.sampler_logprobs))
            if piece is None:
                continue
            tokens = responses.tokens_of(piece.rows)
            for name, values in numbers.items():
                found[name][tokens] = values.double().cpu().numpy()
        self._verify(torch.cat(compared, dim=1))
        lengths = sampled_counts(rollouts)
        return rollouts.with_columns(listed(name, Lists.of(values, lengths)) for name, values in found.items())

    def update(self, batch: pl.DataFrame, /, *, advance: bool = True) -> UpdateReport:
        """Take one optimizer step, or none if no weight would change, as in a first batch with equal rewards.

        The batch is this rank's share. If an error is raised, the policy is unchanged; see ``protocols.Updater``.
        """
        check_versions(batch, self.version, self._together.total, lag=self.config.pipeline.lag)
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
        # A skipped token has no advantage, so no bound removes its gradient.
        means = with_zeros(reduced(means, self._together.sum), CLIPPED, tokens - passed)
        check_outcome(norm, means["loss"].value, broken, self.config, step=self.version + 1)
        steps = 0 if self._optimizer.idle(norm) else 1
        rate = self._optimizer.step(self.version + 1) if steps else 0.0
        self._optimizer.forget_gradients()
        self.version += advance and steps
        return UpdateReport(
            objective={name: mean.plain() for name, mean in means.items()},
            gradient_norm=norm,
            learning_rate=rate,
            optimizer_steps=steps,
            trained_tokens=tokens,
            passed_tokens=passed,
            skipped=Mean(total=counted[0], count=counted[1]),
            operations=self._together.total(operations),
            machine_rate=self._together.total(self._rate),
        ).probed(found)

    def _read(self, rollouts: pl.DataFrame) -> Responses:
        return read(rollouts, vocabulary=vocabulary(self.policy))

    def _passes(
        self, responses: Responses, rows: np.ndarray, *, least: int = 0
    ) -> Iterator[tuple[Piece | None, MicroBatch]]:
        """Cut rows into micro-batches; dummy passes (None) give all ranks the same number of passes."""
        pieces = list(self._forward.pieces(responses, rows))
        count = self._together.most(len(pieces)) if is_sharded(self.policy) else len(pieces)
        for piece in pieces:
            yield piece, self._forward.micro_batch(responses, piece)
        for _ in range(max(least, count) - len(pieces)):
            # The first response, or a made-up one.
            given = responses if len(responses) else probe(vocabulary(self.policy))[0]
            yield None, self._forward.micro_batch(given, next(self._forward.pieces(given, np.arange(1))))

    def _backward(
        self, responses: Responses, rows: np.ndarray
    ) -> tuple[Agreement, dict[str, Mean], tuple[float, float], float]:
        """Compute gradients of this rank's share, after comparing its first micro-batch with the sampler.

        Returns the agreement with the sampler, over all ranks; this rank's metrics; the numbers of learner and sampler
        log-probabilities that are not finite, over all ranks; and this rank's FLOPs.
        """
        self._optimizer.forget_gradients()
        operations, found = 0.0, None
        means = loss_metrics(self.config, self.device)
        broken = self._nothing(2)
        with_reference = refers(self._models, self.config, responses)
        for piece, batch in self._passes(responses, rows, least=1):
            with self._forward.attending(batch):
                inputs = inputs_of(self._models, batch, self.config.entropy, with_reference=with_reference)
                if found is None:
                    found = self._verify(self._compared(responses, rows, inputs))
                if piece is None:
                    if is_sharded(self.policy):
                        # The other ranks wait for this rank's part of each sum.
                        (inputs.logprobs.sum() * 0).backward()
                    continue
                loss, parts = objective(inputs, self.config)
                loss.backward()
            means = added(means, parts)
            operations += operations_of(self._shape, batch, with_reference=with_reference)
            broken += torch.stack([(~each.isfinite()).sum() for each in (inputs.logprobs, inputs.sampler_logprobs)])
        assert found is not None
        self._together.sum(broken)
        learner_broken, sampler_broken = broken.tolist()
        return found, means, (learner_broken, sampler_broken), operations

    def _compared(self, responses: Responses, rows: np.ndarray, first: ObjectiveInputs) -> torch.Tensor:
        """Compare the sampler with the policy that it sampled from.

        The first pass is of some of these responses. If none can change the update, it is of one that cannot, so that
        stale weights are still noticed.
        """
        if "old_logprobs" in responses.of_tokens:
            # Earlier updates of the same batch may have changed the policy, and this one may have nothing left to
            # learn.
            tokens = responses.tokens_of(rows)
            old = torch.tensor(responses.of_tokens["old_logprobs"].values[tokens], dtype=self._dtype)
            sampler = torch.tensor(responses.logprobs.values[responses.sampled][tokens], dtype=self._dtype)
            return compare(old.to(self.device), sampler.to(self.device))
        # A made-up response was not sampled.
        return compare(first.logprobs, first.sampler_logprobs) if len(responses) else self._nothing(3, 0)

    def _left_out(self, responses: Responses) -> np.ndarray:
        return skipped(responses.of_rows["advantage"], responses.of_rows["zero_variance"], self.config)

    def _verify(self, compared: torch.Tensor) -> Agreement:
        """Check the sync before any backward pass; with a lag, a probe verifies each push of weights instead."""
        step = self.version + 1
        found = agreement(compared, step=step, largest=self._together.largest, total=self._together.sum)
        if not self.config.pipeline.lag:
            check_sync(found, self.config, step=step)
        return found

    def _nothing(self, *shape: int) -> torch.Tensor:
        return torch.zeros(*shape, dtype=torch.float64, device=self.device)

    def state(self) -> tuple[WholeTensors, dict[str, Any]]:
        """Return the state for a checkpoint: live tensors, to be read before the next update, and plain values.

        Sharded tensors are gathered one at a time, as they are read.
        """
        tensors = WholeTensors(self._weights() | self._optimizer.state())
        return tensors, state_values(self.model, self.base, self.version)

    def load_state(self, tensors: Mapping[str, torch.Tensor], values: dict[str, Any]) -> None:
        """Continue from a copy of what ``state`` returned; see ``protocols.Updater``.

        If names or base model differ, nothing is loaded; if a shape differs, the learner must be reset.
        """
        check_base(values, model=self.model, base=self.base)
        self.expect(list(tensors), int(values["version"]))
        self.take(tensors)

    def expect(self, names: Collection[str], version: int) -> None:
        """Prepare to ``take`` a state in parts; ``names`` are all of its tensors. The current moments are dropped."""
        if {name for name in names if not name.startswith("optimizer.")} != self._weights().keys():
            raise LearnerError(
                f"the state to continue from is not one of the model {self.model} with this adapter or none"
            )
        self._optimizer.check(names)
        self._optimizer.forget()
        self.version = version

    def take(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Copy a part of a state, one tensor at a time."""
        mine = self._weights()
        for name in tensors:
            if name in mine:
                given = tensors[name]
                if given.shape != mine[name].shape:
                    raise LearnerError(
                        f"the state to continue from is not one of the model {self.model}: {name} has the shape "
                        f"{tuple(given.shape)}, and must have {tuple(mine[name].shape)}"
                    )
                copy_into(mine[name], given)
        self._optimizer.take(tensors)

    def _weights(self) -> dict[str, torch.Tensor]:
        """The live tensors of the policy and the critic, not copies, by their names in a state."""
        found = {f"{POLICY}.{name}": tensor for name, tensor in learnt(self.policy).items()}
        if self.critic is not None:
            found |= {f"{CRITIC}.{name}": tensor for name, tensor in self.critic.state_dict().items()}
        return found


class Collective:
    """The ranks of a process group, or a single learner (None).

    The process's default group is never used, since an engine in the same process has a group of its own.
    """

    def __init__(self, ranks: dist.ProcessGroup | None, device: str) -> None:
        self._ranks, self._device = ranks, device

    def sum(self, tensor: torch.Tensor) -> None:
        """Sum a tensor over the ranks, in place."""
        self._reduce(tensor, dist.ReduceOp.SUM)

    def largest(self, tensor: torch.Tensor) -> None:
        """Take the elementwise maximum over the ranks, in place."""
        self._reduce(tensor, dist.ReduceOp.MAX)

    def total(self, number: float) -> float:
        """Sum a number over the ranks."""
        if self._ranks is None:
            return number
        self.sum(tensor := torch.tensor(number, dtype=torch.float64, device=self._device))
        return float(tensor)

    def most(self, count: int) -> int:
        """The maximum of a count over the ranks."""
        self.largest(tensor := torch.tensor(count, device=self._device))
        return int(tensor)

    def gradients(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        """Sum gradients over the ranks, unless the backward pass has done so; a missing gradient counts as 0."""
        waiting = []
        for parameter in parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            if self._ranks is not None and not isinstance(parameter, DTensor):
                # In place and one by one: concatenating would copy them.
                waiting.append(dist.all_reduce(parameter.grad, group=self._ranks, async_op=True))
        for work in waiting:
            work.wait()

    def _reduce(self, tensor: torch.Tensor, operation: Any) -> None:
        if self._ranks is not None:
            dist.all_reduce(tensor, op=operation, group=self._ranks)


ALONE = Collective(None, "cpu")


@dataclass(frozen=True, slots=True, kw_only=True)
class Models:
    """The forward passes of the policy and of the base model of a KL, and the critic, which is whole on every rank.

    The base model is a separate model, or the one beneath the policy's adapter.
    """

    forward: Forward
    reference: Forward | None
    critic: ValueHead | None

    @property
    def policy(self) -> Any:
        """The policy."""
        return self.forward.policy


def load_models(
    model: str, config: LearnerConfig, *, device: str, ranks: dist.ProcessGroup | None, dtype: torch.dtype
) -> Models:
    """Load the models of a learner, or of all ranks that take every update together."""
    compute = config.compute
    lower = torch.bfloat16 if compute.precision == "bfloat16" and dtype == torch.float32 else None
    sharding = None
    if ranks is not None and ranks.size() > 1 and compute.sharding == "auto":
        head = None if compute.float32_head else lower
        sharding = Sharding(ranks=ranks, device=device, activations=lower, head=head)

    def run(
        dtype: torch.dtype,
        shared: Sharding | None,
        like: Forward | None,
        adapter: AdapterConfig | None = None,
        *,
        learns: bool = True,
    ) -> Forward:
        loaded = load_policy(model, device=device, dtype=dtype, sharding=shared, adapter=adapter)
        loaded = loaded if adapter is not None else loaded.requires_grad_(learns)
        return Forward(loaded, compute, temperature=config.temperature, device=device, like=like)

    tried = None
    if sharding is not None and torch.bfloat16 in (lower, dtype):
        # Probing runs in float32, and a sharded policy computes in a single type for good.
        tried = run(torch.float32, replace(sharding, activations=None, head=None), None)
        tried.policy = None
    # Weights that are not learnt may be rounded to the type of the computation.
    frozen = lower or dtype
    forward = run(dtype if config.adapter is None else frozen, sharding, tried, config.adapter)
    return models_of(forward, config, lambda: run(frozen, sharding, forward, learns=False), device=device, dtype=dtype)


def models_of(
    forward: Forward, config: LearnerConfig, base: Callable[[], Forward], *, device: str, dtype: torch.dtype
) -> Models:
    """Combine a policy with the reference (``base`` loads a base model) and the critic that the settings need."""
    reference, critic = None, None
    if config.kl.coefficient:
        reference = base() if config.adapter is None else forward.without_adapter()
    if config.objective.resolved.baseline == "gae":
        share = config.critic.coefficient if config.critic.through_policy else 0.0
        size = forward.policy.get_output_embeddings().weight.shape[1]
        critic = ValueHead(size, share=share, device=device, dtype=dtype)
    return Models(forward=forward, reference=reference, critic=critic)


def refers(models: Models, config: LearnerConfig, responses: Responses) -> bool:
    """Whether an update runs the reference; based on columns, which all ranks have, since they may run it together."""
    measured = "reference_logprobs" in responses.of_tokens
    return models.reference is not None and config.kl.place == "loss" and not measured


def inputs_of(models: Models, batch: MicroBatch, entropy: EntropyConfig, *, with_reference: bool) -> ObjectiveInputs:
    """Pass a micro-batch through policy and critic, with gradient, and through the reference unless it was measured."""
    reference = batch.measured.get("reference_logprobs")
    if with_reference and models.reference is not None:
        # First, since it may be the policy without its adapter, and its passes must not come between the other two.
        reference = models.reference.logprobs(batch)
    hidden, terms = models.forward.run(
        batch, entropy=bool(entropy.coefficient) or entropy.measured, entropy_gradient=bool(entropy.coefficient)
    )
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
        values=None if models.critic is None else models.critic(hidden),
        old_values=batch.measured.get("old_values"),
        returns=batch.measured.get("returns"),
    )


def operations_of(shape: Shape | None, batch: MicroBatch, *, with_reference: bool) -> float:
    """FLOPs of a forward and a backward pass, and of one of the reference; 0 if the model's shape is not known."""
    if shape is None:
        return 0.0
    passed = {"tokens": batch.passed, "predictions": len(batch.tokens), "keys": batch.keys}
    return training_operations(shape, **passed) + with_reference * forward_operations(shape, **passed)


ADVANTAGES = ("advantage", "advantages")
"""The columns with one advantage per response and with one per sampled token."""


def check_prepared(batch: pl.DataFrame, *, step: int) -> None:
    """Refuse responses without advantages or weights, from which silently nothing would be learnt."""
    for name, *others in (ADVANTAGES, ("loss_weight",)):
        if not {name, *others} & set(batch.columns):
            raise LearnerError(f"the batch of step {step} has no column {name}: prepare(rollouts, config) adds it")


def check_versions(rollouts: pl.DataFrame, version: int, total: Callable[[float], float], *, lag: int = 0) -> None:
    """Refuse responses of other weights than the learner's, or of older ones; all ranks refuse or none does.

    Args:
        total: Sums a number over the ranks.
        lag: Versions by which a response's first token may be older than the learner.
    """
    check_columns(rollouts, ("prompt_ids", "response_ids", "logprobs", "weights_version"))
    newest = last_version(rollouts)
    fits = pl.col("weights_version").ge(version - lag) & newest.le(version)
    stale = rollouts.filter(~fits.fill_null(value=False))
    if total(len(stale)):
        versions = stale["weights_version"].unique().sort().to_list() or "others (on another rank)"
        raise SyncError(
            f"a batch for step {version + 1} was sampled with weights version {versions}, and the learner is at "
            f"{version}: " + (f"they must be within {lag} versions before it" if lag else "a sync was skipped")
        )


def state_values(model: str, base: str, version: int) -> dict[str, Any]:
    """The plain values of a state; ``base`` is the hash of the base model's weights."""
    return {"version": version, "base": {"model": model, "weights": base}}


def check_base(values: Mapping[str, Any], *, model: str, base: str) -> None:
    """Refuse the state of a learner that began from another base model, even if nothing uses that model any more."""
    began = values.get("base")
    if began is None:
        raise LearnerError(
            "it names no base model, as where an earlier version wrote it: start the run in another folder"
        )
    if began["weights"] != base:
        raise LearnerError(
            f"its base model is {began['model']}, whose weights have the hash {began['weights']}, and the learner's is "
            f"{model}, with the hash {base}: continue over that one, or start the run in another folder"
        )


def check_outcome(norm: float, loss: float, broken: tuple[float, float], config: LearnerConfig, *, step: int) -> None:
    """Refuse a step with numbers that are not finite; ``broken`` counts log-probabilities of learner and sampler."""
    check_finite(broken[0], step=step)
    if broken[1]:
        check_sync(BROKEN, config, step=step)
    if not math.isfinite(norm):
        raise DivergenceError(
            f"step {step} has a gradient that is not finite ({norm}): an advantage of the batch is not finite, "
            "or the policy has diverged; no update was made"
        )
    if not math.isfinite(loss):
        raise DivergenceError(
            f"step {step} has a loss that is not finite ({loss}): the policy has diverged; no update was made"
        )


def skipped(advantage: np.ndarray, zero_variance: np.ndarray, config: LearnerConfig) -> np.ndarray:
    """Return which responses have neither an advantage nor a regulariser, so that only the normaliser counts them."""
    if config.objective.resolved.baseline == "gae" or config.entropy.measured:
        # A critic learns from every response, and a measured entropy covers all of them.
        return np.zeros(len(advantage), dtype=bool)
    left_out: np.ndarray = advantage == 0
    in_loss = bool(config.kl.coefficient) and config.kl.place == "loss"
    for active, masked in (
        (in_loss, config.kl.mask_zero_variance),
        (bool(config.entropy.coefficient), config.entropy.mask_zero_variance),
    ):
        if active:
            left_out = left_out & zero_variance.astype(bool) if masked else np.zeros(len(advantage), dtype=bool)
    return left_out
