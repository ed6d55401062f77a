"""Reads rows of a dataset or a user's file as problems: prompts that may be chats, and answers of any type."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from datetime import date, time
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from ..contract.documents import DocumentError, parsed
from ..contract.files import reason_of
from ..errors import RolloutError, library
from ..scoring import rules
from .named import SetSource
from .sources import Candidate, HubSource, LocalSource

ROLES: Mapping[str, str] = {
    **dict.fromkeys(("system", "developer"), "system"),
    **dict.fromkeys(("user", "human"), "user"),
    **dict.fromkeys(("assistant", "gpt", "chatgpt", "bot", "model"), "assistant"),
    **dict.fromkeys(("tool", "function", "observation"), "tool"),
}
"""Roles of messages, and what they mean."""
EXAMPLE = '{"prompt": "1+1=", "answer": "2"}'
KEYS = (("role", "content"), ("from", "value"))
"""Keys of a message's role and text: those of chat templates, and ShareGPT's."""
MORE = ("tool_calls", "function_call", "image", "images", "audio", "audios", "video", "videos")
"""Keys of a message with content besides its text."""
TEXT_PARTS = ("text", "input_text")
SHOWN = 6
"""Most roles that an error message names."""


def of_file(source: LocalSource) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield each row of a file with its number, in shuffled order."""
    path = Path(source.path)
    if not path.is_file():
        raise RolloutError(f"{path}: no such file of problems")
    if path.suffix not in {".jsonl", ".parquet"}:
        raise RolloutError(f"{path}: problems are read from a .jsonl or a .parquet file")
    if path.suffix == ".jsonl":
        rows = [row for _, row in lines_of(path)]
        used = used_columns(source, list(dict.fromkeys(name for row in rows for name in row)), where=str(path))
    else:
        try:
            frame = pl.read_parquet(path)
        except (pl.exceptions.PolarsError, OSError) as error:
            raise RolloutError(f"{path}: not readable as parquet ({reason_of(error)})") from None
        used = used_columns(source, frame.columns, where=str(path))
        rows = frame.select(used).to_dicts()
    order = pl.int_range(len(rows), eager=True).sample(fraction=1.0, shuffle=True, seed=source.seed)
    # A JSON row without a column has null there.
    yield from ((number + 1, dict.fromkeys(used) | rows[number]) for number in order.to_list())


