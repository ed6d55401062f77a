"""Cells that a command trains: what their results depend on, in place of our learner."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import ExperimentError
from ..settings.trainer import CommandTrainer
from . import models, work
from .cells import Cell
from .identity import Surroundings, code_of, digest, source_hash, versions

if TYPE_CHECKING:
    from ..settings.model import Preset

LOOP = "experiments.running.command"
"""The module from which our part of such a run is found: how a command is started, and its log read."""

LEDGER, SAID, CHECKPOINTS = "run.ledger", "output.log", "checkpoints"
"""What a command leaves in the folder of a cell: its ledger, what it printed, its checkpoints with its log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandSurroundings(Surroundings):
    """What computes the result of a command, with the hash of each file that it depends on."""

    trainer: Mapping[str, Any]
    files: Mapping[str, str]

    @classmethod
    def of_trainer(cls, trainer: CommandTrainer, device: str, project: Path) -> CommandSurroundings:
        """Those of this checkout and of the libraries that are installed."""
        return cls(
            code=code_of(LOOP), versions=versions_of(trainer), sampler="command", device=device, engine={},
            placement="", learner_ranks=trainer.world_size, trainer=trainer.model_dump(mode="json"),
            files=files_of(trainer, project),
        )  # fmt: skip

    @property
    def settings(self) -> CommandTrainer:
        """The settings of the trainer."""
        return CommandTrainer.model_validate(self.trainer, strict=False)


def surroundings_of(preset: Preset) -> Surroundings:
    """What computes the results of a preset's cells."""
    if isinstance(preset.trainer, CommandTrainer):
        return CommandSurroundings.of_trainer(preset.trainer, preset.resources.device, Path.cwd())
    return Surroundings.of(preset.resources)


def files_of(trainer: CommandTrainer, project: Path) -> dict[str, str]:
    """Hash of each file and folder that a command depends on: those listed, and its words that are files.

    Of Python, comments, docstrings and the texts of messages change no result, and no hash.

    Raises:
        ExperimentError: One that is listed is not there, or is no Python though its name says so.
    """
    named = {word for word in trainer.command[1:] if (project / word).is_file()}
    for name in trainer.files:
        if not (project / name).exists():
            raise ExperimentError(f"trainer.files holds {name}: there is no such file or folder in {project}")
    return {name: _hash(project / name) for name in sorted({*trainer.files, *named})}


def _hash(place: Path) -> str:
    if place.is_dir():
        parts = sorted(path for path in place.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
        return digest({str(path.relative_to(place)): _hash(path) for path in parts})
    if place.suffix != ".py":
        return models.content_hash(place)
    try:
        return source_hash(place)
    except (SyntaxError, UnicodeError) as error:
        raise ExperimentError(f"trainer: {place} is not Python ({error})") from None


def versions_of(trainer: CommandTrainer) -> dict[str, str]:
    """Installed version of each library that a command depends on."""
    found = versions(sorted(trainer.libraries))
    for name in sorted({*trainer.libraries} - {*found}):
        raise ExperimentError(
            f"trainer.libraries holds {name}, which is not installed here: install it; of a command in an environment "
            "of its own, list that one's lock file in trainer.files"
        )
    return found


@dataclass(frozen=True, kw_only=True)
class CommandCell(Cell):
    """A cell that a command trains. Its budget is part of its identity: trainers' schedules depend on their last step.

    Its first evaluation is its own, since a trainer samples with its own seeds.
    """

    @cached_property
    def run_id(self) -> str:
        """Hash of all that the result depends on."""
        plain = asdict(self)
        del plain["purpose"]
        # Of our learner's settings a command takes this one.
        plain["learner"] = self.learner.learning_rate
        return digest(plain)

    @cached_property
    def start_id(self) -> str:
        """Empty: no other cell has the same first evaluation."""
        return ""

    @property
    def command(self) -> CommandSurroundings:
        """What trains it."""
        surroundings = self.origin.surroundings
        if not isinstance(surroundings, CommandSurroundings):
            raise TypeError(f"{self.name} is trained by no command")
        return surroundings

    @property
    def update_steps(self) -> int:
        """M, the steps of its budget."""
        return self.rollouts // self.batch_rollouts

    @property
    def evaluate_steps(self) -> int:
        """Update steps between evaluations."""
        return self.evaluate_every // self.batch_rollouts


def written(folder: Path) -> tuple[int, ...]:
    """How much the command of a cell has charged and printed: it moves while the command does."""
    return tuple(path.stat().st_size for name in (LEDGER, SAID) if (path := folder / name).exists())


def kept(cell: Cell, folder: Path) -> object:
    """A value that changes when a cell has come further than where it would begin again."""
    if not isinstance(cell, CommandCell):
        return work.newest_checkpoint(folder)
    return sorted(path.name for path in (folder / CHECKPOINTS).glob("*"))
