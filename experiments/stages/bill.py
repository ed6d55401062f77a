"""What a preset costs on GPUs: device-hours and money, with everything that they rest on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import reduce
from operator import add
from typing import Any

from isocompute.budget.planning.compute import Lengths, Model
from isocompute.budget.planning.costs import Setting, estimate
from isocompute.budget.planning.devices import Device, Utilisation, device, price
from isocompute.budget.units import DeviceSeconds, Interval, Money, Rollouts, merged
from isocompute.learner.memory.update import parameters_of

from ..running.cells import Cell
from ..settings import Preset


@dataclass(frozen=True, kw_only=True)
class Terms:
    """What a cost is reckoned with, where nothing was measured.

    Attributes:
        price: Of a GPU for an hour (US dollars).
        response_tokens: Mean length of a response; None for the longest that there may be.
    """

    device: Device = field(default_factory=lambda: device("h100"))
    price: float = 3.0
    response_tokens: float | None = None


def lines(preset: Preset, cells: Sequence[Cell], evaluated: int, model: dict[str, Any], terms: Terms) -> Iterator[str]:
    """Device-hours and money of training cells and of evaluating them."""
    length = terms.response_tokens or float(preset.sampling.max_new_tokens)
    learner = cells[0].learner
    setting = Setting(
        model=Model(
            parameters=parameters_of(model), layers=int(model["num_hidden_layers"]), width=int(model["hidden_size"]),
            vocabulary=int(model["vocab_size"]),
        ),
        lengths=Lengths(prompt_tokens=float(preset.sampling.max_prompt_tokens), response_tokens=length, spread=0.0),
        device=terms.device, utilisation=Utilisation(), tokens_per_second=None,
        extra_forwards=int(learner.measures_first) + int(bool(learner.kl.coefficient)), shared_prompt=True,
        price=Money(terms.price),
    )  # fmt: skip
    sizes: dict[int, int] = {}
    for cell in cells:
        sizes[cell.rollouts_per_problem] = sizes.get(cell.rollouts_per_problem, 0) + cell.rollouts
    spent = [estimate(Rollouts(total), setting, rollouts_per_problem=n) for n, total in sizes.items()]
    asked = estimate(Rollouts(evaluated), setting, rollouts_per_problem=preset.evaluation.samples)
    sampling, training = reduce(add, (e.sampling for e in spent)), reduce(add, (e.training for e in spent))
    whole = sampling + training + asked.sampling
    yield f"    {_hours(whole)} on {terms.device.name}, {_money(whole, terms)} (unverified)"
    yield f"      sampling {_hours(sampling)}, updates {_hours(training)}, evaluations {_hours(asked.sampling)}"
    if learner.adapter is not None:
        yield "      assumed: an update takes as long as one of all weights; an adapter's takes up to a third less"
    if terms.response_tokens is None:
        yield "      assumed: every response is as long as it may be, which is the most (--response-tokens)"
    for sentence in merged(whole.assumptions, price(whole, Money(terms.price)).assumptions):
        yield f"      assumed: {sentence}"


def _hours(time: Interval[DeviceSeconds]) -> str:
    low, likely, high = (part.hours for part in (time.low, time.likely, time.high))
    return f"{likely:,.0f} GPU-hours ({low:,.0f} to {high:,.0f})"


def _money(time: Interval[DeviceSeconds], terms: Terms) -> str:
    money = price(time, Money(terms.price))
    return f"{money.likely.amount:,.0f} {money.likely.currency} ({money.low.amount:,.0f} to {money.high.amount:,.0f})"
