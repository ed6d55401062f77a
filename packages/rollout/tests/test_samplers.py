"""Real engines on a tiny random model: seeds, log-probabilities, syncs."""

from pathlib import Path
from typing import Any

import polars as pl
import pytest
from isocompute.rollout import RolloutError, open_sampler, tables


@pytest.fixture(scope="module", params=["vllm", "transformers"])
def sampler(request: pytest.FixtureRequest, tiny: Any) -> Any:
    if request.param == "vllm":
        return request.getfixturevalue("vllm_sampler")
    return open_sampler(request.param, str(tiny.folder), tiny.sampling)


def test_tokens_do_not_depend_on_the_batch(sampler: Any, tiny: Any) -> None:
    whole = tiny.sample(sampler)
    parts = [tiny.sample(sampler, tiny.problems[i : i + 1]) for i in reversed(range(len(tiny.problems)))]
    apart = tables.concat(parts, "rollouts")
    assert whole["response_ids"].to_list() == apart["response_ids"].to_list()
    fewer = tiny.sample(sampler, samples=2)
    assert fewer["response_ids"].to_list() == whole.filter(pl.col("sample") < 2)["response_ids"].to_list()


def test_another_step_or_seed_gives_other_tokens(sampler: Any, tiny: Any) -> None:
    first = tiny.sample(sampler)["response_ids"].to_list()
    assert tiny.sample(sampler, step=2)["response_ids"].to_list() != first
    assert tiny.sample(sampler, seed=4)["response_ids"].to_list() != first


def test_log_probabilities_are_the_models_after_every_sync(sampler: Any, tiny: Any, tmp_path: Path) -> None:
    assert sampler.weights_version == 0
    for version, seed in ((1, 5), (2, 6), (3, 0)):
        policy = tiny.save(tmp_path, seed=seed)
        before = tiny.sample(sampler)
        sampler.sync(policy.state_dict().items(), version)
        after = tiny.sample(sampler)
        assert set(after["weights_version"]) == {version}
        assert after["response_ids"].to_list() != before["response_ids"].to_list()
        assert tiny.largest_difference(policy, after) < 1e-4
    # Seed 0 is the model's own: later tests meet it as they would have.


def test_stopped_responses_end_with_the_stop_token(sampler: Any, tiny: Any) -> None:
    rollouts = tiny.sample(sampler, samples=16)
    for row in rollouts.iter_rows(named=True):
        assert (row["response_ids"][-1] == 1) == (row["finish_reason"] == "stop")
        assert 1 not in row["response_ids"][:-1]
    assert set(rollouts["finish_reason"]) == {"stop", "length"}


def test_a_prompt_that_is_too_long_is_named(sampler: Any, tiny: Any) -> None:
    long = tiny.problems.head(1).with_columns(prompt=pl.lit("1+1+1+1+1="), problem_id=pl.lit("long"))
    with pytest.raises(RolloutError, match=r"problem long has a prompt of 10 tokens"):
        tiny.sample(sampler, long)


def test_a_model_that_cannot_be_loaded_is_named(tiny: Any, tmp_path: Path) -> None:
    with pytest.raises(RolloutError, match="cannot be loaded"):
        open_sampler("transformers", str(tmp_path), tiny.sampling)
