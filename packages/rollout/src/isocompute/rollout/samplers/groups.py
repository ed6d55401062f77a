"""Responses on their way into the ``rollouts`` table: a group that is complete becomes one Arrow batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ..scoring.scorer import Verdict
from .sampling import Draw, Response


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """All responses to one problem.

    Attributes:
        row: Index of the problem.
    """

    row: int
    problem_id: str
    prompt_ids: list[int]
    responses: Sequence[Response]
    texts: Sequence[str]


class Layout:
    """Which columns a sampler's batches have, and how they are made: no Python object per token.

    Args:
        keep_text: Whether there is a column ``text``.
        sampled: Whether there is a column ``sampled``.
        retokenized: Whether there is a column ``retokenized``.
    """

    def __init__(self, *, keep_text: bool = False, sampled: bool = False, retokenized: bool = False) -> None:
        self._optional = {"text": keep_text, "sampled": sampled, "retokenized": retokenized}
        types: dict[str, Any] = {
            "run_id": pa.large_string(), "step": pa.int64(), "phase": pa.large_string(),
            "problem_id": pa.large_string(), "sample": pa.int32(),
            "prompt_ids": pa.large_list(pa.int32()), "response_ids": pa.large_list(pa.int32()),
            "logprobs": pa.large_list(pa.float32()), "reward": pa.float32(), "finish_reason": pa.large_string(),
            "weights_version": pa.int64(), "score_error": pa.large_string(), "failure": pa.large_string(),
            "text": pa.large_string(), "sampled": pa.large_list(pa.bool_()), "retokenized": pa.bool_(),
        }  # fmt: skip
        self.schema = pa.schema([(name, kind) for name, kind in types.items() if self._optional.get(name, True)])

    def batch(self, group: Group, verdicts: Sequence[Verdict], *, draw: Draw, version: int) -> pa.RecordBatch:
        """Return the rows of one group."""
        responses, rows = group.responses, len(group.responses)
        columns: dict[str, Any] = {
            "run_id": [draw.run_id] * rows,
            "step": [draw.step] * rows,
            "phase": [draw.phase] * rows,
            "problem_id": [group.problem_id] * rows,
            "sample": np.arange(draw.first_sample, draw.first_sample + rows, dtype=np.int32),
            "prompt_ids": _lists([np.asarray(group.prompt_ids, np.int32)] * rows, np.int32),
            "response_ids": _lists([r.ids for r in responses], np.int32),
            "logprobs": _lists([r.logprobs for r in responses], np.float32),
            "reward": [v.reward for v in verdicts],
            "finish_reason": [r.finish_reason for r in responses],
            "weights_version": [version] * rows,
            "score_error": [v.error for v in verdicts],
            "failure": [r.failure for r in responses],
            "text": list(group.texts),
            "sampled": _lists([_sampled(r) for r in responses], np.bool_) if self._optional["sampled"] else None,
            "retokenized": [r.retokenized for r in responses],
        }  # fmt: skip
        arrays = [
            columns[field.name]
            if isinstance(columns[field.name], pa.Array)
            else pa.array(columns[field.name], field.type)
            for field in self.schema
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)


def _sampled(response: Response) -> NDArray[np.bool_]:
    """For each token whether the policy sampled it."""
    return np.ones(len(response.ids), np.bool_) if response.sampled is None else response.sampled


def _lists(rows: Sequence[Any], dtype: Any) -> pa.Array:
    """A list column from offsets and values."""
    offsets = np.zeros(len(rows) + 1, dtype=np.int64)
    np.cumsum([len(r) for r in rows], out=offsets[1:])
    values = np.concatenate([np.asarray(r, dtype) for r in rows]) if rows else np.zeros(0, dtype)
    return pa.LargeListArray.from_arrays(pa.array(offsets), pa.array(values))
