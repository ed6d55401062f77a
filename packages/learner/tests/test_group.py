from collections.abc import Iterator
from pathlib import Path

import polars as pl
import pytest
import ray
import torch
from isocompute.learner.config import LearnerConfig
from isocompute.learner.errors import LearnerError
from isocompute.learner.group import LearnerGroup
from isocompute.learner.learner import Learner


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    ray.init(num_cpus=2, include_dashboard=False, object_store_memory=128 * 2**20, log_to_driver=False)
    yield
    ray.shutdown()


def test_two_ranks_take_the_same_update_as_one(
    cluster: None, model: Path, config: LearnerConfig, rollouts: pl.DataFrame
) -> None:
    one = Learner(model, config)
    two = LearnerGroup(model, config, world_size=2)
    try:
        alone, together = one.update(rollouts), two.update(rollouts)
        assert together.gradient_norm == pytest.approx(alone.gradient_norm, rel=1e-5)
        assert together.loss == pytest.approx(alone.loss, abs=1e-6)
        assert together.kl == pytest.approx(alone.kl, abs=1e-6)
        # Adam's first moment is a tenth of the gradient: the update before its sign-like normalisation.
        mine, theirs = one.state()[0], two.state()[0]
        for name in mine:
            if name.endswith("exp_avg"):
                assert torch.allclose(mine[name], theirs[name], rtol=1e-4, atol=1e-7)
        assert dict(two.weights()).keys() == dict(one.weights()).keys()
        # Continued from its own state and begun anew, the group is where it was.
        saved = two.state()
        two.reset(config)
        assert two.version == 0
        fresh = dict(Learner(model, config).weights())
        assert all(torch.equal(tensor, fresh[name]) for name, tensor in two.weights())
        two.load_state(*saved)
        assert two.version == 1
        assert all(torch.equal(tensor, theirs[f"policy.{name}"]) for name, tensor in two.weights())
    finally:
        two.close()


def test_more_ranks_than_the_cluster_has_is_an_error(cluster: None, model: Path, config: LearnerConfig) -> None:
    with pytest.raises(LearnerError, match=r"3 ranks need 3 CPUs.* has 2 in all"):
        LearnerGroup(model, config, world_size=3, patience=1)
