"""Problem sources as configuration, and a problem on its way into a table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from hashlib import blake2b
from typing import Any

from ..errors import RolloutError


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A problem before it has a place in a table.

    Attributes:
        metadata: Text for its rule (``scoring.rules.encode_metadata``), or nothing.
        fault: Why it cannot be a problem, as read; empty where it may be one.
    """

    prompt: str
    answer: str
    verifier: str
    metadata: str = ""
    fault: str = ""

    @property
    def key(self) -> str:
        """The prompt up to case and white space, which two prompts of one problem share."""
        return _normalised(self.prompt)


def problem_id(source: str, prompt: str) -> str:
    """Return the hash of a problem: of its source and its prompt up to case and white space.

    Args:
        source: Name of the source in the table; for a set known by name, that of its dataset without the revision.

    Returns:
        16 hexadecimal digits.
    """
    key = f"{source}\n{_normalised(prompt)}".encode()
    return blake2b(key, digest_size=8).hexdigest()


def _normalised(prompt: str) -> str:
    return " ".join(prompt.lower().split())


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasoningGymSource:
    """A reasoning-gym task, through the library's own generator and scorer.

    Attributes:
        task: Name of the task, such as ``chain_sum``.
        settings: The task's own settings, such as ``min_terms``.
        digits: For ``chain_sum``: the only digits kept; empty keeps all.
        train: Training problems.
        validation: Validation problems.
        seed: The generator's seed.
    """

    task: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    digits: str = ""
    train: int = 1000
    validation: int = 300
    seed: int = 0

    @property
    def name(self) -> str:
        """Name of the source in the table."""
        return f"reasoning_gym:{self.task}"


@dataclass(frozen=True, slots=True, kw_only=True)
class HubSource:
    """A Hugging Face dataset at a pinned revision, in the layout of Guru-Math or with named columns.

    Attributes:
        dataset: Name on the hub, or a folder.
        revision: Commit of the dataset; required for a name on the hub.
        files: Only files of this pattern, such as ``train/math*.parquet``; empty takes the dataset as it is.
        split: Name of the split that is read.
        prompt: Column of prompts: a text, or a chat of one user message, after a system message or without.
        answer: Column of answers; dots reach into structs (``reward_model.ground_truth``).
        verifier: Rule for the reward.
        metadata: Column of metadata for a rule of your own: a struct, or the JSON text of a mapping; empty for none.
        train: Training problems.
        validation: Validation problems.
        seed: Seed of the shuffle before the split.
    """

    dataset: str
    revision: str = ""
    files: str = ""
    split: str = "train"
    prompt: str = "prompt"
    answer: str = "reward_model.ground_truth"
    verifier: str = "math"
    metadata: str = ""
    train: int = 6000
    validation: int = 300
    seed: int = 0

    @property
    def name(self) -> str:
        """Name of the source in the table."""
        return f"hub:{self.dataset}@{self.revision}" if self.revision else f"hub:{self.dataset}"


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalSource:
    """The user's own JSONL or Parquet file.

    Attributes:
        path: The file.
        prompt: Column of prompts: a text, or a chat of one user message, after a system message or without.
        answer: Column of answers; dots reach into structs.
        verifier: Rule for the reward.
        metadata: Column of metadata for a rule of your own: a struct, or the JSON text of a mapping; empty for none.
        train: Training problems.
        validation: Validation problems.
        seed: Seed of the shuffle before the split.
    """

    path: str
    prompt: str = "prompt"
    answer: str = "answer"
    verifier: str = "exact"
    metadata: str = ""
    train: int = 1000
    validation: int = 300
    seed: int = 0

    @property
    def name(self) -> str:
        """Name of the source in the table: the file's name without its folder."""
        return "file:" + self.path.replace("\\", "/").rpartition("/")[2]


Source = ReasoningGymSource | HubSource | LocalSource
"""Any of the three."""
KINDS: dict[str, type[Source]] = {"reasoning_gym": ReasoningGymSource, "hub": HubSource, "file": LocalSource}


def source_from(settings: Mapping[str, Any]) -> Source:
    """Make a source from plain settings such as ``{"kind": "file", "path": "p.jsonl"}``.

    Args:
        settings: ``kind`` (``reasoning_gym``, ``hub`` or ``file``) and fields of that kind's class.

    Raises:
        RolloutError: The kind or a key is unknown, or a required key is missing.
    """
    rest = dict(settings)
    kind = rest.pop("kind", None)
    if kind not in KINDS:
        raise RolloutError(f"kind of problems is {kind!r}; it must be one of {', '.join(KINDS)}")
    known = {f.name for f in fields(KINDS[kind])}
    unknown = sorted(set(rest) - known)
    if unknown:
        raise RolloutError(f"problems of kind {kind} have no setting {unknown[0]}; they have {sorted(known)}")
    try:
        return KINDS[kind](**rest)
    except TypeError as error:
        raise RolloutError(f"problems of kind {kind}: {str(error).rpartition(') ')[2]}") from None
