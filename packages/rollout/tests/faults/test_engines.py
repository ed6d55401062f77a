"""Faults of engines, 23 of every 100: syncs cut off in the middle.

ISOCOMPUTE_ROLLOUT_FAULTS says how many; with it every other one is vLLM's.
"""

import os
import random
from pathlib import Path
from typing import Any

import pytest
from hashed import Lost
from isocompute.rollout import RolloutError, open_sampler

pytestmark = pytest.mark.slow("an engine")

FAULTS = int(os.environ.get("ISOCOMPUTE_ROLLOUT_FAULTS", "25"))


@pytest.fixture(scope="module")
def transformers_sampler(tiny: Any) -> Any:
    return open_sampler("transformers", str(tiny.folder), tiny.sampling)


@pytest.mark.parametrize("number", range(FAULTS * 23 // 100))
def test_after_a_sync_that_was_cut_off_nothing_is_sampled_until_a_whole_one(
    number: int, request: pytest.FixtureRequest, tiny: Any, tmp_path: Path
) -> None:
    source, both = random.Random(number), "ISOCOMPUTE_ROLLOUT_FAULTS" in os.environ
    sampler = request.getfixturevalue("vllm_sampler" if both and number % 2 else "transformers_sampler")
    before, version = tiny.sample(sampler), sampler.weights_version
    other = dict(tiny.save(tmp_path, seed=source.randrange(1, 100)).state_dict())
    for _ in range(source.randint(1, 3)):
        lost = source.choice(list(other))
        with pytest.raises(RolloutError, match="not take over the weights"):
            sampler.sync({name: Lost(t) if name == lost else t for name, t in other.items()}, version + 1)
        with pytest.raises(RolloutError, match="the last sync failed"):
            next(sampler.stream(tiny.problems, samples=4, seed=3, step=1))
        assert sampler.weights_version == version
    policy = tiny.save(tmp_path, seed=source.randrange(1, 100))
    sampler.sync(policy.state_dict().items(), version + 1)
    whole = tiny.sample(sampler)
    assert set(whole["weights_version"]) == {version + 1}
    assert tiny.largest_difference(policy, whole) < 1e-4
    sampler.sync(tiny.save(tmp_path, seed=0).state_dict(), version + 2)
    assert tiny.sample(sampler).drop("weights_version", "logprobs").equals(before.drop("weights_version", "logprobs"))
