"""A trainer: how it takes settings, how a run is written for it, and how its settings are read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from .run import Configuration, Run
from .settings import Reading, Settings

Style = Literal["dashes", "hydra"]
"""How a trainer takes flags: ``--key value`` or ``key=value``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Framework:
    """A trainer.

    Attributes:
        name: Name on the command line.
        title: Its own spelling.
        style: How it takes flags.
        write: Settings for a run.
        parse: What settings say.
        parallelism: The ways in which it can spread one copy of the model: names of ``Parallelism``.
    """

    name: str
    title: str
    style: Style
    write: Callable[[Run], Configuration]
    parse: Callable[[Settings], Reading]
    parallelism: tuple[str, ...] = ()
