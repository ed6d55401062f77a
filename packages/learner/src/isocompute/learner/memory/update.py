"""The memory of an update: traces the learner's own passes with fake tensors, which have shapes but no numbers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from multiprocessing import get_context
from types import SimpleNamespace
from typing import Any
from weakref import WeakValueDictionary, finalize

import numpy as np
import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import AttentionInterface, AttentionMaskInterface, AutoConfig, AutoModelForCausalLM

from ..batch.responses import OF_TOKENS, Lists, Responses
from ..config import ATTENDED, AdapterConfig, LearnerConfig
from ..contract.settings import Count, settings
from ..errors import LearnerError
from ..objective.loss import objective
from ..policy.adapter import adapt
from ..policy.attention import packed_attention, packed_mask
from ..policy.forward import Forward
from ..policy.loading import Sharding, own, shard
from ..updates.adam import Optimizer
from ..updates.learner import Models, inputs_of, models_of, refers

PACKED = "isocompute_traced"
"""Name of packed attention whose mask is computed outside the fake mode, since it depends on numbers."""
COLLECTIVE = ("fsdp", "c10d", "_c10d_functional")
"""Namespaces of the operations by which ranks gather and scatter weights."""
GIB, MIB = 2**30, 2**20
DEVICE = "cpu"
PASSES = 2
"""Micro-batches after which each further one takes as much memory as the last."""


@settings(LearnerError)
class Load:
    """A rank's share of an update; all prompts have one length, and all responses have one length."""

    prompt_tokens: Count
    """Tokens of a prompt."""
    response_tokens: Count
    """Tokens of a response; use the longest one for an upper bound on the memory."""
    rollouts_per_problem: Count
    """n, responses to a prompt."""
    problems: Count
    """Problems in the rank's share."""

    def responses(self, config: LearnerConfig) -> Responses:
        """Make as many responses as ``PASSES`` micro-batches can hold, with the measurements from before an update."""
        whole = self.prompt_tokens + self.response_tokens - 1
        most = PASSES * (ATTENDED * config.compute.micro_batch_tokens // whole + 1)
        count = min(most, self.problems * self.rollouts_per_problem)
        prompts, numbers = _zeros(count, self.prompt_tokens, int), _zeros(count, self.response_tokens, float)
        measured = ["old_logprobs"] if config.measures_first else []
        measured += ["reference_logprobs"] if config.measures_first and config.kl.coefficient else []
        measured += ["old_values", "returns"] if config.objective.resolved.baseline == "gae" else []
        return Responses(
            prompts=prompts,
            responses=_zeros(count, self.response_tokens, int),
            sampled=np.ones(count * self.response_tokens, dtype=bool),
            counts=numbers.lengths,
            logprobs=numbers,
            shares_prompt=np.arange(count) % self.rollouts_per_problem > 0,
            of_rows={name: np.ones(count) for name in ("advantage", "loss_weight", "zero_variance")},
            of_tokens={name: numbers for name in OF_TOKENS if name in measured},
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateMemory:
    """Peak memory of a rank in an update after the first (bytes).

    Attributes:
        parameters: Number of parameters of the policy, over all ranks.
        ranks: Ranks that share the policy; 1 if each has all of it.
        weights: The rank's share of the policy, adapter included, and the critic.
        reference: The rank's share of the base model as the reference of a KL; 0 without a KL, or if the reference is
            the model beneath an adapter.
        gradients: Gradients that exist at the peak.
        temporary: Activations, gathered or cast weights, gradients in transit, logits, the micro-batch.
    """

    parameters: int
    ranks: int
    weights: int
    reference: int
    moments: int
    gradients: int
    temporary: int

    @property
    def peak(self) -> int:
        """Total memory at the peak (bytes)."""
        return self.weights + self.reference + self.moments + self.gradients + self.temporary

    def __str__(self) -> str:
        rows = {
            "weights": self.weights,
            "base model": self.reference,
            "moments of AdamW": self.moments,
            "gradients": self.gradients,
            "activations and temporaries": self.temporary,
        }
        name, unit = ("GiB", GIB) if self.peak >= GIB else ("MiB", MIB)
        lines = [(row, size) for row, size in rows.items() if size] + [("in all", self.peak)]
        return "\n".join(f"{row:<40}{size / unit:>9.2f} {name}" for row, size in lines)


def update_memory(model: Mapping[str, Any], config: LearnerConfig, load: Load, *, ranks: int = 1) -> UpdateMemory:
    """Trace the learner's own passes of an update with fake tensors, which have shapes but no numbers.

    The trace runs on a CPU and counts what torch allocates for the policy, the reference, the critic and the optimizer.
    Where several ranks share them, the other ranks are simulated. Not counted: memory that allocators keep or fragment,
    workspaces of libraries, the process and its code, rollouts in main memory, and the per-head copies of shared keys
    and values that a GPU makes in float32. It takes seconds for a model of billions of parameters. With layout ``auto``
    a model counts as packable unless it proves otherwise as it runs.
    """
    parameters, known = parameters_of(model), AutoConfig.for_model(**model)
    shared = ranks if config.compute.sharding == "auto" else 1
    if shared > 1 and dist.is_initialized():
        # A process has only one world of ranks, and this process already has its own.
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as apart:
            return apart.submit(update_memory, dict(model), config, load, ranks=ranks).result()
    with pretended(shared) as group:
        if config.compute.layout == "auto":
            with suppress(LearnerError):
                return _trace(known, config, load, group, parameters, packs=True)
        return _trace(known, config, load, group, parameters, packs=config.compute.layout == "packed")


def parameters_of(model: Mapping[str, Any]) -> int:
    """Number of a model's parameters; tied ones count once."""
    try:
        with torch.device("meta"):
            built = AutoModelForCausalLM.from_config(AutoConfig.for_model(**model))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise LearnerError(
            f"the model's configuration is not that of a causal language model of transformers ({error}): memory is "
            "not predicted"
        ) from error
    return sum(p.numel() for p in built.parameters())


def _trace(
    model: Any, config: LearnerConfig, load: Load, group: dist.ProcessGroup | None, parameters: int, *, packs: bool
) -> UpdateMemory:
    sharding: Any = None
    if group is not None:
        # As in ``load_models``. The mesh is made outside the fake mode, since its ranks are compared by their numbers.
        lower = torch.bfloat16 if config.compute.precision == "bfloat16" else None
        head = None if config.compute.float32_head else lower
        made = Sharding(ranks=group, device=DEVICE, activations=lower, head=head)
        sharding = SimpleNamespace(mesh=made.mesh, activations=lower, head=head)
    responses = load.responses(config)
    with FakeTensorMode(allow_non_fake_inputs=True), Peak() as peak:
        models = _models(model, config, sharding, packs=packs)
        optimizer = Optimizer(models.policy, models.critic, config)
        peak.watch([*models.policy.parameters(), *models.policy.buffers()])
        # The first step creates the moments.
        for parameter in optimizer.parameters:
            parameter.grad = torch.zeros_like(parameter)
        optimizer.step(1)
        optimizer.forget_gradients()
        peak.start(optimizer.parameters)
        _passes(models, config, responses)
        weights = size_of({*models.policy.parameters(), *optimizer.parameters})
        base = None if models.reference is None else models.reference.policy
        reference = 0 if base in (None, models.policy) else size_of(base.parameters())
        moments = size_of(optimizer.state().values())
    return UpdateMemory(
        parameters=parameters,
        ranks=1 if group is None else group.size(),
        weights=weights,
        reference=reference,
        moments=moments,
        gradients=peak.gradients,
        temporary=peak.bytes - weights - reference - moments - peak.gradients,
    )


def _models(model: Any, config: LearnerConfig, sharding: Any, *, packs: bool) -> Models:
    """Build the models as ``load_models`` does, without files and without probing the model with numbers."""
    compute = config.compute
    lower = torch.bfloat16 if compute.precision == "bfloat16" else torch.float32

    def run(dtype: torch.dtype, *, learns: bool, adapter: AdapterConfig | None = None) -> Forward:
        policy = AutoModelForCausalLM.from_config(model, dtype=dtype).eval().requires_grad_(learns)
        policy = policy if adapter is None else adapt(policy, adapter)
        policy = policy if sharding is None else shard(policy, sharding)
        like: Any = SimpleNamespace(packs=packs, _window=None)
        forward = Forward(policy, compute, temperature=config.temperature, device=DEVICE, like=like)
        if packs:
            policy.set_attn_implementation(PACKED)
        return forward

    forward = run(torch.float32 if config.adapter is None else lower, learns=True, adapter=config.adapter)
    return models_of(forward, config, lambda: run(lower, learns=False), device=DEVICE, dtype=torch.float32)


def _passes(models: Models, config: LearnerConfig, responses: Responses) -> None:
    """Run forward and backward passes of the first micro-batches, as ``Learner`` does."""
    forward = models.forward
    for piece in islice(forward.pieces(responses, np.arange(len(responses))), PASSES):
        batch = forward.micro_batch(responses, piece)
        with forward.attending(batch):
            inputs = inputs_of(models, batch, config.entropy, with_reference=refers(models, config, responses))
            loss, _ = objective(inputs, config)
            loss.backward()


def _zeros(count: int, length: int, kind: type) -> Lists:
    return Lists(offsets=np.arange(count + 1) * length, values=np.zeros(count * length, dtype=kind))


@contextmanager
def pretended(ranks: int) -> Iterator[dist.ProcessGroup | None]:
    """Make a process group whose other ranks do not exist: collectives send nothing and return. None for one rank."""
    if ranks == 1:
        yield None
        return
    store = dist.PrefixStore("isocompute", FakeStore())
    dist.init_process_group("fake", store=store, rank=0, world_size=ranks)
    try:
        yield dist.group.WORLD
    finally:
        dist.destroy_process_group()


class Peak(TorchDispatchMode):  # type: ignore[misc]
    """Bytes of live storages: the peak since ``start``, and the part of the peak that was gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = self.gradients = 0
        self._alive: WeakValueDictionary[int, Any] = WeakValueDictionary()
        self._sizes: dict[int, int] = {}
        self._now = 0
        self._parameters: list[torch.nn.Parameter] = []

    def start(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        """Reset the peak, and count the gradients of these parameters separately."""
        self.bytes, self._parameters = 0, list(parameters)

    def watch(self, tensors: Any) -> None:
        """Count the storages of tensors from now on, while they are alive."""
        for tensor in tree_leaves(tensors):
            if isinstance(tensor, torch.Tensor):
                self._add(own(tensor).untyped_storage())

    def _add(self, storage: Any) -> None:
        key = storage._cdata
        if key not in self._sizes:
            self._alive[key], self._sizes[key] = storage, storage.nbytes()
            self._now += self._sizes[key]
            finalize(storage, self._drop, key).atexit = False

    def _drop(self, key: int) -> None:
        self._now -= self._sizes.pop(key)

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = function(*args, **(kwargs or {}))
        self.watch(made)
        if function.namespace in COLLECTIVE or self._now > self.bytes:
            # Read the current sizes: FSDP empties and fills storages in place.
            for key, storage in list(self._alive.items()):
                self._now += storage.nbytes() - self._sizes[key]
                self._sizes[key] = storage.nbytes()
        if self._now > self.bytes:
            self.bytes = self._now
            self.gradients = size_of(p.grad for p in self._parameters if p.grad is not None)
        return made


def size_of(tensors: Iterable[torch.Tensor]) -> int:
    """Bytes of this rank's shares of tensors."""
    return sum(own(tensor).nbytes for tensor in tensors)


def _mask(**requested: Any) -> torch.Tensor | None:
    """See ``attention.packed_mask``: it finds the visible keys with real numbers, so the fake mode is off meanwhile."""
    with unset_fake_temporarily():
        return packed_mask(**{**requested, "device": "cpu"})


AttentionInterface.register(PACKED, packed_attention)
AttentionMaskInterface.register(PACKED, _mask)
