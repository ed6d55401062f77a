"""Problems from a Hugging Face dataset, at a pinned revision."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..errors import RolloutError
from ..scoring import rules
from .named import SetSource
from .sources import Candidate, HubSource


def candidates(source: HubSource) -> Iterator[Candidate]:
    """Yield each row, in shuffled order.

    Raises:
        RolloutError: ``datasets`` is not installed, the revision is missing, the dataset cannot be loaded,
            or it lacks a column.
    """
    try:
        import datasets
    except ImportError:
        raise RolloutError('these problems need datasets: pip install "isocompute-rollout[hub]"') from None
    local = Path(source.dataset).is_dir()
    if not local and not source.revision:
        raise RolloutError(
            f"the dataset {source.dataset} has no revision: pin a commit, so that the problems stay the same"
        )
    try:
        data: Any = datasets.load_dataset(
            source.dataset,
            revision=None if local else source.revision,
            # By the split's name: a file that is given alone would become the split train.
            data_files={source.split: source.files} if source.files else None,
            split=source.split,
        )
    except Exception as error:
        lines = str(error).strip().splitlines()
        reason = lines[0] if lines else type(error).__name__
        raise RolloutError(f"the dataset {source.dataset} cannot be loaded ({reason}){_help(source)}") from None
    for row in data.shuffle(seed=source.seed):
        prompt, answer = reach(row, source.prompt, source.name), reach(row, source.answer, source.name)
        besides = reach(row, source.metadata, source.name) if source.metadata else None
        yield Candidate(
            prompt=last_user_message(prompt),
            answer=_answer(str(answer), source),
            verifier=source.verifier,
            metadata=rules.from_column(besides, where=source.name),
        )


def _help(source: HubSource) -> str:
    """Return advice for somebody without the hub."""
    if not isinstance(source, SetSource) or source.origin:
        return ""
    return f": where the hub cannot be reached, give a copy with --folder (it needs {source.files})"


def _answer(text: str, source: HubSource) -> str:
    """Return the reference answer in its column."""
    if not isinstance(source, SetSource):
        return text
    if source.answer_after:
        # Without the marker there is no answer, and the problem is dropped.
        text = text.rpartition(source.answer_after)[2] if source.answer_after in text else ""
    return text.translate(dict.fromkeys(map(ord, source.answer_without))).strip()


def reach(row: Any, column: str, where: str) -> Any:
    """Follow a dotted column name into a row.

    Args:
        column: A column, or a path into nested ones such as ``reward_model.ground_truth``.

    Raises:
        RolloutError: There is no such column.
    """
    value = row
    for part in column.split("."):
        if not isinstance(value, dict) or part not in value:
            raise RolloutError(f"{where} has no column {column} (a row has {', '.join(row)})")
        value = value[part]
    return value


def last_user_message(prompt: Any) -> str:
    """Return the text of a prompt: the prompt itself, or the last user message of a list of chat messages.

    Args:
        prompt: A text, or messages with ``role`` and ``content``.
    """
    if isinstance(prompt, list):
        return str([m["content"] for m in prompt if m["role"] == "user"][-1])
    return str(prompt)
