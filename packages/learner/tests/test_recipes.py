from copy import deepcopy
from dataclasses import fields
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from isocompute.learner.config import (
    BatchConfig,
    ComputeConfig,
    EntropyConfig,
    ImportanceConfig,
    KLConfig,
    LearnerConfig,
    ObjectiveConfig,
    OptimizerConfig,
)
from isocompute.learner.errors import LearnerError
from isocompute.learner.recipes import RECIPES, with_recipe

GROUPS: dict[str, type] = {
    "objective": ObjectiveConfig,
    "kl": KLConfig,
    "entropy": EntropyConfig,
    "importance": ImportanceConfig,
    "batch": BatchConfig,
    "optimizer": OptimizerConfig,
    "compute": ComputeConfig,
}
NESTED = st.recursive(
    st.integers(), lambda inner: st.dictionaries(st.sampled_from("abc"), inner, max_size=3), max_leaves=8
)
MAPPINGS = st.dictionaries(st.sampled_from(["kl", "batch", "objective", "new"]), NESTED, max_size=4)


def config_of(settings: dict[str, Any]) -> LearnerConfig:
    groups = {name: GROUPS[name](**values) for name, values in settings.items()}
    return LearnerConfig(learning_rate=1e-6, **groups)


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_is_a_valid_configuration(name: str) -> None:
    config_of(with_recipe({"recipe": name}))


def test_easy_and_hard_differ_in_their_regularisers_and_in_nothing_else() -> None:
    easy, hard = (config_of(with_recipe({"recipe": f"isocompute-{name}"})) for name in ("easy", "hard"))
    differing = {field.name for field in fields(easy) if getattr(easy, field.name) != getattr(hard, field.name)}
    assert differing == {"kl", "entropy"}
    assert easy.kl.coefficient > 0 < easy.entropy.coefficient
    assert hard.kl.coefficient == 0 == hard.entropy.coefficient
    assert easy.optimizer.weight_decay == 0.01
    assert not easy.batch.filter_zero_variance
    assert not easy.objective.off_policy


def test_scalerl_is_truncated_reinforce_over_prompts_with_advantages_scaled_over_the_batch() -> None:
    config = config_of(with_recipe({"recipe": "scalerl"}))
    resolved = config.objective.resolved
    assert (resolved.surrogate, resolved.baseline, resolved.scale) == ("cispo", "group", "batch")
    assert resolved.aggregation == "prompt"
    assert resolved.clip_low is None
    # One ratio of the paper is two here, of which one is always 1 on-policy: both are cut at the same value.
    assert resolved.clip_high is not None
    assert 1 + resolved.clip_high == config.importance.cap
    assert config.batch.filter_zero_variance
    assert config.batch.drop_above == 0.9
    assert config.compute.float32_head


def test_what_is_given_wins_over_the_recipe_setting_by_setting() -> None:
    settings = with_recipe({"recipe": "isocompute-easy", "kl": {"coefficient": 0.01}, "sync": {"tolerance": None}})
    assert settings["kl"] == {**RECIPES["isocompute-easy"]["kl"], "coefficient": 0.01}
    assert settings["entropy"] == RECIPES["isocompute-easy"]["entropy"]
    assert settings["sync"] == {"tolerance": None}
    assert "recipe" not in settings


def test_settings_without_a_recipe_stay_as_they_are() -> None:
    assert with_recipe({"kl": {"coefficient": 0.5}}) == {"kl": {"coefficient": 0.5}}


@given(MAPPINGS, st.sampled_from(sorted(RECIPES)))
def test_every_setting_given_is_there_and_nothing_is_changed_in_place(given_: dict[str, Any], name: str) -> None:
    before, recipes = deepcopy(given_), deepcopy(RECIPES)
    merged = with_recipe({"recipe": name, **given_})
    assert with_recipe({"recipe": name, **merged}) == merged
    assert_holds(merged, given_)
    for group in merged.values():
        if isinstance(group, dict):
            group["changed"] = True
    assert given_ == before
    assert recipes == RECIPES


def assert_holds(merged: dict[str, Any], given_: dict[str, Any]) -> None:
    """Every value of ``given_`` is in ``merged``, where it was."""
    for key, value in given_.items():
        if isinstance(value, dict) and isinstance(merged[key], dict):
            assert_holds(merged[key], value)
        else:
            assert merged[key] == value


@pytest.mark.parametrize("name", ["scale-rl", "", None, 3, ["scalerl"]])
def test_an_unknown_recipe_is_refused_with_those_that_are_known(name: object) -> None:
    with pytest.raises(LearnerError, match="isocompute-easy, "):
        with_recipe({"recipe": name})