def of_hub(source: HubSource) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield each row with its number, in shuffled order."""
    datasets = library("datasets", extra="hub")
    local = Path(source.dataset).is_dir()
    if not local and not source.revision:
        raise RolloutError(
            f"the dataset {source.dataset} has no revision: pin a commit, so that the problems stay the same"
        )
    try:
        data: Any = datasets.load_dataset(
            source.dataset,
            revision=None if local else source.revision,
            # By the split's name, since a file given alone would become the split train.
            data_files={source.split: source.files} if source.files else None,
            split=source.split,
        )
    except Exception as error:
        advice = ""
        if isinstance(source, SetSource) and not source.origin:
            advice = f": where the hub cannot be reached, give a copy with --folder (it needs {source.files})"
        raise RolloutError(f"the dataset {source.dataset} cannot be loaded ({reason_of(error)}){advice}") from None
    used = used_columns(source, data.column_names, where=source.name)
    order = np.random.default_rng(source.seed).permutation(len(data))
    held = data.select(order).select_columns(used)
    yield from ((int(number) + 1, row) for number, row in zip(order, held, strict=True))


def used_columns(source: HubSource | LocalSource, columns: Sequence[str], *, where: str) -> list[str]:
    """Return the columns that problems use; others may hold types that cannot be read here, such as images."""
    used = []
    for path in filter(None, (source.prompt, source.answer, source.metadata)):
        column = path if path in columns else path.partition(".")[0]
        if column not in columns:
            raise RolloutError(
                f"{where}: there is no column {path} (it has {', '.join(columns) or f'no row, such as {EXAMPLE}'})"
            )
        used.append(column)
    return list(dict.fromkeys(used))


def lines_of(path: Path) -> list[tuple[int, dict[str, Any]]]:
    """Return the objects in a .jsonl file, each with the number of its line."""
    rows = []
    try:
        with path.open(encoding="utf-8-sig") as lines:
            for number, line in enumerate(lines, 1):
                if not line.strip():
                    continue
                try:
                    row = parsed(line, "json")
                    if not isinstance(row, dict):
                        raise DocumentError("no JSON object")
                except DocumentError as error:
                    raise RolloutError(f"{path}: line {number}: {error}; each line must be like {EXAMPLE}") from None
                rows.append((number, row))
    except (UnicodeDecodeError, OSError) as error:
        raise RolloutError(f"{path}: not readable as jsonl ({reason_of(error)})") from None
    return rows


def candidate(row: Mapping[str, Any], source: HubSource | LocalSource, *, where: str) -> Candidate:
    """Return the problem of a row, with a ``fault`` if its answer is unusable."""
    prompt = prompt_text(reach(row, source.prompt, where), where=where)
    answer, fault = answer_text(reach(row, source.answer, where), source.verifier)
    if isinstance(source, SetSource):
        answer = source.answer_in(answer)
    besides = reach(row, source.metadata, where) if source.metadata else None
    metadata = rules.from_column(besides, where=source.name)
    try:
        (prompt + answer + metadata).encode()
    except UnicodeEncodeError as error:
        half = error.object[error.start]
        raise RolloutError(f"{where} holds {half!r}, half of a character; its texts must be Unicode") from None
    return Candidate(prompt=prompt, answer=answer, verifier=source.verifier, metadata=metadata, fault=fault)


def reach(row: Mapping[str, Any], column: str, where: str) -> Any:
    """Return the value of a column, or of a path into nested ones; None also if a parent is null."""
    if column in row:
        return row[column]
    value: Any = row
    for part in column.split("."):
        if value is None:
            return None
        if not isinstance(value, Mapping) or part not in value:
            raise RolloutError(f"{where} has no column {column} (it has {', '.join(map(str, row))})")
        value = value[part]
    return value


def prompt_text(value: Any, *, where: str) -> str:
    """Return a prompt as text: the value itself, or the system and user message of a chat."""
    if isinstance(value, Mapping):
        value = [value]
    if not isinstance(value, list):
        text = _scalar(value)
        if text is None or not text.strip():
            what = "no prompt" if _missing(value) or text is not None else f"a prompt of type {type(value).__name__}"
            raise RolloutError(f"{where} has {what}; it must have a text, or chat messages")
        return text
    turns = [_turn(message, f"{where}: message {number} of the prompt") for number, message in enumerate(value, 1)]
    roles = [role for role, _ in turns]
    if roles not in (["user"], ["system", "user"]):
        said = ", ".join(roles[:SHOWN]) + (", …" if len(roles) > SHOWN else "")
        raise RolloutError(
            f"{where} has a chat as its prompt whose messages are from {said or 'nobody'}; a problem is a text, and "
            "a chat must be one message of the user, with a system message before it or without: write earlier turns "
            "into that message, or name a column that holds the question alone"
        )
    return "\n\n".join(text for _, text in turns)


def _turn(message: Any, where: str) -> tuple[str, str]:
    message = {key: held for key, held in message.items() if held is not None} if isinstance(message, Mapping) else {}
    pairs = [pair for pair in KEYS if message.keys() >= set(pair)]
    if len(pairs) != 1 or any(message.get(key) for key in MORE):
        more = ", ".join(key for key in MORE if message.get(key))
        what = f"also has {more}" if pairs and more else "is not a role with a text"
        raise RolloutError(f"{where} {what}; it must have role and content (or from and value), both texts")
    role, content = (message[key] for key in pairs[0])
    meant = ROLES.get(role.lower()) if isinstance(role, str) else None
    if meant is None:
        raise RolloutError(f"{where} has the role {_shown(role)}; it must be one of {', '.join(ROLES)}")
    text = "\n".join(_part(part, where) for part in content) if isinstance(content, list) else content
    if not isinstance(text, str) or not text.strip():
        raise RolloutError(f"{where} has no text; its {pairs[0][1]} must be one, or a list of parts of type text")
    return meant, text


def _part(part: Any, where: str) -> str:
    if isinstance(part, str):
        return part
    held = {key: each for key, each in part.items() if each is not None} if isinstance(part, Mapping) else {}
    if held.get("type", "text") in TEXT_PARTS and isinstance(held.get("text"), str) and held.keys() <= {"type", "text"}:
        return str(held["text"])
    kind = held.get("type", type(part).__name__)
    raise RolloutError(f"{where} has a part of type {_shown(kind)}; a prompt is a text, so its parts must be texts")


def answer_text(value: Any, verifier: str) -> tuple[str, str]:
    """Return the text of a reference answer, and why a rule cannot use it.

    Rules that read JSON (``runs`` and user functions) get a list or a struct as JSON. For other rules a list of one
    value is that value.
    """
    if _missing(value):
        return "", MISSING
    if isinstance(value, list) and len(value) == 1 and _scalar(value[0]) is not None and not _reads_json(verifier):
        value = value[0]
    text = _scalar(value)
    if text is not None:
        return text, ""
    nested = isinstance(value, list | Mapping)
    kind = "struct" if isinstance(value, Mapping) else type(value).__name__
    fault = "" if nested and _reads_json(verifier) else f"its answer is no text, but a {kind}"
    return rules.encode_metadata(value) if nested else "", fault


MISSING = "it has no answer (null)"
"""Fault of a problem without an answer; it says nothing about the rule that scores the others."""


def _reads_json(verifier: str) -> bool:
    base = rules.rule(verifier).base
    return base == "runs" or base.startswith("python:")


def _missing(value: Any) -> bool:
    return value is None or (isinstance(value, float) and math.isnan(value))


def _scalar(value: Any) -> str | None:
    """Return a single value as text; None for anything else, whose text would be Python's."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, int | float | Decimal | date | time) and not _missing(value) else None


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}…"
