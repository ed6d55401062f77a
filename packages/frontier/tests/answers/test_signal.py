"""Shares of groups with a signal: beside counting, sampling and what somebody measured."""

from itertools import combinations
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from isocompute.frontier import FrontierError
from isocompute.frontier.answers.signal import Histogram, of_mean, of_table


def test_two_responses_at_one_rate_are_as_counted_by_hand() -> None:
    # CoursIA #10603: groups of 2, 4, 8 and 16 at 0.1819, all problems alike.
    alike = Histogram(counts={0.1819: 7})
    assert [alike.signal(n) for n in (2, 4, 8, 16)] == pytest.approx([0.298, 0.551, 0.799, 0.960], abs=1e-3)


@given(st.floats(0.01, 0.99), st.integers(2, 40))
def test_a_spread_has_less_signal_than_its_mean_and_larger_groups_more(p: float, n: int) -> None:
    spread = of_mean(p)
    assert spread.mean == pytest.approx(p)
    assert 0 < spread.signal(n) < 1 - p**n - (1 - p) ** n
    assert spread.signal(n) < spread.signal(n + 1)


def test_a_beta_is_as_its_draws() -> None:
    spread, rng = of_mean(0.2), np.random.default_rng(1)
    p = rng.beta(spread.a, spread.b, 400_000)
    for n in (2, 8, 32):
        assert spread.signal(n) == pytest.approx(float((1 - p**n - (1 - p) ** n).mean()), abs=3e-3)


def table(path: Path, successes: list[int], samples: list[int]) -> Path:
    rows = {"problem_id": [f"p{k}" for k in range(len(samples))], "successes": successes, "samples": samples}
    base = pl.DataFrame(rows).with_columns(run_id=pl.lit("r"), step=pl.lit(0, pl.Int64))
    later = base.with_columns(step=pl.lit(9, pl.Int64), successes=pl.col("samples"))
    types = {"successes": pl.Int32, "samples": pl.Int32}
    pl.concat([base, later]).select("run_id", "step", "problem_id", "successes", "samples").cast(types).write_parquet(
        path
    )
    return path


def test_measured_groups_are_those_of_the_responses_of_the_first_step(tmp_path: Path) -> None:
    found = of_table(table(tmp_path / "pass_rates.parquet", [0, 1, 3, 5], [5, 5, 5, 5]))
    drawn = [list(combinations([1] * s + [0] * (5 - s), 3)) for s in (0, 1, 3, 5)]
    expected = np.mean([np.mean([len({*group}) == 2 for group in groups]) for groups in drawn])
    assert found.signal(3) == pytest.approx(expected)
    assert found.mean == pytest.approx(9 / 20)


def test_beyond_the_samples_the_spread_of_problems_is_found_without_their_luck(tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    p = rng.beta(0.6, 1.4, 4000)
    successes = rng.binomial(8, p).tolist()
    found = of_table(table(tmp_path / "pass_rates.parquet", successes, [8] * 4000))
    assert found.signal(32) == pytest.approx(float((1 - p**32 - (1 - p) ** 32).mean()), abs=0.02)


def test_problems_that_are_all_solved_say_nothing(tmp_path: Path) -> None:
    with pytest.raises(FrontierError, match="one response is right and one is wrong"):
        of_table(table(tmp_path / "pass_rates.parquet", [4, 4], [4, 4]))
