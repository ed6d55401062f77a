"""Well-known problem sets by name: dataset, commit, columns and rule."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..contract.files import reason_of
from ..errors import RolloutError, library
from .sources import HubSource


@dataclass(frozen=True, slots=True, kw_only=True)
class SetSource(HubSource):
    """A named set.

    Attributes:
        origin: Name of the dataset on the hub, also if a folder holds a copy.
        answer_after: The answer follows this text in its column, as in GSM8K's worked solutions; empty: the whole
            column.
        answer_without: Characters removed from the answer, such as thousands separators.
        whole: Whether all problems are used, all for validation, regardless of ``train`` and ``validation``.
    """

    title: str
    origin: str = ""
    answer_after: str = ""
    answer_without: str = ""
    whole: bool = True

    @property
    def name(self) -> str:
        """Name of the source in the table; for a copy, the name of its dataset and not of its folder."""
        return f"hub:{self.origin}@copy" if self.origin else f"hub:{self.dataset}@{self.revision}"

    @property
    def key(self) -> str:
        """The dataset, from the hub or a copy, at any revision; problem ids depend on it."""
        return f"hub:{self.origin or self.dataset}"

    def answer_in(self, text: str) -> str:
        """Return the reference answer from its column, or an empty text if the mark before it is missing."""
        if self.answer_after:
            text = text.rpartition(self.answer_after)[2] if self.answer_after in text else ""
        return text.translate(dict.fromkeys(map(ord, self.answer_without))).strip()


_MATH_500 = SetSource(
    title="MATH-500",
    dataset="HuggingFaceH4/MATH-500",
    revision="6e4ed1a2a79af7d8630a6b768ec859cb5af4d3be",
    files="test.jsonl",
    split="test",
    prompt="problem",
    answer="answer",
)
_GSM8K = SetSource(
    title="GSM8K",
    dataset="openai/gsm8k",
    revision="740312add88f781978c0658806c59bc2815b9866",
    files="main/test-*.parquet",
    split="test",
    prompt="question",
    answer="answer",
    answer_after="####",
    answer_without=",",
)
_SETS = (
    _MATH_500,
    replace(
        _MATH_500,
        title="AIME-2024",
        dataset="HuggingFaceH4/aime_2024",
        revision="2fe88a2f1091d5048c0f36abc874fb997b3dd99a",
        files="data/train-*.parquet",
        split="train",
    ),
    replace(
        _MATH_500, title="AIME-2025", dataset="math-ai/aime25", revision="563bb8404243c5f09de6ec262f2db674fe5bce9b"
    ),
    _GSM8K,
    replace(_GSM8K, title="GSM8K-train", files="main/train-*.parquet", split="train", whole=False),
    SetSource(
        title="Guru-Math",
        dataset="LLM360/guru-RL-92k",
        files="train/math__combined_54.4k.parquet",
        revision="2e2790a962a3c099bfb5ea61389cbf98a5ea439b",
        whole=False,
    ),
)
NAMED: Mapping[str, SetSource] = {source.title: source for source in _SETS}
"""The sets: evaluation sets are whole, training sets use ``train`` and ``validation``."""


def named_set(
    name: str,
    *,
    folder: str | None = None,
    revision: str | None = None,
    train: int | None = None,
    validation: int | None = None,
) -> SetSource:
    """Return the source of a named set.

    Args:
        name: Its name in ``NAMED``, in upper or lower case.
        folder: A copy of its dataset with the same files, instead of the hub.
        revision: Another commit, branch or tag of the dataset; a branch or tag is resolved to its current commit.
        train: Number of training problems, for a training set; likewise ``validation``.
    """
    source = {title.lower(): source for title, source in NAMED.items()}.get(name.lower())
    if source is None:
        raise RolloutError(f"there is no set called {name!r}; there are {', '.join(NAMED)}")
    given = {"train": train, "validation": validation}
    sides: dict[str, Any] = {side: count for side, count in given.items() if count is not None}
    if source.whole and sides:
        raise RolloutError(
            f"the set {source.title} is taken whole; only a training set can be cut to a number of problems"
        )
    source = replace(source, **sides)
    if folder is not None:
        if revision is not None:
            raise RolloutError("--folder and --revision contradict each other; a folder has no revisions")
        if not Path(folder).is_dir():
            raise RolloutError(f"{folder}: no such folder; a copy of {source.dataset} is needed there")
        return replace(source, dataset=str(folder), origin=source.dataset, revision="")
    if revision is None or re.fullmatch("[0-9a-f]{40}", revision):
        return replace(source, revision=revision or source.revision)
    hub = library("huggingface_hub", extra="hub")
    try:
        commit = str(hub.HfApi().dataset_info(source.dataset, revision=revision, timeout=10).sha)
    except Exception as error:
        raise RolloutError(
            f"the hub does not say which commit of {source.dataset} {revision} is "
            f"({reason_of(error)}); give a commit, or a copy with --folder"
        ) from None
    return replace(source, revision=commit)
