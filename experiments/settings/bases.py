"""Base models that are named and not made: one of the hub or of a folder, or several with their problem sets."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, model_validator

from .strict import Name, SettingError, Settings

HUB_NAME = r"[\w.-]+(/[\w.-]+)?"
"""NAME or OWNER/NAME; what has more parts is a path."""


def of_hub(name: str) -> bool:
    """Whether a model or a dataset is a name on the hub, and no folder."""
    return bool(re.fullmatch(HUB_NAME, name)) and not Path(name).is_dir()


def check_pinned(what: str, name: str, revision: str) -> None:
    """Refuse a model or a dataset of the hub without a commit; a folder needs none."""
    if of_hub(name) and not re.fullmatch("[0-9a-f]{40}", revision):
        raise SettingError(
            "revision",
            f"is {revision!r} for the {what} {name}, which is no folder here: pin a commit (40 hexadecimal digits), "
            "since a branch or a tag moves",
        )


class ModelConfig(Settings):
    """A base model from a folder or from the hub."""

    model: str
    """Path of a folder, or a name on the hub."""
    revision: str = ""
    """Commit of a model on the hub, which is required there: 40 hexadecimal digits."""

    @model_validator(mode="after")
    def _is_pinned(self) -> Self:
        check_pinned("model", self.model, self.revision)
        return self

    @property
    def name(self) -> str:
        """``model`` or ``model@revision``; a folder's whole path."""
        if Path(self.model).is_dir():
            return str(Path(self.model).resolve())
        return f"{self.model}@{self.revision}"


class PreparedModel(Settings):
    """A base model in a folder, with the problem sets that were cut by its pass rates."""

    name: Name
    """Its name in the tables."""
    folder: str
    """Folder with ``base/``, the model, and ``SET.parquet`` and ``base.json`` of its problem sets, as the stage
    ``prepare`` writes them."""


class PreparedConfig(Settings):
    """Base models that were prepared before: draws of one population, which differ in their weights alone."""

    models: Annotated[tuple[PreparedModel, ...], Field(min_length=1, strict=False)]
    """The models; every cell is trained from each of them."""
    others: str = ""
    """File of what the same sweep found from other base models, which ``repro`` prints at its end; empty for none."""

    @model_validator(mode="after")
    def _names_differ(self) -> Self:
        names = [model.name for model in self.models]
        for name in names:
            if names.count(name) > 1:
                raise SettingError("models", f"has two models of the name {name!r}")
        return self
