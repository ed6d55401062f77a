"""Settings of problem sources, and candidate problems."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, Literal

from ..contract.settings import Whole, made_of, settings
from ..errors import RolloutError
from ..scoring.rules import check_task


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A problem that is not yet in a table.

    Attributes:
        metadata: Text for its rule (``scoring.rules.encode_metadata``), or empty.
        fault: Why it cannot be used, as read; empty if it may be.
    """

    prompt: str
    answer: str
    verifier: str
    metadata: str = ""
    fault: str = ""

    @property
    def key(self) -> str:
        """The prompt up to case and white space; it identifies the problem."""
        return normalised(self.prompt)


def problem_id(source: str, prompt: str) -> str:
    """Return a problem's id: 16 digits of a hash of its source and its prompt up to case and white space.

    For a named set, the source is its dataset without the revision.
    """
    key = f"{source}\n{normalised(prompt)}".encode()
    return blake2b(key, digest_size=8).hexdigest()


def normalised(prompt: str) -> str:
    """Normalise a prompt's case and white space."""
    return " ".join(prompt.lower().split())


@settings(RolloutError)
class ReasoningGymSource:
    """A reasoning-gym task, through the library's own generator and scorer."""

    kind: Literal["reasoning_gym"] = "reasoning_gym"
    """A task of reasoning-gym."""
    task: str
    """Name of the task, such as ``chain_sum``."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """The task's own settings, such as ``min_terms``."""
    digits: str = ""
    """For ``chain_sum``: the only digits kept; empty keeps all."""
    train: Whole = 1000
    """Training problems."""
    validation: Whole = 300
    """Validation problems."""
    seed: int = 0
    """The generator's seed."""

    def __post_init__(self) -> None:
        check_task(self.task)
        _check_counts(self)

    @property
    def name(self) -> str:
        """Name of the source in the table."""
        return f"reasoning_gym:{self.task}"


@settings(RolloutError)
class HubSource:
    """A Hugging Face dataset at a pinned revision, in the layout of Guru-Math or with named columns."""

    kind: Literal["hub"] = "hub"
    """A dataset of the hub, or a folder with one."""
    dataset: str
    """Name on the hub, or a folder."""
    revision: str = ""
    """Commit of the dataset; required for a name on the hub."""
    files: str = ""
    """Only files of this pattern, such as ``train/math*.parquet``; empty takes the dataset as it is."""
    split: str = "train"
    """Name of the split that is read."""
    prompt: str = "prompt"
    """Column of prompts: a text, or a chat of one user message, after a system message or without."""
    answer: str = "reward_model.ground_truth"
    """Column of answers; dots reach into structs (``reward_model.ground_truth``)."""
    verifier: str = "math"
    """Rule for the reward."""
    metadata: str = ""
    """Column of metadata for a rule of your own: a struct, or the JSON text of a mapping; empty for none."""
    train: Whole = 6000
    """Training problems."""
    validation: Whole = 300
    """Validation problems."""
    seed: int = 0
    """Seed of the shuffle before the split."""

    def __post_init__(self) -> None:
        _check_counts(self)

    @property
    def name(self) -> str:
        """Name of the source in the table."""
        return f"hub:{self.dataset}@{self.revision}" if self.revision else f"hub:{self.dataset}"


@settings(RolloutError)
class LocalSource:
    """The user's own JSONL or Parquet file."""

    kind: Literal["file"] = "file"
    """A user's own file."""
    path: str
    """The file."""
    prompt: str = "prompt"
    """Column of prompts: a text, or a chat of one user message, after a system message or without."""
    answer: str = "answer"
    """Column of answers; dots reach into structs."""
    verifier: str = "exact"
    """Rule for the reward."""
    metadata: str = ""
    """Column of metadata for a rule of your own: a struct, or the JSON text of a mapping; empty for none."""
    train: Whole = 1000
    """Training problems."""
    validation: Whole = 300
    """Validation problems."""
    seed: int = 0
    """Seed of the shuffle before the split."""

    def __post_init__(self) -> None:
        _check_counts(self)

    @property
    def name(self) -> str:
        """Name of the source in the table: the file's name without its folder."""
        return "file:" + self.path.replace("\\", "/").rpartition("/")[2]


def _check_counts(source: ReasoningGymSource | HubSource | LocalSource) -> None:
    if source.train + source.validation == 0:
        raise RolloutError("train and validation are 0: no problems are asked for, and at least 1 is needed")


Source = ReasoningGymSource | HubSource | LocalSource
"""Any of the three kinds of source."""
KINDS: dict[str, type[Source]] = {"reasoning_gym": ReasoningGymSource, "hub": HubSource, "file": LocalSource}


def source_from(plain: Mapping[str, Any]) -> Source:
    """Make a source from plain settings such as ``{"kind": "file", "path": "p.jsonl"}``."""
    kind = plain.get("kind")
    if kind not in KINDS:
        raise RolloutError(f"kind of problems is {kind!r}; it must be one of {', '.join(KINDS)}")
    return made_of(KINDS[kind], plain, RolloutError, "problems")
