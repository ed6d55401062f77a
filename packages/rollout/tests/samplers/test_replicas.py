"""Replicas of a sampler, each in a Ray actor of its own: two of transformers, and in ``nox -s faults`` two of vLLM."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from every_sampler import (  # noqa: F401
    policy,
    prompt_ids,
    test_a_problem_that_cannot_be_answered_or_scored_is_named_before_anything_is_sampled,
    test_a_table_has_a_row_per_response_in_the_order_of_problems_and_samples,
    test_requests_may_be_held_to_fewer_tokens_than_the_sampler_was_opened_for_and_not_to_more,
    use,
)
from every_sync import *  # noqa: F403
from isocompute.rollout import open_sampler
from isocompute.rollout.samplers.sampling import EngineConfig
from isocompute.rollout.scoring.rules import register
from isocompute.rollout.scoring.sandbox.process import ScoringConfig

pytestmark = [pytest.mark.slow("Ray"), pytest.mark.xdist_group("ray")]

# Sampled in this process alone.
del test_log_probabilities_are_a_tied_models_after_every_sync  # noqa: F821


@pytest.fixture(scope="module")
def sampler(cluster: Any, tiny: Any) -> Iterator[Any]:
    """Replicas whose options, and those of scoring, travel to their actors."""
    options: dict[str, Any] = {"replicas": {"replicas": 2, "bucket_bytes": 20_000}, "batch_size": 7}
    opened = open_sampler(
        "transformers", str(tiny.folder), tiny.sampling, scoring=ScoringConfig(seconds=2.0), **options
    )
    yield opened
    opened.close()


def table(sampler: Any, tiny: Any) -> Any:
    """Three tables of steps and sizes of their own, as one."""
    return pl.concat(tiny.sample(sampler, samples=samples, step=samples) for samples in (1, 4, 16))


def difference(one: pl.DataFrame, other: pl.DataFrame) -> float:
    """The largest difference of two tables' log-probabilities."""
    return float(np.abs(one["logprobs"].explode().to_numpy() - other["logprobs"].explode().to_numpy()).max())


def test_two_replicas_have_their_options_and_give_the_table_of_a_sampler_in_process(sampler: Any, tiny: Any) -> None:
    def settings(engine: Any) -> tuple[int, float]:
        return engine._sampler._batch_size, engine._sampler.scorer.config.seconds

    asked = [member.actor.__ray_call__.remote(settings) for member in sampler.actors.members]
    assert sampler._ray.get(asked) == [(7, 2.0)] * 2
    alone = table(open_sampler("transformers", str(tiny.folder), tiny.sampling), tiny)
    found = table(sampler, tiny)
    assert [member.answered > 0 for member in sampler.actors.members] == [True, True]
    # The last digits of log-probabilities depend on which prompts of one length share a batch; nothing else does.
    assert found.drop("logprobs", "weights_version").equals(alone.drop("logprobs", "weights_version"))
    assert difference(found, alone) < 1e-5


@pytest.mark.skipif("ISOCOMPUTE_REPLICA_FAULTS" not in os.environ, reason="three engines: python3 -m nox -s faults")
def test_two_replicas_of_vllm_give_the_table_of_one_before_and_after_a_sync(
    cluster: Any, tiny: Any, vllm_sampler: Any, tmp_path: Path
) -> None:
    other, own = tiny.save(tmp_path, seed=5), tiny.save(tmp_path / "own", seed=0)
    options = {"replicas": 2, "bucket_bytes": 20_000, "transport": "gloo"}
    engine = EngineConfig(max_concurrent=7)
    opened: Any = open_sampler("vllm", str(tiny.folder), tiny.sampling, replicas=options, engine=engine)
    assert "available to the engine" in opened.plan
    tables = []
    for sampler in (opened, vllm_sampler):
        begin = sampler.weights_version
        before = table(sampler, tiny)
        sampler.sync(other.state_dict(), begin + 1)
        after = table(sampler, tiny)
        assert tiny.largest_difference(other, after) < 1e-4
        sampler.sync(own.state_dict(), begin + 2)
        tables.append(pl.concat([before, after, table(sampler, tiny)]))
    assert [member.answered > 0 for member in opened.actors.members] == [True, True]
    opened.close()
    assert tables[0].drop("logprobs", "weights_version").equals(tables[1].drop("logprobs", "weights_version"))
    assert difference(*tables) < 1e-5


def test_verifiers_that_are_registered_here_score_in_the_actor(
    sampler: Any, tiny: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "rules_for_an_actor.py").write_text(
        "def right(response, answer, metadata):\n    return answer == '2'\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    register("right_in_an_actor", "rules_for_an_actor:right")
    rollouts = tiny.sample(sampler, tiny.problems.with_columns(verifier=pl.lit("right_in_an_actor")), samples=1)
    assert rollouts["reward"].to_list() == [1.0] * len(tiny.problems)
