"""What can be named in the settings is what there is, and has one signature."""

import pytest
from isocompute.learner import config as named
from isocompute.learner.config import LearnerConfig
from isocompute.learner.errors import LearnerError
from isocompute.learner.objective.advantages import BASELINES, SCALES
from isocompute.learner.objective.loss import AGGREGATIONS, KL_ESTIMATORS, SURROGATES, TIS
from isocompute.learner.objective.prepare import ESTIMATORS


def test_names_in_the_settings_are_those_of_the_functions() -> None:
    assert tuple(SURROGATES) == named.SURROGATES
    assert tuple(ESTIMATORS) == named.BASELINES
    assert (*BASELINES, "gae") == named.BASELINES
    assert tuple(SCALES) == named.SCALES
    assert tuple(AGGREGATIONS) == named.AGGREGATIONS
    assert tuple(KL_ESTIMATORS) == named.KL_ESTIMATORS
    assert tuple(TIS) == named.LEVELS


def test_algorithms_are_made_of_what_there_is() -> None:
    for algorithm in named.ALGORITHMS.values():
        assert algorithm.surrogate in SURROGATES
        assert algorithm.baseline in ESTIMATORS
        assert algorithm.scale in SCALES
        assert algorithm.aggregation in AGGREGATIONS


def test_parts_that_contradict_each_other_are_refused() -> None:
    for baseline in ("batch", "gae"):
        with pytest.raises(LearnerError, match=f"baseline '{baseline}'"):
            LearnerConfig(learning_rate=1.0, objective=named.ObjectiveConfig(baseline=baseline))
    with pytest.raises(LearnerError, match="constant_length"):
        LearnerConfig(learning_rate=1.0, objective=named.ObjectiveConfig(algorithm="dr_grpo"))


def test_only_a_weight_without_gradient_may_have_a_lower_bound_of_0() -> None:
    for chosen in ({"algorithm": "cispo"}, {"surrogate": "cispo"}):
        assert named.ObjectiveConfig(clip_low=1.0, **chosen).resolved.clip_low == 1.0
    for chosen in ({}, {"algorithm": "cispo", "surrogate": "clip"}):
        with pytest.raises(LearnerError, match=r"clip_low is 1\.0"):
            named.ObjectiveConfig(clip_low=1.0, **chosen)
