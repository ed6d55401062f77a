"""A trainer: the form of its flags, how a run is written for it, and how its settings are read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from .reading import Reading
from .run import Configuration, Run
from .settings import Settings

Style = Literal["dashes", "hydra"]
"""How a trainer takes flags: ``--key value`` or ``key=value``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Framework:
    """A trainer.

    Attributes:
        name: Name on the command line.
        title: Name in its own spelling.
        style: Form of its flags.
        write: Returns the settings for a run.
        parse: Interprets settings.
        parallelism: The kinds of parallelism that it supports, by their names in ``Parallelism``.
    """

    name: str
    title: str
    style: Style
    write: Callable[[Run], Configuration]
    parse: Callable[[Settings], Reading]
    parallelism: tuple[str, ...] = ()
