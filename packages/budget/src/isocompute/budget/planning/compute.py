"""From rollouts to tokens, and from tokens to FLOPs.

The rules: 2·N FLOPs for each token prefilled or generated, and 6·N for each token trained on, where N is the number
of parameters that a token passes through (of a mixture of experts, the active ones). The attention term, for L
layers of width d, is added: a causal pass over positions a to b costs 2·L·d·(b² − a²), and three times that in
training. Where the engine keeps the prompt of a group, n responses share one prefill; the trainer is not assumed to
share anything.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..checks import whole
from ..errors import BudgetError

SPREAD = 0.25
"""Relative uncertainty of mean lengths that is assumed unless one is given."""

LONGEST = 10**9
"""The largest mean response accepted, in tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """An amount that is not known exactly; its unit is that of what returns it.

    Attributes:
        low: Lower end.
        likely: Best estimate.
        high: Upper end.
        assumptions: What the three rest on, one sentence each.
    """

    low: float
    likely: float
    high: float
    assumptions: tuple[str, ...] = ()

    def __add__(self, other: Interval) -> Interval:
        """The sum, as wide as if both were off in the same direction."""
        return Interval(
            low=self.low + other.low,
            likely=self.likely + other.likely,
            high=self.high + other.high,
            assumptions=_each_once(*self.assumptions, *other.assumptions),
        )

    def times(self, factor: float, *assumptions: str) -> Interval:
        """The interval in another unit, and what the factor assumes."""
        return Interval(
            low=self.low * factor,
            likely=self.likely * factor,
            high=self.high * factor,
            assumptions=_each_once(*self.assumptions, *assumptions),
        )


def _each_once(*sentences: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(sentences))


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """The size of a policy.

    Attributes:
        parameters: All parameters, which the devices hold.
        active_parameters: N, those that a token passes through: fewer in a mixture of experts; None for all.
        layers: L, for the attention term; None leaves the term out, which is listed as an assumption.
        width: d, size of the hidden state, for the attention term.
        vocabulary: Size of the vocabulary, for the memory of the logits.

    Raises:
        BudgetError: A size is not a whole number of at least 1, or only one of layers and width is given.
    """

    parameters: int
    active_parameters: int | None = None
    layers: int | None = None
    width: int | None = None
    vocabulary: int | None = None

    def __post_init__(self) -> None:
        for name in ("parameters", "active_parameters", "layers", "width", "vocabulary"):
            value = getattr(self, name)
            if value is not None or name == "parameters":
                whole(value, name, least=1)
        if self.active > self.parameters:
            raise BudgetError(
                f"active_parameters is {self.active:,}, more than the {self.parameters:,} parameters that there are"
            )
        if (self.layers is None) != (self.width is None):
            raise BudgetError("the attention term needs both the layers and the width of the model, or neither")

    @property
    def active(self) -> int:
        """N, parameters that a token passes through."""
        return self.parameters if self.active_parameters is None else self.active_parameters

    def attention(self, begin: float, end: float) -> float:
        """FLOPs of attention in a forward pass over some positions of a sequence, 2·L·d·(end² − begin²).

        Args:
            begin: First position, in tokens.
            end: Position after the last.

        Returns:
            FLOPs; 0 where the layers and the width are not known.
        """
        if self.layers is None or self.width is None:
            return 0.0
        return 2.0 * self.layers * self.width * (end**2 - begin**2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """Assumed lengths of prompts and responses.

    Attributes:
        prompt_tokens: Mean prompt.
        response_tokens: Mean response when training begins.
        growth: Mean response at the end over that at the beginning; linear in between.
        spread: Relative uncertainty of the mean over the run.

    Raises:
        BudgetError: A length is negative or above 10^9, the growth not positive, or the spread not between 0 and 1.
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
            raise BudgetError(
                f"the growth of responses is {self.growth!r}; it must be a positive factor (1 for no growth)"
            )
        if not 0 <= self.spread < 1:
            raise BudgetError(f"the spread of lengths is {self.spread!r}; it must lie between 0 and 1")

    @property
    def mean_response(self) -> float:
        """Mean response over the run, tokens."""
        return self.response_tokens * (1 + self.growth) / 2

    @property
    def assumption(self) -> str:
        """The lengths as a sentence."""
        change = f", growing to {self.growth:g} times that" if self.growth != 1 else ", without growth"
        return (
            f"responses of {self.response_tokens:,.0f} tokens on average{change}; the mean over the run "
            f"({self.mean_response:,.0f}) may be off by {self.spread:.0%}"
        )


def response_tokens(rollouts: int, lengths: Lengths) -> Interval:
    """Response tokens of a number of rollouts, as uncertain as their mean length."""
    low, likely, high = (
        round(rollouts * lengths.mean_response * (1 + off)) for off in (-lengths.spread, 0, lengths.spread)
    )
    return Interval(low=low, likely=likely, high=high, assumptions=(lengths.assumption,))


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """FLOPs of a run.

    Attributes:
        generation: Prefill and sampling.
        training: Forward and backward passes of the trainer, and its other forward passes.
    """

    generation: Interval
    training: Interval


def work(
    rollouts: int,
    *,
    model: Model,
    lengths: Lengths,
    rollouts_per_problem: int = 1,
    shared_prompt: bool = True,
    extra_forwards: int = 0,
) -> Work:
    """FLOPs of generating rollouts and training on all of them.

    Args:
        rollouts_per_problem: n, responses that share a prompt.
        shared_prompt: Whether the engine prefills a prompt once for its n responses (prefix caching).
        extra_forwards: Further forward passes of the trainer over each token: 1 for a reference policy, 1 for
            log-probabilities computed again.

    Returns:
        FLOPs of generation and of training, with their assumptions.

    Raises:
        BudgetError: ``rollouts_per_problem`` is below 1, or ``extra_forwards`` below 0.
    """
    n = whole(rollouts_per_problem, "rollouts_per_problem", least=1)
    forwards = whole(extra_forwards, "extra_forwards", least=0)
    prompt = lengths.prompt_tokens
    prefills = rollouts / n if shared_prompt else rollouts

    def parts(length: float) -> tuple[float, float]:
        end = prompt + length
        once = 2.0 * model.active * end + model.attention(0, end)
        prefill = prefills * (2.0 * model.active * prompt + model.attention(0, prompt))
        generating = prefill + rollouts * (2.0 * model.active * length + model.attention(prompt, end))
        return generating, rollouts * (3 + forwards) * once

    low, likely, high = (parts(lengths.mean_response * (1 + off)) for off in (-lengths.spread, 0, lengths.spread))
    assumptions = _assumptions(model, lengths, shared_prompt=shared_prompt and n > 1, forwards=forwards)
    return Work(
        generation=Interval(low=low[0], likely=likely[0], high=high[0], assumptions=assumptions),
        training=Interval(low=low[1], likely=likely[1], high=high[1], assumptions=assumptions),
    )


def _assumptions(model: Model, lengths: Lengths, *, shared_prompt: bool, forwards: int) -> tuple[str, ...]:
    """The assumptions behind the FLOPs of a run, one sentence each."""
    said = [lengths.assumption, "2·N FLOPs per token prefilled or generated, 6·N per token trained on"]
    if model.active < model.parameters:
        said.append(
            f"a token passes through {model.active:,} of the {model.parameters:,} parameters, and devices hold them all"
        )
    if forwards:
        said.append(
            f"{forwards} further forward {'passes' if forwards > 1 else 'pass'} of the trainer, "
            "2·N FLOPs per token each"
        )
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
