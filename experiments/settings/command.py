"""A command that trains the cells, in place of our learner."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Annotated, Literal, Self

from isocompute.rollout.contract.settings import Count
from pydantic import Field, model_validator

from .strict import Settings

PLACEHOLDERS = {
    "model": "folder of the base model",
    "train": "file of the training problems, as JSON lines",
    "validation": "file of the validation problems",
    "seed": "seed of the cell",
    "ledger": "file that the budget is attached with",
    "rollouts": "budget of the cell",
    "checkpoints": "folder for checkpoints and the trainer's log",
    "evaluate_steps": "update steps between evaluations",
    "evaluation_samples": "responses to each validation problem",
    "rollouts_per_problem": "n",
    "problems_per_batch": "B_p",
    "update_steps": "M",
    "learning_rate": "learning rate of the cell",
    "temperature": "sampling.temperature",
    "max_new_tokens": "sampling.max_new_tokens",
    "max_prompt_tokens": "sampling.max_prompt_tokens",
}
"""Placeholders that a word of a command may hold in braces, and their meaning."""
NEEDED = ("model", "train", "validation", "seed", "ledger", "checkpoints")
"""Those without which cells could not differ, or could not be measured."""
PLACEHOLDER = re.compile(r"\{([a-z_]+)\}")


Words = Annotated[tuple[str, ...], Field(strict=False)]
"""Texts, as a list of YAML has them."""


class CommandTrainer(Settings):
    """A command trains each cell: a run of another trainer, whose budget is attached and whose log is read.

    The settings with which the trainer generates B_p · n rollouts in each of M steps are appended to the command, in
    the form of the trainer's flags.
    """

    kind: Literal["command"]
    """What it is."""
    trainer: Literal["trl", "swift", "verl", "openrlhf", "prime-rl", "skyrl", "tinker", "slime"]
    """Whose settings are appended, and whose logs are read: a trainer that isocompute-budget knows."""
    command: Annotated[Words, Field(min_length=1)]
    """The program and its arguments, with ``{seed}``, ``{model}``, ``{train}``, ``{validation}``, ``{ledger}``,
    ``{checkpoints}`` and others in place of what is a cell's own."""
    files: Words = ()
    """Files and folders that a run depends on besides those that the command names: modules that the script imports,
    configurations, the lock file of an environment of its own."""
    libraries: Words = ()
    """Libraries whose installed versions a run depends on."""
    world_size: Count = 1
    """Devices that train one cell; each of ``resources.workers`` holds so many."""
    micro_batch: Count | None = None
    """Rollouts that a device holds in one pass; null: the largest divisor of its share of a batch up to 8."""
    logs: str = "{checkpoints}"
    """Source of the trainer's log, as ``isocompute-budget doctor`` takes it."""
    log_settings: Mapping[str, str] = {}
    """Facts that neither log nor command give, as for ``isocompute-budget doctor --set``, such as ``metric`` of several
    rewards."""

    @model_validator(mode="after")
    def _placeholders_are_known(self) -> Self:
        used = set(placeholders(self.command))
        for name, words in (("command", self.command), ("logs", (self.logs,))):
            for held in placeholders(words):
                if held not in PLACEHOLDERS:
                    raise ValueError(f"{name} holds {{{held}}}; it may hold {', '.join(PLACEHOLDERS)} in braces")
        for held in NEEDED:
            if held not in used:
                raise ValueError(f"command lacks {{{held}}}, the {PLACEHOLDERS[held]}")
        if "checkpoints" not in placeholders((self.logs,)):
            raise ValueError(f"logs is {self.logs!r}; it must lie in {{checkpoints}}, since each cell has its own")
        return self


def placeholders(words: Iterable[str]) -> list[str]:
    """The names in braces in some words, in order."""
    return [name for word in words for name in PLACEHOLDER.findall(word)]
