"""Tables of rollouts that commands read."""

from collections.abc import Iterable, Mapping

import polars as pl


def rollouts(
    problems: Iterable[str], *, samples: int = 4, phase: str = "eval", run: str = "r", aborted: int = 0
) -> pl.DataFrame:
    """Rollouts of one run: a mapping says how many of a problem's responses are right, otherwise every second is.

    Args:
        aborted: Responses that the first problem lacks.
    """
    rights = problems if isinstance(problems, Mapping) else dict.fromkeys(problems)
    rows = [
        (name, i, float(i % 2 if right is None else i < right))
        for name, right in rights.items()
        for i in range(samples)
    ]
    frame = pl.DataFrame(rows, schema=["problem_id", "sample", "reward"], orient="row").with_columns(
        run_id=pl.lit(run),
        step=0,
        phase=pl.lit(phase),
        prompt_ids=[1],
        response_ids=[1],
        logprobs=[0.0],
        weights_version=0,
    )
    lost = (pl.col("problem_id") == next(iter(rights))) & (pl.col("sample") >= samples - aborted)
    return frame.with_columns(
        finish_reason=pl.when(lost).then(pl.lit("aborted")).otherwise(pl.lit("stop")),
        failure=pl.when(lost).then(pl.lit("HTTP 500")),
    )
