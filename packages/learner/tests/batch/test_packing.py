"""Nothing is lost or mixed up between a table, its shares and the tensors of its micro-batches."""

from collections.abc import Callable

import numpy as np
import polars as pl
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from isocompute.learner.batch.packing import MicroBatch, _gather, micro_batches, packed, padded, shares
from isocompute.learner.batch.responses import read
from isocompute.learner.config import ATTENDED
from isocompute.learner.errors import LearnerError
from isocompute.learner.objective.prepare import sampled_counts

TOKENS = st.lists(st.integers(0, 11), max_size=5)
PROMPTS = st.lists(st.integers(0, 3), min_size=1, max_size=3)
ROWS = st.lists(st.tuples(PROMPTS, TOKENS, st.floats(-2, 2, width=32)), min_size=1, max_size=9)
LAYOUTS = st.sampled_from([packed, padded])
Row = tuple[list[int], list[int], float]
Layout = Callable[..., MicroBatch]


def table(rows: list[Row]) -> pl.DataFrame:
    prompts, responses, advantages = zip(*rows, strict=True)
    return pl.DataFrame(
        {
            "problem_id": [f"p{i}" for i in range(len(rows))],
            "sample": [0] * len(rows),
            "prompt_ids": pl.Series(prompts, dtype=pl.List(pl.Int32)),
            "response_ids": pl.Series(responses, dtype=pl.List(pl.Int32)),
            "logprobs": pl.Series([[-0.5 * t for t in r] for r in responses], dtype=pl.List(pl.Float32)),
            "advantage": pl.Series(advantages, dtype=pl.Float64),
            "loss_weight": pl.Series([1.0 + i for i in range(len(rows))]),
        }
    )


def batches(rows: pl.DataFrame, tokens: int, layout: Layout) -> list[MicroBatch]:
    responses = read(rows, vocabulary=12)
    pieces = micro_batches(responses, np.arange(len(responses)), tokens=tokens, share_prompts=layout is packed)
    return [layout(responses, piece, "cpu", torch.float32) for piece in pieces]


@pytest.mark.slow
@given(ROWS, st.integers(1, 40), LAYOUTS, st.data())
@settings(max_examples=60)
def test_every_sampled_token_is_predicted_from_the_one_before_and_others_are_context(
    rows: list[Row], tokens: int, layout: Layout, data: st.DataObject
) -> None:
    """And a micro-batch keeps to its tokens, unless one response has more; padding counts as no arithmetic."""
    given, marks = table(rows), [None] * len(rows)
    if data.draw(st.booleans()):
        marks = [data.draw(st.none() | st.lists(st.booleans(), min_size=len(r), max_size=len(r))) for _, r, _ in rows]
        given = given.with_columns(sampled=pl.Series(marks, dtype=pl.List(pl.Boolean)))
    wanted = [
        ((prompt + response)[len(prompt) + i - 1], token, -0.5 * token, advantage, 1.0 + row)
        for row, (prompt, response, advantage) in enumerate(rows)
        for i, token in enumerate(response)
        if marks[row] is None or marks[row][i]
    ]
    found = []
    for batch in batches(given, tokens, layout):
        before = batch.input_ids.flatten()[batch.predicts.index]
        columns = (before, batch.tokens, batch.sampler_logprobs, batch.advantages, batch.weights)
        found += zip(*(column.tolist() for column in columns), strict=True)
        assert batch.response.unique().tolist() == list(range(batch.responses))
        assert batch.input_ids.numel() <= tokens or batch.responses == 1
        assert batch.rows is None or attended(batch) <= ATTENDED * tokens or batch.responses == 1
        real = batch.position_ids if batch.attention_mask is None else batch.position_ids[batch.attention_mask.bool()]
        assert (batch.passed, batch.keys) == (real.numel(), int((real + 1).sum()))
    assert found == wanted
    assert int(sampled_counts(given).sum()) == len(wanted)


@pytest.mark.slow
@given(ROWS, st.integers(1, 40))
@settings(max_examples=60)
def test_a_packed_row_is_a_whole_response_behind_its_prompt(rows: list[Row], tokens: int) -> None:
    """At its places, in the order of its tokens; and each position of the sequence is taken from one of its rows."""
    wanted = sorted(prompt + response[:-1] for prompt, response, _ in rows if response)
    found = []
    for batch in batches(table(rows), tokens, packed):
        assert batch.rows is not None
        ids, places = batch.input_ids[0], batch.position_ids[0]
        seats = torch.cat([block.flatten() for block in batch.rows.blocks])
        assert torch.equal(seats[batch.rows.take], torch.arange(len(ids)))
        for block in batch.rows.blocks:
            for row in block:
                # Padding repeats position 0, which is the first one of a row only at its beginning.
                length = next((i for i in range(1, len(row)) if row[i] == 0), len(row))
                assert places[row[:length]].tolist() == list(range(length))
                found.append(ids[row[:length]].tolist())
    assert sorted(found) == wanted


