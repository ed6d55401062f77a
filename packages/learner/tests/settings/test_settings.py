"""Settings out of their range, and settings that contradict each other, are named when they are made."""

from typing import Any

import pytest
from isocompute.learner.config import (
    ALGORITHMS,
    AdapterConfig,
    BatchConfig,
    ComputeConfig,
    CriticConfig,
    EntropyConfig,
    ImportanceConfig,
    KLConfig,
    LearnerConfig,
    ObjectiveConfig,
    SyncConfig,
)
from isocompute.learner.errors import LearnerError

NAN = float("nan")


@pytest.mark.parametrize(
    ("group", "setting", "message"),
    [
        (LearnerConfig, {"learning_rate": 0.0}, r"learning_rate is 0\.0"),
        (LearnerConfig, {"learning_rate": "1e-3"}, "learning_rate is '1e-3'"),
        (LearnerConfig, {"learning_rate": 1.0, "temperature": 0}, "temperature is 0"),
        (ImportanceConfig, {"cap": NAN}, "cap is nan"),
        (ImportanceConfig, {"level": "word"}, "level is 'word'"),
        (KLConfig, {"coefficient": -0.1}, "coefficient is -0.1"),
        (KLConfig, {"estimator": "k4"}, "estimator is 'k4'"),
        (KLConfig, {"place": "reward", "mask_zero_variance": True}, "mask_zero_variance needs place: loss"),
        (EntropyConfig, {"mask_zero_variance": 1}, "mask_zero_variance is 1"),
        (ObjectiveConfig, {"algorithm": "reinforce"}, "algorithm is 'reinforce'"),
        (ObjectiveConfig, {"surrogate": "ppo"}, "surrogate is 'ppo'"),
        (ObjectiveConfig, {"std": "mad"}, "std is 'mad'"),
        (ObjectiveConfig, {"updates_per_batch": 0}, "updates_per_batch is 0"),
        (CriticConfig, {"gae_lambda": 1.5}, r"gae_lambda is 1\.5"),
        (CriticConfig, {"clip": 0}, "clip is 0"),
        (BatchConfig, {"drop_above": 1.5}, r"drop_above is 1\.5"),
        (BatchConfig, {"trained_rollouts": 0}, "trained_rollouts is 0"),
        (ComputeConfig, {"micro_batch_tokens": 0}, "micro_batch_tokens is 0"),
        (ComputeConfig, {"micro_batch_tokens": 2.5}, r"micro_batch_tokens is 2\.5"),
        (ComputeConfig, {"layout": "ragged"}, "layout is 'ragged'"),
        (AdapterConfig, {"rank": 0}, "rank is 0"),
        (AdapterConfig, {"alpha": 0}, "alpha is 0"),
        (AdapterConfig, {"target_modules": "q_proj"}, "target_modules is 'q_proj'"),
        (AdapterConfig, {"target_modules": ()}, r"target_modules is \(\)"),
        (SyncConfig, {"mean": 0.0}, r"mean is 0\.0"),
        (SyncConfig, {"k3": "1e-3"}, "k3 is '1e-3'"),
        (SyncConfig, {"tolerance": None}, "tolerance, mean, k3, quantile of sync are all off; one must be a number"),
    ],
)
def test_a_setting_out_of_its_range_is_named(group: type[Any], setting: dict[str, object], message: str) -> None:
    with pytest.raises(LearnerError, match=message):
        group(**setting)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"objective": ObjectiveConfig(algorithm="ppo"), "batch": BatchConfig(trained_rollouts=2)},
            r"batch\.trained_rollouts is set, and the baseline is a critic's, .*: it must be left out",
        ),
        (
            {"objective": ObjectiveConfig(baseline="gae", scale="batch"), "batch": BatchConfig(trained_rollouts=2)},
            r"batch\.trained_rollouts is set",
        ),
        *(
            (
                {"objective": ObjectiveConfig(surrogate="policy_gradient", **{bound: 0.2})},
                "a bound of the ratio is set, and surrogate is 'policy_gradient', which clips nothing: it must be left",
            )
            for bound in ("clip_low", "clip_high")
        ),
    ],
)
def test_a_setting_that_could_do_nothing_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(LearnerError, match=message):
        LearnerConfig(learning_rate=1.0, **settings)


def test_settings_that_only_look_alike_are_taken() -> None:
    """Fewer trained than sampled with another baseline, and a policy gradient without a bound."""
    few = LearnerConfig(learning_rate=1.0, batch=BatchConfig(trained_rollouts=2))
    assert few.batch.trained_rollouts == 2
    plain = ObjectiveConfig(surrogate="policy_gradient")
    assert LearnerConfig(learning_rate=1.0, objective=plain).objective.resolved.surrogate == "policy_gradient"


@pytest.mark.parametrize("name", ALGORITHMS)
def test_an_algorithm_is_its_parts_and_each_can_be_replaced(name: str) -> None:
    own = ObjectiveConfig(algorithm=name, constant_length=9).resolved
    assert own.surrogate == ALGORITHMS[name].surrogate
    assert None not in (own.baseline, own.scale, own.aggregation)
    other = ObjectiveConfig(algorithm=name, aggregation="sequence", clip_high=0.5).resolved
    assert (other.aggregation, other.clip_high) == ("sequence", 0.5)
    assert (other.surrogate, other.baseline, other.scale) == (own.surrogate, own.baseline, own.scale)


@pytest.mark.parametrize(
    ("settings", "measures"),
    [
        ({}, False),
        ({"kl": KLConfig(coefficient=0.1)}, False),
        ({"kl": KLConfig(coefficient=0.1, place="reward")}, True),
        ({"kl": KLConfig(place="reward")}, False),
        ({"objective": ObjectiveConfig(algorithm="ppo")}, True),
        ({"objective": ObjectiveConfig(updates_per_batch=2)}, True),
        ({"objective": ObjectiveConfig(epochs=2)}, True),
    ],
)
def test_a_batch_is_measured_first_where_the_update_depends_on_it(settings: dict[str, Any], measures: bool) -> None:
    assert LearnerConfig(learning_rate=1.0, **settings).measures_first == measures
