"""The options of ``plan`` on the model, the lengths and the device."""

from __future__ import annotations

import argparse

from ..errors import BudgetError
from ..planning.compute import SPREAD, Lengths, Model
from ..planning.costs import Setting
from ..planning.devices import DEVICES, GIBIBYTE, Device, Memory, Utilisation, device
from .text import number, parameters, whole


def add(command: argparse.ArgumentParser) -> None:
    """Add the options."""
    group = command.add_argument_group("the model and the device, to estimate time, memory and money")
    group.add_argument("--model-parameters", type=parameters, metavar="N", help="parameters, of all experts: 7B")
    group.add_argument(
        "--active-parameters", type=parameters, metavar="N", help="those that a token passes through (default: all)"
    )
    group.add_argument("--response-tokens", type=number, metavar="T", help="mean response at first")
    group.add_argument("--device", choices=DEVICES, help="the accelerator")
    group.add_argument("--prompt-tokens", type=number, default=0.0, metavar="P", help="mean prompt (default: 0)")
    group.add_argument(
        "--response-growth", type=number, default=1.0, metavar="G", help="mean response at the end over that at first"
    )
    group.add_argument(
        "--spread", type=number, default=SPREAD, metavar="S", help="how far the mean may be off (default: %(default)s)"
    )
    group.add_argument("--layers", type=whole, metavar="L", help="layers, for the attention term and the memory")
    group.add_argument("--width", type=whole, metavar="d", help="hidden size, for the same")
    group.add_argument("--vocabulary", type=whole, metavar="V", help="for the memory of the logits")
    group.add_argument(
        "--generation-utilisation", type=_shares, metavar="LOW,LIKELY,HIGH", help="share of the peak while sampling"
    )
    group.add_argument(
        "--training-utilisation", type=_shares, metavar="LOW,LIKELY,HIGH", help="share of the peak while training"
    )
    group.add_argument("--tokens-per-second", type=number, metavar="R", help="sampling of one device, as measured")
    group.add_argument(
        "--extra-forwards",
        type=whole,
        default=0,
        metavar="F",
        help="further forward passes of the trainer (reference, …)",
    )
    group.add_argument("--no-shared-prompt", action="store_true", help="the engine has no prefix cache")
    group.add_argument("--price", type=number, metavar="X", help="price of one device-hour")
    group.add_argument("--currency", default="USD", help="currency of the price (default: %(default)s)")


def setting(arguments: argparse.Namespace) -> Setting | None:
    """The setting that the options describe, or None when none of them is given.

    Raises:
        BudgetError: Some of the options that go together are missing, or a value is not possible.
    """
    need = {name: getattr(arguments, name) for name in ("model_parameters", "response_tokens", "device")}
    given = [name for name, value in need.items() if value is not None]
    if not given:
        return None
    if len(given) < len(need):
        missing = " and ".join(f"--{name.replace('_', '-')}" for name in need if name not in given)
        raise BudgetError(f"an estimate of time and memory needs {missing} as well")
    usual = Utilisation()
    return Setting(
        model=Model(
            parameters=arguments.model_parameters,
            active_parameters=arguments.active_parameters,
            layers=arguments.layers,
            width=arguments.width,
            vocabulary=arguments.vocabulary,
        ),
        lengths=Lengths(
            prompt_tokens=arguments.prompt_tokens,
            response_tokens=arguments.response_tokens,
            growth=arguments.response_growth,
            spread=arguments.spread,
        ),
        device=device(arguments.device),
        utilisation=Utilisation(
            generation=arguments.generation_utilisation or usual.generation,
            training=arguments.training_utilisation or usual.training,
        ),
        tokens_per_second=arguments.tokens_per_second,
        extra_forwards=arguments.extra_forwards,
        shared_prompt=not arguments.no_shared_prompt,
    )


def _shares(text: str) -> tuple[float, float, float]:
    parts = [number(part) for part in text.split(",")]
    if len(parts) not in (1, 3):
        raise argparse.ArgumentTypeError(f"{text!r} is not one share of the peak or three (low,likely,high)")
    low, likely, high = parts * 3 if len(parts) == 1 else parts
    return low, likely, high


def memory_line(held: Memory, on: Device) -> str:
    """The memory that a device needs, and whether it has it."""
    left_out = "" if held.activations else ", without activations (give the layers and the width)"
    verdict = "" if held.total <= on.memory else ", which does not fit"
    return (
        f"memory: {held.total / GIBIBYTE:,.1f} of {on.memory / GIBIBYTE:,.1f} GiB of {on.name}, for 16 bytes per "
        f"parameter shared by the devices and an engine's weights{left_out}{verdict}"
    )


def format_figure(value: float) -> str:
    """A number in readable form: whole, with two decimals, or in scientific notation."""
    if value >= 1e12:
        return f"{value:.3g}"
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:,.2f}"
