"""The supported trainers, by name."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import replace

from ..errors import BudgetError, whole
from .logs.log import flat
from .openrlhf import OPENRLHF
from .others import NEMO_RL, OPEN_INSTRUCT
from .prime_rl import PRIME_RL
from .settings import Batching, Configuration, RunPlan, Settings, Value, meant_by
from .skyrl import SKYRL
from .slime import SLIME
from .swift import SWIFT
from .tinker import TINKER
from .trainer import LogReader, Trainer
from .trl import TRL
from .verl import VERL

TRAINERS: Mapping[str, Trainer] = {
    known.name: known
    # ms-swift's logs are TRL's with marks of their own, so it comes first.
    for known in (SWIFT, TRL, VERL, OPENRLHF, PRIME_RL, SKYRL, TINKER, SLIME, OPEN_INSTRUCT, NEMO_RL)
}
"""Every trainer that an allocation can be written for."""
READERS: Mapping[str, LogReader] = {name: known.logs for name, known in TRAINERS.items() if known.logs is not None}
"""The log readers of trainers whose logs are read."""


def trainer(name: str) -> Trainer:
    """The trainer called ``name``."""
    if name not in TRAINERS:
        raise BudgetError(f"{name!r} is not a known trainer; the known ones are {', '.join(TRAINERS)}")
    return TRAINERS[name]


def convert(name: str, run: RunPlan) -> Configuration:
    """Settings with which a trainer generates exactly C = B_p · n · M rollouts in M optimizer steps."""
    known = trainer(name)
    lacking = [kind for kind, degree in run.parallelism.degrees.items() if degree > 1 and kind not in known.parallelism]
    if lacking:
        has = f"it has {' and '.join(known.parallelism)} parallelism" if known.parallelism else "it has none"
        raise BudgetError(f"{known.title} trains without {' and '.join(lacking)} parallelism; {has}, so leave it out")
    made = known.write(run)
    return replace(made, settings={key: value for key, value in made.settings.items() if value is not None})


def read(
    name: str,
    settings: Mapping[str, Value],
    *,
    world_size: int | None = None,
    problems: int | None = None,
    where: str = "the settings",
) -> Batching:
    """Read a trainer's settings as the batches that they produce.

    Args:
        settings: Dotted keys and their values. Those that determine neither batches nor steps are ``ignored``;
            ``inconsistent`` names each of these that looks like a misspelling of one that does.
        world_size: Devices that train, if the settings do not say (TRL).
        problems: D, problems in the training set, if steps follow from epochs.
    """
    if world_size is not None:
        whole(world_size, "world_size", least=1)
    if problems is not None:
        whole(problems, "problems", least=1)
    known, values = trainer(name), flat(settings, where)
    found = Settings(values=values, where=where, world_size=world_size, problems=problems)
    return noticed(known.title, values, known.parse(found), found.read)


def noticed(title: str, values: Mapping[str, Value], batching: Batching, read: Set[str]) -> Batching:
    """The batches, with the given settings that are not among those ``read``, and with those that look misspelt."""
    given = {key for key, value in values.items() if value is not None}
    # Settings that resemble one that is read come first.
    ignored = tuple(sorted((key for key in values if key in given - read), key=lambda key: not meant_by(key, read)))
    misspelt = [
        f"{key} is no setting that {title}'s batches follow from: did you mean {meant}?"
        for key in ignored
        if (meant := meant_by(key, read - given))
    ]
    return replace(batching, inconsistent=(*misspelt, *batching.inconsistent), ignored=ignored)
