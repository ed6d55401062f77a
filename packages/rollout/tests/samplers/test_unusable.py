"""What a sampler makes of a problem that turns out not to be scorable: its responses are paid for and teach nothing."""

from typing import Any

import polars as pl
import pytest
from isocompute.rollout import RolloutError, open_sampler

pytestmark = pytest.mark.slow("sandboxes, one after another")


def test_responses_to_a_problem_that_cannot_be_scored_are_aborted_with_their_tokens(tiny: Any) -> None:
    pytest.importorskip("reasoning_gym")
    sampler = open_sampler("transformers", str(tiny.folder), tiny.sampling)
    exact = tiny.sample(sampler)
    broken = pl.when(pl.col("problem_id") == "p2").then(pl.lit('{"settings": {"nonsense": 1}}')).otherwise(pl.lit(""))
    problems = tiny.problems.with_columns(verifier=pl.lit("reasoning_gym:gcd"), metadata=broken)
    rollouts = tiny.sample(sampler, problems)
    # They were generated, so that they are charged; no group is missing.
    same = ["problem_id", "sample", "response_ids", "logprobs"]
    assert rollouts.select(same).equals(exact.select(same))
    lost = rollouts.filter(pl.col("finish_reason") == "aborted")
    assert set(lost["problem_id"]) == {"p2"}
    assert len(lost) == 4
    assert lost["failure"].str.contains("problem cannot be scored: reasoning-gym refuses the task 'gcd'").all()


def test_a_run_whose_problems_all_cannot_be_scored_stops_once_they_were_paid_for(tiny: Any) -> None:
    pytest.importorskip("reasoning_gym")
    sampler = open_sampler("transformers", str(tiny.folder), tiny.sampling)
    metadata = pl.lit('{"settings": {"nonsense": 1}}')
    problems = tiny.problems.with_columns(verifier=pl.lit("reasoning_gym:gcd"), metadata=metadata)
    assert set(tiny.sample(sampler, problems)["finish_reason"]) == {"aborted"}
    with pytest.raises(RolloutError, match="the 6 problems answered"):
        tiny.sample(sampler, problems, step=2)
