"""Problem sources as configuration, and the ``problems`` table made from one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from hashlib import blake2b
from typing import Any

import polars as pl

from .. import tables
from ..errors import RolloutError


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
        revision: Commit of the dataset; needed for a name on the hub.
        files: Only these of its files, such as ``train/math*.parquet``; empty takes the dataset as it is.
        split: Which of its splits.
        prompt: Column of prompts: a text, or chat messages, whose last user message is taken.
        answer: Column of answers; dots reach into structs (``reward_model.ground_truth``).
        verifier: Rule for the reward.
        train: Training problems.
        validation: Validation problems.
        seed: Shuffles before the split.
    """

    dataset: str
    revision: str = ""
    files: str = ""
    split: str = "train"
    prompt: str = "prompt"
    answer: str = "reward_model.ground_truth"
    verifier: str = "math"
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
        prompt: Column of prompts.
        answer: Column of answers.
        verifier: Rule for the reward.
        train: Training problems.
        validation: Validation problems.
        seed: Shuffles before the split.
    """

    path: str
    prompt: str = "prompt"
    answer: str = "answer"
    verifier: str = "exact"
    train: int = 1000
    validation: int = 300
    seed: int = 0

    @property
    def name(self) -> str:
        """Name of the source in the table: the file's name, not where it lies."""
        return "file:" + self.path.replace("\\", "/").rpartition("/")[2]


Source = ReasoningGymSource | HubSource | LocalSource
KINDS: dict[str, type[Source]] = {
    "reasoning_gym": ReasoningGymSource,
    "hub": HubSource,
    "file": LocalSource,
}


def source_from(settings: Mapping[str, Any]) -> Source:
    """Make a source from plain settings such as ``{"kind": "file", "path": "p.jsonl"}``.

    Raises:
        RolloutError: The kind or a key is unknown, or a needed key is missing.
    """
    rest = dict(settings)
    kind = rest.pop("kind", None)
    if kind not in KINDS:
        raise RolloutError(f"kind of problems is {kind!r}; it has to be one of {', '.join(KINDS)}")
    known = {f.name for f in fields(KINDS[kind])}
    unknown = sorted(set(rest) - known)
    if unknown:
        raise RolloutError(f"problems of kind {kind} have no setting {unknown[0]}; they have {sorted(known)}")
    try:
        return KINDS[kind](**rest)
    except TypeError as error:
        raise RolloutError(f"problems of kind {kind}: {str(error).rpartition(') ')[2]}") from None


def load_problems(source: Source) -> pl.DataFrame:
    """Make the ``problems`` table: distinct prompts, the training side and the validation side disjoint.

    Two prompts are the same problem when they agree up to case and white space.

    Raises:
        RolloutError: The source cannot be read, or has too few distinct problems.
    """
    seen: dict[str, tuple[str, str, str]] = {}
    needed = source.train + source.validation
    for prompt, answer, rule in _pairs(source):
        seen.setdefault(" ".join(prompt.lower().split()), (prompt, answer, rule))
        if len(seen) == needed:
            break
    if len(seen) < needed:
        raise RolloutError(
            f"{source.name} has {len(seen)} distinct problems, and {source.train} training and "
            f"{source.validation} validation problems are asked for: ask for fewer, or widen the source"
        )
    rows = list(seen.values())
    frame = pl.DataFrame(
        {
            "problem_id": [problem_id(source.name, prompt) for prompt, _, _ in rows],
            "prompt": [prompt for prompt, _, _ in rows],
            "answer": [answer for _, answer, _ in rows],
            "verifier": [rule for _, _, rule in rows],
            "source": [source.name] * needed,
            "split": ["validation"] * source.validation + ["train"] * source.train,
        }
    )
    return tables.check(frame, "problems", where=source.name)


def problem_id(source: str, prompt: str) -> str:
    """Hash of a problem: the source and the prompt up to case and white space."""
    key = f"{source}\n{' '.join(prompt.lower().split())}".encode()
    return blake2b(key, digest_size=8).hexdigest()


def _pairs(source: Source) -> Iterator[tuple[str, str, str]]:
    """Prompt, answer and verifier of one candidate after another."""
    if isinstance(source, ReasoningGymSource):
        from .reasoning_gym import pairs as generated

        return generated(source)
    if isinstance(source, HubSource):
        from .hub import pairs as downloaded

        return downloaded(source)
    from .local import pairs as read

    return read(source)
