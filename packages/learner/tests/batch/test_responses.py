"""A table with one defect is refused by its row and column before anything is learnt, and one without is not."""

from typing import Any

import polars as pl
import pytest
from isocompute.learner.batch.responses import check_answers, check_finite, read
from isocompute.learner.errors import LearnerError

VOCABULARY, SAMPLES = 12, 3
PROBLEMS = pl.DataFrame({"problem_id": ["a", "b", "c"]})
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


FAILED = {"finish_reason": "aborted", "reward": None, "response_ids": [], "logprobs": [], "sampled": None}


def answers() -> list[dict[str, Any]]:
    """The rows of a table as a sampler returns it: in any order, with tries that failed beside completed responses."""
    rows = []
    for problem in PROBLEMS["problem_id"]:
        for sample in range(SAMPLES + 1):
            ids = [(sample + place) % VOCABULARY for place in range(1 + sample % 3)]
            row = {
                "problem_id": problem,
                "sample": sample,
                "prompt_ids": [3, VOCABULARY - 1],
                "response_ids": ids,
                "logprobs": [-0.5 * place for place in range(len(ids))],
                "reward": -1.0 + sample,
                "finish_reason": ["stop", "length"][sample % 2],
                "weights_version": 0,
                "advantage": 0.5 - sample,
                "sampled": [True] * len(ids) if sample == 1 else None,
            }
            if sample == SAMPLES:
                row |= FAILED
            rows.append(row)
    return [rows[(5 * place) % len(rows)] for place in range(len(rows))]


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


def test_a_table_without_a_defect_is_accepted() -> None:
    check(answers())
    # Where every try at a problem failed, nothing is wrong with the others.
    check([row | FAILED if row["problem_id"] == "b" else row for row in answers()])


@pytest.mark.parametrize("place", [0, 6])
@pytest.mark.parametrize("defect", DEFECTS)
def test_a_table_with_one_defect_is_refused_by_its_row_and_column(defect: str, place: int) -> None:
    column, change = DEFECTS[defect]
    rows = answers()
    rows[place] = row = rows[place] | change(rows[place])
    with pytest.raises(LearnerError) as refused:
        check(rows)
    assert f"response {row['sample']} to problem {row['problem_id']} " in str(refused.value)
    assert f"({column}" in str(refused.value)


def test_another_number_of_responses_than_asked_for_is_refused_by_the_problem() -> None:
    rows = answers()
    of_b = [row for row in rows if row["problem_id"] == "b"]
    others = [row for row in rows if row["problem_id"] != "b"]
    completed = next(row for row in of_b if row["finish_reason"] != "aborted")
    more = [*rows, completed | {"sample": 50}]
    for wrong in (others, others + of_b[: SAMPLES - 1], more, [*rows, completed]):
        with pytest.raises(LearnerError, match=r"problem b[ ;]"):
            check(wrong)
