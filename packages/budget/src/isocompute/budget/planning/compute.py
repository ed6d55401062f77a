"""The arithmetic of a budget: its split C = B_p · n · M, and rollouts as tokens, FLOPs, device time, memory and money.

A token that is prefilled or generated costs 2·N FLOPs, and a token trained on costs 6·N. N is the number of parameters
that a token passes through (in a mixture of experts, the active ones). Attention adds, for L layers of width d,
2·L·d·(b² − a²) for a causal pass over positions a to b, and three times that in training. If the engine caches a
group's prompt, its n responses share one prefill; the trainer is not assumed to share anything.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import inf, isfinite, sqrt
from operator import add, truediv
from typing import Literal

from ..errors import BudgetError, check_whole_fields, finite, plural, whole

Scaling = Literal["sqrt", "linear", "constant"]
"""The rule by which the learning rate grows with the batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """One way of spending a budget of C = B_p · n · M rollouts.

    ``Allocation(problems_per_batch=8, rollouts_per_problem=4, update_steps=768)`` generates batches of 32 rollouts,
    24,576 rollouts in all.

    Attributes:
        problems_per_batch: B_p, problems sampled at every step.
        rollouts_per_problem: n, responses sampled for each of them.
        update_steps: M, steps taken.
    """

    problems_per_batch: int
    rollouts_per_problem: int
    update_steps: int

    def __post_init__(self) -> None:
        check_whole_fields(self, "problems_per_batch", "rollouts_per_problem", "update_steps", least=1)

    @classmethod
    def within(cls, rollouts: int, *, problems_per_batch: int, rollouts_per_problem: int) -> Allocation:
        """Return the allocation with the most update steps that a budget allows."""
        one_step = cls(problems_per_batch=problems_per_batch, rollouts_per_problem=rollouts_per_problem, update_steps=1)
        steps = whole(rollouts, "the budget", least=1) // one_step.batch_rollouts
        if steps < 1:
            batch = f"{problems_per_batch:,} problems × {rollouts_per_problem:,} rollouts"
            raise BudgetError(f"a budget of {rollouts:,} rollouts does not pay for one step of {batch}")
        return cls(problems_per_batch=problems_per_batch, rollouts_per_problem=rollouts_per_problem, update_steps=steps)

    @property
    def batch_rollouts(self) -> int:
        """B = B_p · n, rollouts generated at every step."""
        return self.problems_per_batch * self.rollouts_per_problem

    @property
    def rollouts(self) -> int:
        """C = B_p · n · M, rollouts generated in all."""
        return self.batch_rollouts * self.update_steps

    def epochs(self, problems: int) -> float:
        """Visits to each of ``problems`` training problems: B_p · M / D."""
        return self.problems_per_batch * self.update_steps / whole(problems, "problems", least=1)

    def learning_rate(self, *, anchor: float, anchor_batch: int, scaling: Scaling = "sqrt") -> float:
        """The learning rate for this batch, scaled from one measured at another batch size.

        Args:
            scaling: ``sqrt`` is anchor · √(B / anchor_batch), the rule of the IsoCompute Playbook
                (arXiv 2603.12151, Factor 3); ``linear`` is anchor · B / anchor_batch; ``constant`` is anchor.
        """
        if not (isfinite(anchor) and anchor > 0):
            raise BudgetError(f"the anchor learning rate is {anchor!r}; it must be a positive number")
        ratio = self.batch_rollouts / whole(anchor_batch, "anchor_batch", least=1)
        factors = {"sqrt": sqrt(ratio), "linear": ratio, "constant": 1.0}
        if scaling not in factors:
            raise BudgetError(f"the scaling is {scaling!r}; it must be one of {', '.join(factors)}")
        return anchor * factors[scaling]


