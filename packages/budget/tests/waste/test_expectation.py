import random
from itertools import pairwise, product
from math import comb, sqrt

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from isocompute.budget import BudgetError
from isocompute.budget.waste.expectation import expect, expected_zero_variance


@given(st.integers(1, 8), st.integers(1, 10), st.integers(0, 10))
def test_the_expectation_is_the_mean_over_every_draw_of_the_samples(n, samples, successes):
    successes = min(successes, samples)
    share, how = expected_zero_variance(successes, samples, n)
    if how == "plug-in":
        p = successes / samples
        assert samples < n
        assert share == p**n + (1 - p) ** n
        return
    results = [1] * successes + [0] * (samples - successes)
    draws = [
        len({results[i] for i in chosen}) == 1
        for chosen in product(range(samples), repeat=min(n, 3))
        if len(set(chosen)) == min(n, 3)
    ]
    if n <= 3:
        assert share == pytest.approx(sum(draws) / len(draws))
    assert 0 <= share <= 1


def test_the_expectation_is_unbiased_for_the_true_pass_rate():
    n, samples, p = 4, 6, 0.3
    mean = sum(
        comb(samples, s) * p**s * (1 - p) ** (samples - s) * expected_zero_variance(s, samples, n)[0]
        for s in range(samples + 1)
    )
    assert mean == pytest.approx(p**n + (1 - p) ** n)


def learning(seed=1, problems=40, n=4, steps=(1, 2, 3)):
    """Groups of a policy whose pass rates rise, its pass rates measured after 0, 1, … updates, and the truth."""
    source = random.Random(seed)
    starts = {f"p{i}": source.random() for i in range(problems)}
    pass_rate = {(step, name): p ** (4.0 ** (2 - step)) for step in steps for name, p in starts.items()}
    groups, measured = [], []
    for (step, name), p in pass_rate.items():
        right, of = (sum(source.random() < p for _ in range(k)) for k in (n, 32))
        groups.append({"run_id": "run", "step": step, "problem_id": name, "size": n, "successes": right})
        measured.append({"run_id": "run", "step": step - 1, "problem_id": name, "successes": of, "samples": 32})
    truth = sum(p**n + (1 - p) ** n for p in pass_rate.values()) / len(pass_rate)
    return pl.DataFrame(groups), pl.DataFrame(measured), truth


def test_each_step_is_expected_from_the_last_measurement_before_it():
    groups = pl.DataFrame(
        {"run_id": "r", "step": [1, 4, 5, 9], "problem_id": "p", "size": [2, 2, 2, 3], "successes": [0, 1, 1, 2]}
    )
    rates = pl.DataFrame(
        {"run_id": "r", "step": [0, 4, 7], "problem_id": "p", "successes": [0, 5, 10], "samples": [10, 10, 10]}
    )
    found = expect(groups, rates)
    # Step 4 is sampled after three updates, so the measurement after four is step 5's.
    shares = [1.0, 1.0, expected_zero_variance(5, 10, 2)[0], 1.0]
    assert found.share == pytest.approx(sum(shares) / 4)
    assert (found.groups, found.independent, found.by_step) == (4, True, True)
    later = expect(groups, rates.filter(pl.col("step") > 3))
    assert (later.groups, later.share) == (2, pytest.approx((shares[2] + 1) / 2))
    assert expect(groups, rates.with_columns(problem_id=pl.lit("q"))) is None


@pytest.mark.slow
@pytest.mark.parametrize("n", [2, 8])
def test_the_estimate_is_as_far_off_as_its_standard_error_says(n):
    errors, told = [], []
    for seed in range(60):
        groups, measured, truth = learning(seed, n=n)
        found = expect(groups, measured)
        errors.append(found.share - truth)
        told.append(found.standard_error)
    spread = sqrt(sum(e**2 for e in errors) / len(errors))
    mean = sum(told) / len(told)
    # 60 draws tell a standard deviation to about a tenth; ½ in the pass rate makes the figure a little too large.
    assert 0.7 < spread / mean < 1.3
    assert abs(sum(errors)) / len(errors) < 3 * mean / sqrt(len(errors))


def test_more_responses_make_the_estimate_surer():
    groups = pl.DataFrame({"run_id": "r", "step": 1, "problem_id": "p", "size": 4, "successes": 2})
    errors = [
        expect(groups, pl.DataFrame({"problem_id": "p", "successes": k // 2, "samples": k})).standard_error
        for k in (4, 16, 64, 1024, 4096)
    ]
    assert all(b < a / 1.5 for a, b in pairwise(errors))


def test_groups_on_one_measurement_err_together():
    once = {"problem_id": "p", "successes": 8, "samples": 16}
    groups = pl.DataFrame({"run_id": "r", "step": [1, 2, 3, 4], "problem_id": "p", "size": 4, "successes": 2})
    one = expect(groups, pl.DataFrame(once)).standard_error
    each = expect(groups, pl.DataFrame([{**once, "run_id": "r", "step": k} for k in range(4)])).standard_error
    assert one == pytest.approx(2 * each)


def test_rates_of_another_run_or_given_twice_are_refused():
    groups, measured, _ = learning()
    with pytest.raises(BudgetError, match="the pass rates are of run other, and none are of run run"):
        expect(groups, measured.with_columns(run_id=pl.lit("other")))
    with pytest.raises(BudgetError, match="twice for one run_id, step, problem_id"):
        expect(groups, pl.concat([measured, measured]))
