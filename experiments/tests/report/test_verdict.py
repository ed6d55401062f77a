"""The sentence on a problem set: which n, at which budgets, and how sure."""

from typing import Any

import polars as pl
import pytest

from experiments.report.verdict import spans, verdict

UNTESTED = {"tested": False, "reason": "no seeds are set for a test"}


def frontier(*rows: tuple[float, int, float, list[int]]) -> pl.DataFrame:
    return pl.DataFrame(rows, schema=["compute", "n", "probability", "n_set"], orient="row")


def against(baseline: int, verdict: str, mean: float | None, interval: list[float] | None) -> dict[str, Any]:
    return {
        "prescribed": 4, "baseline": baseline, "verdict": verdict, "mean": mean, "interval": interval,
        "differences": [0.1, 0.2, 0.3] if mean is not None else [],
    }  # fmt: skip


def said(rows: pl.DataFrame, comparison: dict[str, Any], seeds: int = 2) -> str:
    return verdict("hard", rows, comparison, sizes=(4, 8, 16), seeds=seeds, budget=8192)


def test_a_frontier_is_cut_where_the_n_that_are_left_change_and_not_where_the_best_does() -> None:
    first, second = spans(
        frontier((800, 16, 0.99, [16]), (100, 4, 0.6, [4, 16]), (200, 16, 0.5, [16, 4]), (400, 16, 0.97, [16]))
    )
    assert (first.left, first.first, first.last, first.best, first.probability) == ((4, 16), 100, 200, 16, 0.5)
    assert (second.left, second.first, second.last, second.probability) == ((16,), 400, 800, 0.99)


@pytest.mark.parametrize(
    ("left", "expected"),
    [
        ([4, 8, 16], "no n can be excluded at 1,024 rollouts (n = 4 is best in 60% of the refits at 1,024)"),
        (
            [4, 8],
            "n = 4 and n = 8 cannot be told apart at 1,024 rollouts, and n = 16 can be excluded (n = 4 is best in 60% "
            "of the refits at 1,024)",
        ),
        ([4], "n = 4 is best at 1,024 rollouts"),
    ],
)
def test_an_n_is_called_best_only_where_every_other_is_excluded(left: list[int], expected: str) -> None:
    assert said(frontier((1024, 4, 0.6, left)), UNTESTED) == (
        f"hard: {expected}, over 2 seeds; not tested at a larger budget (no seeds are set for a test)."
    )


def test_a_frontier_of_many_spans_is_told_by_its_first_and_its_last() -> None:
    rows = [(100.0 * i, 4, 0.9, [4] if i % 2 else [4, 8]) for i in range(1, 8)]
    assert said(frontier(*rows), UNTESTED, seeds=1).startswith(
        "hard: n = 4 is best at 100 rollouts; after 5 changes in between, n = 4 is best at 700 rollouts, over 1 seed, "
        "which leaves out how seeds differ; "
    )


def test_the_sentence_says_how_the_prescription_fared_against_each_fixed_n() -> None:
    rows = frontier((1024, 4, 0.99, [4]))
    found = {
        "tested": True,
        "diverged": [{"rollouts_per_problem": 16, "seed": 1, "steps": 3}],
        "against": [
            against(4, "same", None, None),
            against(8, "unresolved", 0.02, [-0.01, 0.05]),
            against(16, "won", 0.2, [0.1, 0.3]),
        ],
    }
    assert said(rows, found).endswith(
        "trained at 8,192 rollouts on 3 seeds of its own, n = 4 was not told apart from fixed n = 8 (+0.020; 95 %: "
        "-0.010 to +0.050) and better than fixed n = 16 (+0.200; 95 %: +0.100 to +0.300), and 1 of the runs diverged."
    )
    alone = {"tested": True, "diverged": [], "against": [against(4, "same", None, None)]}
    assert said(rows, alone).endswith("trained at 8,192 rollouts, where it is the only n compared.")
    none = {"tested": True, "diverged": [], "against": [against(16, "unresolved", None, None)]}
    assert "not told apart from fixed n = 16 (no seed of both was trained to the end)" in said(rows, none)
