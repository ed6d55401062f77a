"""The ``rollouts`` table, built column by column: no Python object per row and column."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa

from .sampling import Draw, Request, Response


def rollouts_table(
    problem_ids: Sequence[str],
    requests: Sequence[Request],
    responses: Sequence[Response],
    rewards: Sequence[float],
    *,
    draw: Draw,
    version: int,
) -> pl.DataFrame:
    """Return the ``rollouts`` table of one draw.

    Args:
        problem_ids: The P problems, sorted.
        requests: P · samples requests, by problem and sample.
        responses: Their responses.
        rewards: Their rewards, 0 or 1.
        draw: What was asked for.
        version: Policy version that sampled.
    """
    rows = len(responses)
    indices = np.arange(draw.first_sample, draw.first_sample + draw.samples, dtype=np.int32)
    return pl.DataFrame(
        {
            "run_id": pl.repeat(draw.run_id, rows, dtype=pl.String, eager=True),
            "step": pl.repeat(draw.step, rows, dtype=pl.Int64, eager=True),
            "phase": pl.repeat(draw.phase, rows, dtype=pl.String, eager=True),
            "problem_id": pl.Series(np.repeat(np.array(problem_ids, dtype=object), draw.samples), dtype=pl.String),
            "sample": pl.Series(np.tile(indices, len(problem_ids))),
            "prompt_ids": _lists([r.prompt_ids for r in requests], np.int32),
            "response_ids": _lists([r.ids for r in responses], np.int32),
            "logprobs": _lists([r.logprobs for r in responses], np.float32),
            "reward": pl.Series(rewards, dtype=pl.Float32),
            "finish_reason": pl.Series([r.finish_reason for r in responses], dtype=pl.String),
            "weights_version": pl.repeat(version, rows, dtype=pl.Int64, eager=True),
        }
    )


def _lists(rows: list[Any], dtype: Any) -> pl.Series:
    """A list column from offsets and values."""
    offsets = np.zeros(len(rows) + 1, dtype=np.int64)
    np.cumsum([len(r) for r in rows], out=offsets[1:])
    values = np.fromiter((v for r in rows for v in r), dtype=dtype, count=int(offsets[-1]))
    array = pa.LargeListArray.from_arrays(pa.array(offsets), pa.array(values))
    return pl.Series(pl.from_arrow(array))