@given(st.lists(st.tuples(st.integers(0, 4), st.booleans()), max_size=12), st.integers(0, 99))
def test_gradients_of_copies_are_added_up_row_by_row_in_their_order(copies: list[tuple[int, bool]], seed: int) -> None:
    torch.manual_seed(seed)
    index, counted = (np.array([copy[i] for copy in copies], dtype=kind) for i, kind in enumerate((int, bool)))
    tensor = torch.randn(5, 3, requires_grad=True)
    # As where what is left out has none.
    upstream = torch.randn(len(copies), 3) * torch.from_numpy(counted)[:, None]
    found = _gather(index, 5, "cpu", copies=counted)(tensor)
    assert torch.equal(found, tensor[index])
    found.backward(upstream)
    expected = torch.zeros_like(tensor)
    for row, gradient in zip(index, upstream, strict=True):
        expected[row] += gradient
    assert torch.equal(tensor.grad, expected)


def test_the_smallest_of_many_gradients_is_not_lost_in_bfloat16() -> None:
    """One is 1, and the others are each below half the distance from 1 to the next number."""
    tensor = torch.zeros(1, 4, dtype=torch.bfloat16, requires_grad=True)
    upstream = torch.full((64, 4), 0.003, dtype=torch.bfloat16)
    upstream[0] = 1
    _gather(np.zeros(64, dtype=int), 1, "cpu")(tensor).backward(upstream)
    assert torch.equal(tensor.grad, upstream.double().sum(0, keepdim=True).bfloat16())


def attended(batch: MicroBatch) -> int:
    """Tokens in the rows of attention, in which padding repeats position 0."""
    assert batch.rows is not None
    return sum(int((block > 0).sum() + (block[:, 0] == 0).sum()) for block in batch.rows.blocks)


def test_a_micro_batch_is_cut_where_padding_or_what_attention_sees_would_exceed_its_tokens() -> None:
    """By one long response before short ones; and by a long prompt before many short responses."""
    rows = table([([1, 2, 3], [4] * 1000, 0.0)] + [([1, 2, 3], [4] * 16, 0.0)] * 50)
    assert [tuple(batch.input_ids.shape) for batch in batches(rows, 2048, padded)] == [(2, 1002), (49, 18)]
    found = batches(table([([1] * 700, [4] * 8, 0.0)] * 128), 2048, packed)
    assert {batch.responses for batch in found} == {11, 7}
    assert max(attended(batch) for batch in found) == 11 * 707 <= ATTENDED * 2048


def test_a_groups_prompt_is_there_once_and_again_in_another_micro_batch() -> None:
    rows = table([([1, 2, 3], [4, 5], 0.0)] * 3 + [([7], [8, 9], 0.0)])
    whole = batches(rows, 99, packed)
    assert [batch.input_ids[0].tolist() for batch in whole] == [[1, 2, 3, 7, 4, 4, 4, 8]]
    cut = batches(rows, 5, packed)
    assert [batch.input_ids[0].tolist() for batch in cut] == [[1, 2, 3, 4, 4], [1, 2, 3, 4], [7, 8]]


def test_numbers_per_token_stay_with_their_tokens() -> None:
    rows = table([([1], [2, 3], 0.0), ([1], [4, 5, 6], 0.0)]).with_columns(
        sampled=pl.Series([[True, True], [True, False, True]]),
        old_logprobs=pl.Series([[-2.0, -3.0], [-4.0, -6.0]]),
        advantages=pl.Series([[0.2, 0.3], [0.4, 0.6]]),
    )
    (batch,) = batches(rows, 99, packed)
    assert batch.tokens.tolist() == [2, 3, 4, 6]
    assert batch.measured["old_logprobs"].tolist() == [-2.0, -3.0, -4.0, -6.0]
    assert batch.advantages.tolist() == pytest.approx([0.2, 0.3, 0.4, 0.6])
    with pytest.raises(LearnerError, match="column old_logprobs"):
        read(rows.with_columns(old_logprobs=pl.Series([[-2.0], [-4.0, -6.0]])), vocabulary=12)


GROUPS = st.lists(st.tuples(st.integers(1, 9), st.lists(st.integers(1, 30), min_size=1, max_size=6)), max_size=8)


def groups_of(groups: list[tuple[int, list[int]]]) -> pl.DataFrame:
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
def test_every_response_is_in_one_share_and_none_costs_more_than_the_mean_by_more_than_a_response_and_its_prompt(
    groups: list[tuple[int, list[int]]], ranks: int
) -> None:
    batch = groups_of(groups)
    found = shares(batch, ranks)
    assert len(found) == ranks
    assert pl.concat(found).equals(batch)
    largest = max((prompt + length for prompt, lengths in groups for length in lengths), default=0)
    prompt = max((prompt for prompt, _ in groups), default=0)
    for share in found:
        assert cost(share) <= cost(batch) / ranks + largest + prompt


def test_responses_that_cost_nothing_do_not_count() -> None:
    batch = groups_of([(2, [20, 20]), (2, [20, 20]), (2, [20, 20]), (2, [20, 20])])
    free = np.array([True] * 4 + [False] * 4)
    first, second = shares(batch, 2, free=free)
    assert (len(first), len(second)) == (6, 2)