LONGEST_AXIS = 200
"""More values than this on one axis are refused as a mistake."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Constraints:
    """The limits that a split must respect.

    Attributes:
        rollouts: C, the budget.
        max_batch: B_max, most rollouts in a batch.
        rollouts_per_problem: Values of n to consider; empty takes the powers of two from 2.
        problems_per_batch: Values of B_p to consider; empty takes the powers of two from 8, if there are any.
        problems: D, problems in the training set, or None.
        max_epochs: Most visits to each problem, B_p·M / D; needs ``problems``.
    """

    rollouts: int
    max_batch: int
    rollouts_per_problem: tuple[int, ...] = ()
    problems_per_batch: tuple[int, ...] = ()
    min_steps: int = 1
    problems: int | None = None
    max_epochs: float | None = None
    world_size: int = 1

    def __post_init__(self) -> None:
        check_whole_fields(self, "rollouts", "max_batch", "min_steps", "world_size", least=1)
        if self.problems is not None:
            whole(self.problems, "problems", least=1)
        if self.max_epochs is not None and (self.problems is None or not 0 < self.max_epochs < inf):
            said = f"max_epochs is {self.max_epochs!r} and problems {self.problems!r}"
            raise BudgetError(f"{said}; it must be positive and finite, and needs the number of problems")
        fewest = 8 if self.max_batch >= 8 else 1
        for name, first in (("rollouts_per_problem", 2), ("problems_per_batch", fewest)):
            given = tuple(whole(value, name, least=1) for value in getattr(self, name))
            powers = (2**k for k in range(first.bit_length() - 1, self.max_batch.bit_length()))
            values = tuple(sorted(set(given) or powers))
            if given and len(values) < len(given):
                raise BudgetError(f"{name} holds a value twice: {', '.join(map(str, given))}")
            if len(values) > LONGEST_AXIS:
                raise BudgetError(f"{name} has {len(values)} values; at most {LONGEST_AXIS} are considered")
            object.__setattr__(self, name, values)


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """An infeasible split: the limit it exceeds, the words shared by all splits that exceed it, and the numbers."""

    problems_per_batch: int
    rollouts_per_problem: int
    limit: str
    reason: str


def grid(constraints: Constraints) -> tuple[list[Allocation], list[LeftOut]]:
    """The feasible splits by B_p and n, each with as many steps as the budget pays for; and the infeasible ones."""
    pairs = product(constraints.problems_per_batch, constraints.rollouts_per_problem)
    checked = [_check(constraints, problems, n) for problems, n in pairs]
    return [s for s in checked if isinstance(s, Allocation)], [s for s in checked if isinstance(s, LeftOut)]


def _check(limits: Constraints, problems: int, n: int) -> Allocation | LeftOut:
    """Return a split, or the first limit that it exceeds."""
    batch = problems * n
    steps, over = limits.rollouts // batch, batch % limits.world_size
    epochs = problems * steps / limits.problems if limits.problems else None
    if batch > limits.max_batch:
        limit, reason = f"batches above {limits.max_batch:,} rollouts", f"a batch of {batch:,} rollouts"
    elif limits.problems is not None and problems > limits.problems:
        limit, reason = f"more problems in a batch than the {limits.problems:,} there are", f"{problems:,} problems"
    elif over:
        limit = f"batches that cannot be split evenly over {limits.world_size} devices"
        reason = f"{batch:,} rollouts leave {over} over"
    elif steps < limits.min_steps:
        limit = f"fewer than {plural(limits.min_steps, 'step')}"
        reason = f"the budget pays for {plural(steps, 'step')} of {batch:,}"
    elif limits.max_epochs is not None and epochs is not None and epochs > limits.max_epochs:
        limit, reason = f"more than {limits.max_epochs:g} epochs", f"each problem would be visited {epochs:,.1f} times"
    else:
        return Allocation(problems_per_batch=problems, rollouts_per_problem=n, update_steps=steps)
    return LeftOut(problems_per_batch=problems, rollouts_per_problem=n, limit=limit, reason=reason)


SPREAD = 0.25
"""Relative uncertainty of mean lengths that is assumed by default."""

LONGEST = 10**9
"""The largest mean response accepted, in tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """An uncertain amount, in the unit of the function that returns it, and the assumptions behind it, as sentences."""

    low: float
    likely: float
    high: float
    assumptions: tuple[str, ...] = ()

    @classmethod
    def of(cls, amounts: Iterable[float], *assumptions: str) -> Interval:
        """The interval of a low, a likely and a high amount; repeated assumptions are kept once."""
        low, likely, high = amounts
        return cls(low=low, likely=likely, high=high, assumptions=tuple(dict.fromkeys(assumptions)))

    @classmethod
    def sure(cls, amount: float) -> Interval:
        """An amount known exactly."""
        return cls.of([amount] * 3)

    @property
    def amounts(self) -> tuple[float, float, float]:
        """Low, likely and high."""
        return self.low, self.likely, self.high

    def over(self, rates: Sequence[float], *assumptions: str) -> Interval:
        """The time for this amount at a low, a likely and a high rate, with the assumptions of these rates."""
        # The low amount at the high rate.
        return Interval.of(map(truediv, self.amounts, reversed(rates)), *self.assumptions, *assumptions)

    def __add__(self, other: Interval) -> Interval:
        """The sum, as wide as if both errors had the same sign."""
        return Interval.of(map(add, self.amounts, other.amounts), *self.assumptions, *other.assumptions)

    def times(self, factor: float, *assumptions: str) -> Interval:
        """The interval in another unit, with the assumptions of the factor."""
        return Interval.of((amount * factor for amount in self.amounts), *self.assumptions, *assumptions)


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """The size of a policy.

    Attributes:
        parameters: All parameters; the devices hold all of them.
        active_parameters: N, the parameters that a token passes through: fewer in a mixture of experts; None for all.
        layers: L, for the attention term; None leaves the term out, which is listed as an assumption.
        width: d, size of the hidden state, for the attention term.
        vocabulary: Size of the vocabulary, for the memory of the logits and a head in float32.
        kv_values: Values that an engine caches per token and layer; None for keys and values as wide as the model.
    """

    parameters: int
    active_parameters: int | None = None
    layers: int | None = None
    width: int | None = None
    vocabulary: int | None = None
    kv_values: int | None = None

    def __post_init__(self) -> None:
        optional = ("active_parameters", "layers", "width", "vocabulary", "kv_values")
        given = (name for name in optional if getattr(self, name) is not None)
        check_whole_fields(self, "parameters", *given, least=1)
        if self.active > self.parameters:
            raise BudgetError(f"active_parameters is {self.active:,}, more than the {self.parameters:,} parameters")
        if (self.layers is None) != (self.width is None):
            raise BudgetError("the attention term needs both the layers and the width of the model, or neither")

    @property
    def active(self) -> int:
        """N, parameters that a token passes through."""
        return self.parameters if self.active_parameters is None else self.active_parameters

    @property
    def head(self) -> int:
        """Parameters of the output head; 0 if the width or the vocabulary is unknown."""
        return (self.vocabulary or 0) * (self.width or 0)

    def attention(self, begin: float, end: float) -> float:
        """FLOPs of attention in a forward pass over a range of positions, 2·L·d·(end² − begin²); 0 without L and d."""
        if self.layers is None or self.width is None:
            return 0.0
        return 2.0 * self.layers * self.width * (end**2 - begin**2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """Assumed lengths of prompts and responses.

    Attributes:
        response_tokens: Mean response length when training begins.
        growth: Ratio of the mean response length at the end to that at the beginning; linear in between.
        spread: Relative uncertainty of the mean length over the run.
    """

    prompt_tokens: float = 0.0
    response_tokens: float
    growth: float = 1.0
    spread: float = SPREAD

    def __post_init__(self) -> None:
        if not 0 <= self.prompt_tokens <= LONGEST or not 0 < self.response_tokens <= LONGEST:
            raise BudgetError(
                f"mean lengths are {self.prompt_tokens!r} and {self.response_tokens!r} tokens; the prompt must have "
                f"at least 0 and the response more, and both at most {LONGEST:,}"
            )
        if not 0 < self.growth <= LONGEST:
            raise BudgetError(f"the growth of responses is {self.growth!r}; it must be a positive factor")
        if not 0 <= self.spread < 1:
            raise BudgetError(f"the spread of lengths is {self.spread!r}; it must lie between 0 and 1")

    @property
    def mean_response(self) -> float:
        """Mean response length over the run, in tokens."""
        return self.response_tokens * (1 + self.growth) / 2

    @property
    def assumption(self) -> str:
        """The lengths as a sentence."""
        change = f", growing to {self.growth:g} times that" if self.growth != 1 else ", without growth"
        return (
            f"responses of {self.response_tokens:,.0f} tokens on average{change}; the mean over the run "
            f"({self.mean_response:,.0f}) may be off by {self.spread:.0%}"
        )

    @property
    def means(self) -> tuple[float, float, float]:
        """Low, likely and high mean response length over the run, in tokens."""
        low, likely, high = (self.mean_response * (1 + off) for off in (-self.spread, 0, self.spread))
        return low, likely, high

    def tokens_of(self, rollouts: int) -> Interval:
        """Response tokens of this many rollouts, as uncertain as their mean length."""
        return Interval.of((round(rollouts * mean) for mean in self.means), self.assumption)


GIBIBYTE = 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """An accelerator.

    Attributes:
        peak: Dense bfloat16 FLOP/s. All values are from the data sheet.
        float32: FLOP/s in float32, without TF32.
        memory: Bytes.
        bandwidth: Memory bandwidth, bytes/s.
    """

    name: str
    peak: float
    float32: float
    memory: int
    bandwidth: float


DEVICES: Mapping[str, Device] = {
    device.name: device
    for device in (
        Device(name="a100", peak=312e12, float32=19.5e12, memory=80 * 10**9, bandwidth=2.04e12),
        Device(name="h100", peak=989e12, float32=67e12, memory=80 * 10**9, bandwidth=3.35e12),
        Device(name="h200", peak=989e12, float32=67e12, memory=141 * 10**9, bandwidth=4.8e12),
        Device(name="b200", peak=2250e12, float32=75e12, memory=180 * 10**9, bandwidth=7.7e12),
        Device(name="l40s", peak=362e12, float32=91.6e12, memory=48 * 10**9, bandwidth=0.864e12),
        Device(name="mi300x", peak=1307e12, float32=163.4e12, memory=192 * 10**9, bandwidth=5.3e12),
    )
}
"""Accelerators by name."""


def device(name: str) -> Device:
    """An accelerator by its name."""
    if name not in DEVICES:
        raise BudgetError(f"{name!r} is not a known device; the known ones are {', '.join(DEVICES)}")
    return DEVICES[name]


@dataclass(frozen=True, slots=True, kw_only=True)
class Utilisation:
    """Low, likely and high shares of a device's peak (model FLOPs utilisation): assumed unless measured."""

    generation: tuple[float, float, float] = (0.05, 0.15, 0.3)
    training: tuple[float, float, float] = (0.25, 0.35, 0.5)

    def __post_init__(self) -> None:
        for name in ("generation", "training"):
            low, likely, high = getattr(self, name)
            if not 0 < low <= likely <= high <= 1:
                said = f"the utilisation in {name} is {low}, {likely}, {high}"
                raise BudgetError(f"{said}; it must be in ascending order between 0 and 1")


HEAD = (0.6, 0.85, 0.95)
"""Low, likely and high share of ``Device.float32`` that an output head reaches; 0.89 was measured on an H100."""


def seconds(flops: Interval, on: Device, shares: tuple[float, float, float], doing: str) -> Interval:
    """Device-seconds for a number of FLOPs.

    Args:
        shares: Low, likely and high share of the device's peak.
        doing: The phase (sampling or training), for the wording of the assumption.
    """
    slow, likely, fast = shares
    reached = f"{slow:.0%} to {fast:.0%} (likely {likely:.0%})" if slow < fast else f"{likely:.0%}"
    said = f"{doing} reaches {reached} of the {on.peak / 1e12:,.0f} TFLOP/s of {on.name}"
    return flops.over([on.peak * share for share in shares], said)


def head_seconds(flops: Interval, on: Device) -> Interval:
    """Device-seconds for a number of FLOPs in a float32 output head."""
    return seconds(flops, replace(on, peak=on.float32), HEAD, "a head in float32")


def price(device_seconds: Interval, per_hour: float, currency: str = "USD") -> Interval:
    """The cost of device time, in the currency of the price per device-hour."""
    per_hour = finite(per_hour, "the price of a device-hour", zero=True)
    return device_seconds.times(per_hour / 3600, f"{per_hour:,.2f} {currency} per device-hour")


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Approximate memory of one device while training, in bytes.

    Attributes:
        state: Weights, gradients and Adam's moments, 16 bytes per parameter, sharded over the devices (FSDP, ZeRO-3).
        activations: Saved inputs of each layer (checkpointed, bfloat16) and the logits of one pass (float32).
        engine: Weights of an inference engine on the same device, bfloat16; its KV cache takes what is left.
    """

    state: int
    activations: int
    engine: int

    @property
    def total(self) -> int:
        """The sum of the three."""
        return self.state + self.activations + self.engine


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """The cost of generating rollouts and training on all of them, in device-seconds.

    Attributes:
        flops: FLOPs of prefill and sampling, of the trainer's passes, and of a float32 head, which the first two
            exclude.
    """

    flops: tuple[Interval, Interval, Interval]
    sampling: Interval
    training: Interval

    @property
    def time(self) -> Interval:
        """Device-seconds of sampling and training together."""
        return self.sampling + self.training


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A model, its lengths, and the device that trains it.

    Attributes:
        tokens_per_second: Measured throughput of one device in response tokens per second; replaces the assumed
            utilisation while sampling.
        extra_forwards: Additional forward passes of the trainer over each token: 1 for a reference policy, 1 for
            recomputing log-probabilities.
        shared_prompt: Whether the engine prefills a prompt once for its n responses (prefix caching).
        float32_head: Whether the trainer's output head multiplies in float32: four products of 2·V·d FLOPs per token,
            since the backward pass computes the logits again.
    """

    model: Model
    lengths: Lengths
    device: Device
    utilisation: Utilisation = Utilisation()
    tokens_per_second: float | None = None
    extra_forwards: int = 0
    shared_prompt: bool = True
    float32_head: bool = False

    def __post_init__(self) -> None:
        whole(self.extra_forwards, "extra_forwards", least=0)
        if self.tokens_per_second is not None:
            finite(self.tokens_per_second, "tokens_per_second")
        model = self.model
        if self.float32_head and not 0 < model.head <= model.active:
            raise BudgetError(
                f"the width is {model.width}, the vocabulary {model.vocabulary}; a head in float32 needs both, and no "
                f"more than the {model.active:,} parameters of the model"
            )

    def estimate(self, rollouts: int, *, rollouts_per_problem: int = 1) -> Estimate:
        """Estimate the cost of generating rollouts, with n per prompt, and of training on all of them."""
        n = whole(rollouts_per_problem, "rollouts_per_problem", least=1)
        model, prompt, forwards = self.model, self.lengths.prompt_tokens, self.extra_forwards
        head = model.head if self.float32_head else 0
        prefills = rollouts / n if self.shared_prompt else rollouts

        def parts(length: float) -> tuple[float, float, float]:
            end = prompt + length
            once = 2.0 * (model.active - head) * end + model.attention(0, end)
            prefill = prefills * (2.0 * model.active * prompt + model.attention(0, prompt))
            generating = prefill + rollouts * (2.0 * model.active * length + model.attention(prompt, end))
            return generating, rollouts * (3 + forwards) * once, rollouts * (4 + forwards) * 2.0 * head * end

        said = self._assumptions(shared_prompt=self.shared_prompt and n > 1)
        amounts = zip(*map(parts, self.lengths.means), strict=True)
        generation, passes, in_head = (Interval.of(amount, *said) for amount in amounts)
        training = seconds(passes, self.device, self.utilisation.training, "training")
        if head:
            training += head_seconds(in_head, self.device)
        if self.tokens_per_second is None:
            sampling = seconds(generation, self.device, self.utilisation.generation, "sampling")
        else:
            speed = f"a device generates {self.tokens_per_second:,.0f} response tokens per second"
            sampling = self.lengths.tokens_of(rollouts).times(1 / self.tokens_per_second, speed)
        return Estimate(flops=(generation, passes, in_head), sampling=sampling, training=training)

    def memory(self, *, world_size: int, micro_batch: int = 1) -> Memory:
        """Memory of one device (bytes) in a sharded trainer with an engine; no activations if the shape is unknown."""
        world, model = whole(world_size, "world_size", least=1), self.model
        tokens = (self.lengths.prompt_tokens + self.lengths.means[-1]) * micro_batch
        per_token = 2 * (model.layers or 0) * (model.width or 0) + 4 * (model.vocabulary or 0)
        return Memory(
            state=16 * model.parameters // world,
            activations=round(tokens * per_token),
            engine=2 * model.parameters,
        )

    def _assumptions(self, *, shared_prompt: bool) -> tuple[str, ...]:
        """The assumptions behind the FLOPs, one sentence each."""
        model, lengths, forwards = self.model, self.lengths, self.extra_forwards
        said = [lengths.assumption, "2·N FLOPs per token prefilled or generated, 6·N per token trained on"]
        if model.active < model.parameters:
            held = f"{model.active:,} of the {model.parameters:,} parameters, and devices hold them all"
            said.append(f"a token passes through {held}")
        if forwards:
            passes = f"{forwards} further forward {'passes' if forwards > 1 else 'pass'}"
            said.append(f"{passes} of the trainer, 2·N FLOPs per token each")
        said.append(
            "the attention term is left out (give the layers and the width)"
            if model.layers is None
            else "the attention term, 2·L·d·T² per sequence of T tokens forward and three times that in training, is "
            "included"
        )
        if lengths.prompt_tokens:
            said.append(
                "the engine prefills a prompt once for all of its responses; the trainer shares nothing"
                if shared_prompt
                else "every response prefills its own prompt"
            )
        return tuple(said)
