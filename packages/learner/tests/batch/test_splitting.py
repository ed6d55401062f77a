"""Shares of ranks: all responses, in order, of nearly equal cost."""

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from isocompute.learner.batch.packing import shares

GROUPS = st.lists(st.tuples(st.integers(1, 9), st.lists(st.integers(1, 30), min_size=1, max_size=6)), max_size=8)


def table(groups: list[tuple[int, list[int]]]) -> pl.DataFrame:
    rows = [
        {"problem_id": f"p{g}", "prompt_ids": [0] * prompt, "response_ids": [0] * length}
        for g, (prompt, lengths) in enumerate(groups)
        for length in lengths
    ]
    schema = {"problem_id": pl.String, "prompt_ids": pl.List(pl.Int32), "response_ids": pl.List(pl.Int32)}
    return pl.DataFrame(rows, schema=schema)


def cost(share: pl.DataFrame) -> int:
    """Tokens that pass through the model: each prompt once, each response without its last token."""
    prompts = share.group_by("problem_id").agg(pl.col("prompt_ids").first().list.len())["prompt_ids"].sum()
    return int(prompts) + int(share["response_ids"].list.len().sum()) - len(share)


@pytest.mark.slow
@given(GROUPS, st.integers(1, 4))
def test_every_response_is_in_one_share(groups: list[tuple[int, list[int]]], ranks: int) -> None:
    batch = table(groups)
    found = shares(batch, ranks)
    assert len(found) == ranks
    assert pl.concat(found).equals(batch)


@pytest.mark.slow
@given(GROUPS, st.integers(2, 4))
def test_no_share_costs_more_than_the_mean_by_more_than_a_response_and_its_prompt(
    groups: list[tuple[int, list[int]]], ranks: int
) -> None:
    batch = table(groups)
    largest = max((prompt + length for prompt, lengths in groups for length in lengths), default=0)
    prompt = max((prompt for prompt, _ in groups), default=0)
    for share in shares(batch, ranks):
        assert cost(share) <= cost(batch) / ranks + largest + prompt


def test_responses_that_cost_nothing_do_not_count() -> None:
    batch = table([(2, [20, 20]), (2, [20, 20]), (2, [20, 20]), (2, [20, 20])])
    free = np.array([True] * 4 + [False] * 4)
    first, second = shares(batch, 2, free=free)
    assert (len(first), len(second)) == (6, 2)
