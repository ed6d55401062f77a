"""Groups of responses as record batches, and problems that turn out not to be scorable."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl
import pytest
from isocompute.rollout import RolloutError, open_sampler
from isocompute.rollout.contract import tables
from isocompute.rollout.samplers.base import Columns, Faults, Group
from isocompute.rollout.samplers.local import Scoring
from isocompute.rollout.samplers.sampling import Draw, Response, aborted
from isocompute.rollout.scoring.sandbox.process import ScoringConfig
from isocompute.rollout.scoring.scorer import Item, Scorer, Verdict


def test_what_went_wrong_with_a_response_has_a_column_of_its_own() -> None:
    whole = Response(ids=np.array([1, 2], np.int32), logprobs=np.zeros(2, np.float32), finish_reason="length")
    responses = [whole, aborted("the server hung"), whole]
    group = Group(problem_id="p", prompt_ids=[7, 8], responses=responses, texts=[""] * 3)
    verdicts = [Verdict(reward=1.0), Verdict(reward=0.0), Verdict(reward=0.0, error="out of time")]
    batch = Columns().batch(group, verdicts, draw=Draw(samples=3, seed=1, step=2), version=4)
    made = tables.check(pl.DataFrame(batch), "rollouts", where="made")
    assert made["failure"].to_list() == [None, "the server hung", None]
    assert made["score_error"].to_list() == [None, None, "out of time"]
    assert made["finish_reason"].to_list() == ["length", "aborted", "length"]
    assert made["reward"].to_list() == [1, 0, 0]


@pytest.mark.slow
def test_a_group_with_a_response_that_hangs_holds_up_no_other() -> None:
    # The pattern takes for ever; a comparison of texts is done at once.
    names = [r"exact|regex:^(a+)+$", "exact", "exact"]
    scorer = Scorer(ScoringConfig(seconds=0.5, wall_factor=1000))
    scoring = Scoring(scorer, Faults(), Columns())
    empty = Response(ids=np.zeros(0, np.int32), logprobs=np.zeros(0, np.float32), finish_reason="stop")
    for row, text in enumerate(("a" * 60 + "!", "a", "b")):
        group = Group(problem_id=str(row), prompt_ids=[], responses=[empty], texts=[text])
        item = Item(verifier=names[row], response=text, answer="a")
        part: Any = SimpleNamespace(items=lambda _, item=item: [item], rows=lambda _, group, verdicts: verdicts[0])
        scoring.submit(part, group)
    assert [batch.reward for _, batch in scoring.ready()] == [1, 0]
    ((_, late),) = scoring.rest()
    assert late.error == "deadline: more than 0.5 s of processor time"
    assert list(scoring.rest()) == []
    scorer.close()


@pytest.mark.slow("a sampler")
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
    assert lost["problem_id"].to_list() == ["p2"] * 4
    assert lost["failure"].str.contains("problem cannot be scored: reasoning-gym refuses the task 'gcd'").all()
    # A run of which no problem can be scored stops, once they were paid for.
    sampler.faults.hand_over()
    none = problems.with_columns(metadata=pl.lit('{"settings": {"nonsense": 1}}'))
    assert set(tiny.sample(sampler, none)["finish_reason"]) == {"aborted"}
    with pytest.raises(RolloutError, match="the 6 problems answered"):
        tiny.sample(sampler, none, step=2)
