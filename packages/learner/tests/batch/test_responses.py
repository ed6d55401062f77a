"""A table with one defect is refused by its row and column before anything is learnt, and one without is not."""

from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from isocompute.learner.batch.responses import check_answers, check_finite, read
from isocompute.learner.errors import LearnerError

VOCABULARY, SAMPLES = 12, 3
PROBLEMS = pl.DataFrame({"problem_id": ["a", "b", "c"]})
TOKEN = st.integers(0, VOCABULARY - 1)
SCHEMA = {
    "problem_id": pl.String,
    "sample": pl.Int32,
    "prompt_ids": pl.List(pl.Int64),
    "response_ids": pl.List(pl.Int64),
    "logprobs": pl.List(pl.Float32),
    "reward": pl.Float32,
    "finish_reason": pl.String,
    "weights_version": pl.Int64,
    "advantage": pl.Float64,
    "sampled": pl.List(pl.Boolean),
}


@st.composite
def answers(draw: st.DrawFn) -> list[dict[str, Any]]:
    """The rows of a table as a sampler returns it, failed tries included, in any order."""
    rows = []
    for problem in PROBLEMS["problem_id"]:
        failed = draw(st.integers(0, SAMPLES + 1))
        completed = draw(st.integers(max(0, SAMPLES - failed), SAMPLES))
        for sample in range(completed + failed):
            ids = draw(st.lists(TOKEN, min_size=1, max_size=4))
            row = {
                "problem_id": problem,
                "sample": sample,
                "prompt_ids": draw(st.lists(TOKEN, min_size=1, max_size=3)),
                "response_ids": ids,
                "logprobs": draw(st.lists(st.floats(-9, 0, width=32), min_size=len(ids), max_size=len(ids))),
                "reward": draw(st.floats(-2, 2, width=32)),
                "finish_reason": draw(st.sampled_from(["stop", "length"])),
                "weights_version": 0,
                "advantage": draw(st.floats(-2, 2)),
                "sampled": draw(st.none() | st.just([True] * len(ids))),
            }
            if sample >= completed:
                row |= {"finish_reason": "aborted", "reward": None, "response_ids": [], "logprobs": [], "sampled": None}
            rows.append(row)
    return draw(st.permutations(rows))


def check(rows: list[dict[str, Any]]) -> None:
    """All that a table passes before an update, but the comparison with the learner."""
    table = pl.DataFrame(rows, schema=SCHEMA)
    check_answers(table, PROBLEMS, samples=SAMPLES, source="a sampler")
    completed = table.filter(pl.col("finish_reason") != "aborted")
    check_finite(completed)
    read(completed, vocabulary=VOCABULARY)


NAN, INF = float("nan"), float("inf")


def element(name: str, value: Any) -> Any:
    """Put a value in the place of the last element of a list."""
    return lambda row: {name: [*row[name][:-1], value]}


DEFECTS: dict[str, tuple[str, Any]] = {
    **{f"reward {value}": ("reward", lambda row, value=value: {"reward": value}) for value in (None, NAN, INF, -INF)},
    **{
        f"{name} {value}": (name, element(name, value))
        for name in ("prompt_ids", "response_ids")
        for value in (None, -1, VOCABULARY, 2**40)
    },
    **{f"log-probability {value}": ("logprobs", element("logprobs", value)) for value in (None, NAN, INF, -INF, 0.01)},
    **{f"advantage {value}": ("advantage", lambda row, value=value: {"advantage": value}) for value in (None, NAN)},
    "a log-probability too many": ("logprobs", lambda row: {"logprobs": [*row["logprobs"], -1.0]}),
    "a log-probability too few": ("logprobs", lambda row: {"logprobs": row["logprobs"][1:]}),
    "no log-probabilities": ("logprobs", lambda row: {"logprobs": None}),
    "a mark too many": ("sampled", lambda row: {"sampled": [True] * (1 + len(row["response_ids"]))}),
    "a mark that is missing": ("sampled", lambda row: {"sampled": [None] * len(row["response_ids"])}),
    "no prompt": ("prompt_ids", lambda row: {"prompt_ids": []}),
    "no tokens": ("response_ids", lambda row: {"response_ids": None}),
    "an empty response at its limit": (
        "response_ids",
        lambda row: {"response_ids": [], "logprobs": [], "sampled": None, "finish_reason": "length"},
    ),
    "another finish reason": ("finish_reason", lambda row: {"finish_reason": "eos"}),
    "no finish reason": ("finish_reason", lambda row: {"finish_reason": None}),
    "no sample number": ("sample", lambda row: {"sample": None}),
    "a negative sample number": ("sample", lambda row: {"sample": -1}),
    "no version": ("weights_version", lambda row: {"weights_version": None}),
}


@given(answers())
@settings(max_examples=40)
def test_a_table_without_a_defect_is_accepted(rows: list[dict[str, Any]]) -> None:
    check(rows)


@pytest.mark.parametrize("defect", DEFECTS)
@given(rows=answers(), data=st.data())
@settings(max_examples=8)
def test_a_table_with_one_defect_is_refused_by_its_row_and_column(
    defect: str, rows: list[dict[str, Any]], data: st.DataObject
) -> None:
    completed = [place for place, row in enumerate(rows) if row["finish_reason"] != "aborted"]
    if not completed:
        return
    place = data.draw(st.sampled_from(completed))
    column, change = DEFECTS[defect]
    rows[place] = rows[place] | change(rows[place])
    row = rows[place]
    with pytest.raises(LearnerError) as refused:
        check(rows)
    said = str(refused.value)
    assert f"response {row['sample']} to problem {row['problem_id']} " in said
    assert f"({column}" in said


@given(rows=answers(), data=st.data())
@settings(max_examples=40)
def test_another_number_of_responses_than_asked_for_is_refused_by_the_problem(
    rows: list[dict[str, Any]], data: st.DataObject
) -> None:
    problem = data.draw(st.sampled_from(PROBLEMS["problem_id"].to_list()))
    mine = [row for row in rows if row["problem_id"] == problem]
    fewer, more, twice = "fewer", "more", "twice"
    kind = data.draw(st.sampled_from([fewer, more, twice]))
    if kind == fewer:
        kept = data.draw(st.integers(0, SAMPLES - 1))
        rows = [row for row in rows if row["problem_id"] != problem] + mine[:kept]
    elif kind == more:
        new = {"response_ids": [1], "logprobs": [-1.0], "sampled": None, "reward": 0.0, "finish_reason": "stop"}
        rows = rows + [mine[0] | new | {"sample": 50 + sample} for sample in range(SAMPLES + 1)]
    else:
        rows = [*rows, mine[0]]
    with pytest.raises(LearnerError, match=f"problem {problem}[ ;]"):
        check(rows)
