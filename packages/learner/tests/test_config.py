"""Settings out of their range, or that contradict each other, are refused when they are made."""

from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st
from isocompute.learner import config as named
from isocompute.learner.config import (
    ALGORITHMS,
    RECIPES,
    TOLERANCES,
    AdapterConfig,
    BatchConfig,
    ComputeConfig,
    EntropyConfig,
    KLConfig,
    LearnerConfig,
    ObjectiveConfig,
    OptimizerConfig,
    RunConfig,
    SyncConfig,
    with_recipe,
)
from isocompute.learner.errors import LearnerError
from isocompute.learner.objective.loss import KL_ESTIMATORS, SURROGATES

RUN = RunConfig(
    run_id="r", rollouts_per_problem=4, problems_per_batch=8, seed=1, evaluate_every=512, evaluations_per_octave=2
)

ONE: dict[str, Any] = {"learning_rate": 1.0}
PLAIN = LearnerConfig(**ONE)
PPO, OF_A_BATCH = ObjectiveConfig(algorithm="ppo"), ObjectiveConfig(baseline="batch", scale="batch")


@pytest.mark.parametrize(
    ("group", "setting", "message"),
    [
        (LearnerConfig, {"learning_rate": "1e-3"}, "learning_rate is '1e-3'"),
        (KLConfig, {"place": "reward", "mask_zero_variance": True}, "mask_zero_variance needs place: loss"),
        (OptimizerConfig, {"beta2": 1.0}, r"beta2 is 1\.0"),
        (AdapterConfig, {"target_modules": ()}, r"target_modules is \(\)"),
        (OptimizerConfig, {"decay_steps": 100}, "decay_steps is 100, and a constant learning rate never falls"),
        (OptimizerConfig, {"decay": "linear"}, "decay_steps is 0; a linear decay must end after the warm-up of 10 s"),
        (OptimizerConfig, {"decay": "cosine", "decay_steps": 10}, "a cosine decay must end after the warm-up of 10 s"),
        (OptimizerConfig, {"decay_after": 5}, "decay_after is 5, and a constant learning rate never falls: it must"),
        (OptimizerConfig, {"decay": "linear", "decay_after": 99, "decay_steps": 99}, "after is 99; a decay must begin"),
        (LearnerConfig, ONE | {"objective": PPO, "batch": BatchConfig(trained_rollouts=2)}, "trained_rollouts is"),
        (LearnerConfig, ONE | {"objective": ObjectiveConfig(surrogate="policy_gradient", clip_low=0.2)}, "a bound of"),
        (LearnerConfig, ONE | {"objective": ObjectiveConfig(baseline="batch")}, "baseline 'batch'"),
        (LearnerConfig, ONE | {"objective": ObjectiveConfig(baseline="gae")}, "baseline 'gae'"),
        (LearnerConfig, ONE | {"objective": ObjectiveConfig(algorithm="dr_grpo")}, "constant_length"),
        (partial(replace, RUN), {"evaluate_every": 24}, "not a multiple of the batch of 32"),
        (LearnerConfig, ONE | {"temprature": 1.0}, "no setting 'temprature' .did you mean 'temperature'"),
    ],
)
def test_a_setting_out_of_its_range_or_that_contradicts_another_is_named(
    group: Any, setting: dict[str, object], message: str
) -> None:
    with pytest.raises(LearnerError, match=message):
        group(**setting)


@pytest.mark.parametrize(
    ("sampler", "learner", "type_of_both"),
    [
        ("float32", "float32", "float32"),
        ("float16", "float32", "float16"),
        ("float16", "bfloat16", "bfloat16"),
        ("float32", "bfloat16", "bfloat16"),
        ("bfloat16", "float32", "bfloat16"),
    ],
)
def test_what_the_sync_check_tolerates_follows_the_coarser_type(sampler: str, learner: str, type_of_both: str) -> None:
    config = replace(PLAIN, sampler_dtype=sampler, compute=ComputeConfig(precision=learner))
    assert config.tolerances == TOLERANCES[type_of_both]
    given = SyncConfig(k3=0.01)
    assert replace(config, sync=given).tolerances == given


@pytest.mark.parametrize("given", [{"tolerance": 1e-4}, {"mean": 1e-4}, {"k3": 1e-8}, {"mean": 0.06, "quantile": 1e-4}])
@pytest.mark.parametrize("changed", [{"sampler_dtype": "bfloat16"}, {"compute": ComputeConfig(precision="bfloat16")}])
def test_tolerances_of_float32_are_refused_where_rounding_alone_is_more(given: Any, changed: Any) -> None:
    assert replace(PLAIN, sync=SyncConfig(**given)).tolerances == SyncConfig(**given)
    with pytest.raises(LearnerError, match=rf"sync\.{list(given)[-1]} is .* bfloat16, .* must be left out"):
        replace(PLAIN, sync=SyncConfig(**given), **changed)


@pytest.mark.parametrize(
    ("decay", "decay_after", "expected"),
    [
        ("linear", 0, [0.5, 1.0, 0.8, 0.6, 0.4, 0.2, 0.0]),
        ("linear", 5, [0.5, 1.0, 1.0, 1.0, 1.0, 0.5, 0.0]),
        ("cosine", 0, [0.5, 1.0, 0.9045085, 0.6545085, 0.3454915, 0.0954915, 0.0]),
    ],
)
def test_a_decay_begins_after_the_warm_up_and_after_the_last_step_at_the_peak(
    decay: str, decay_after: int, expected: list[float]
) -> None:
    config = OptimizerConfig(warmup_steps=2, decay=decay, decay_after=decay_after, decay_steps=6)
    assert [config.factor_at(step) for step in range(1, 8)] == pytest.approx(expected, abs=1e-7)


def test_names_in_the_settings_are_those_of_the_functions() -> None:
    assert tuple(SURROGATES) == get_args(named.Surrogate)
    assert tuple(KL_ESTIMATORS) == get_args(named.Estimator)
    assert tuple(ALGORITHMS) == get_args(get_type_hints(ObjectiveConfig)["algorithm"])


def test_only_a_weight_without_gradient_may_have_a_lower_bound_of_0() -> None:
    for chosen in ({"algorithm": "cispo"}, {"surrogate": "cispo"}):
        assert named.ObjectiveConfig(clip_low=1.0, **chosen).resolved.clip_low == 1.0
    for chosen in ({}, {"algorithm": "cispo", "surrogate": "clip"}):
        with pytest.raises(LearnerError, match=r"clip_low is 1\.0"):
            named.ObjectiveConfig(clip_low=1.0, **chosen)


ROOT = Path(__file__).parents[3]


@pytest.mark.skipif(not (ROOT / "noxfile.py").is_file(), reason="there is no page beside a wheel")
@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_row_of_an_algorithm_has_its_parts(name: str) -> None:
    own, page = ALGORITHMS[name], (ROOT / "docs" / "algorithms.md").read_text()
    bounds = ", ".join("none" if bound is None else f"{bound}" for bound in (own.clip_low, own.clip_high))
    cells = [f"`{name}`", f"`{own.surrogate}`", bounds, f"`{own.baseline}`", f"`{own.scale}`", f"`{own.aggregation}`"]
    assert f"| {' | '.join(cells)} |" in page


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_is_a_valid_configuration(name: str) -> None:
    groups = {group: replace(getattr(PLAIN, group), **values) for group, values in RECIPES[name].items()}
    replace(PLAIN, **groups)


def test_what_is_given_wins_over_the_recipe_setting_by_setting() -> None:
    settings = with_recipe({"recipe": "isocompute-easy", "kl": {"coefficient": 0.01}, "sync": {"tolerance": None}})
    assert settings["kl"] == {**RECIPES["isocompute-easy"]["kl"], "coefficient": 0.01}
    assert settings["entropy"] == RECIPES["isocompute-easy"]["entropy"]
    assert settings["sync"] == {"tolerance": None}
    assert "recipe" not in settings


@pytest.mark.parametrize("name", ["scale-rl", None, ["scalerl"]])
def test_an_unknown_recipe_is_refused_with_those_that_are_known(name: object) -> None:
    with pytest.raises(LearnerError, match="isocompute-easy, "):
        with_recipe({"recipe": name})


@given(st.integers(1, 9))
def test_points_are_close_together_and_as_many_in_each_octave(per_octave: int) -> None:
    run, first = replace(RUN, evaluations_per_octave=per_octave), 512 * per_octave
    points = [at for at in range(0, first * 2**5 + 1, RUN.batch_rollouts) if run.evaluated_at(at)]
    # Before the first octave there is one at every multiple, and the ends of all octaves are on every grid.
    assert points[: per_octave + 1] == [512 * k for k in range(per_octave + 1)]
    for octave in range(5):
        begin = points.index(first * 2**octave)
        assert points[begin + per_octave] == first * 2 ** (octave + 1)
        steps = {after - at for at, after in pairwise(points[begin : begin + per_octave + 1])}
        assert steps == {512 * 2**octave}
    every = replace(RUN, evaluations_per_octave=None)
    assert [at for at in range(0, 4097, 32) if every.evaluated_at(at)] == [512 * k for k in range(9)]


@pytest.mark.parametrize(
    ("n", "settings", "message"),
    [
        (1, {}, "the advantage of grpo is relative to its group: it must be 2 or more"),
        (1, {"objective": PPO, "batch": BatchConfig(filter_zero_variance=True)}, "batch.filter_zero_variance is on"),
        (1, {"objective": OF_A_BATCH, "kl": KLConfig(coefficient=0.1, mask_zero_variance=True)}, "kl.mask_zero_"),
        (
            1,
            {"objective": OF_A_BATCH, "entropy": EntropyConfig(coefficient=0.1, mask_zero_variance=True)},
            "equal rewards, and entropy.mask_zero_variance is on",
        ),
        (4, {"batch": BatchConfig(trained_rollouts=5)}, "trained_rollouts is 5"),
        # Where no group is needed, and where a masked term is off.
        (1, {"objective": OF_A_BATCH, "kl": KLConfig(mask_zero_variance=True)}, None),
        (1, {"objective": PPO, "kl": KLConfig(coefficient=0.1)}, None),
    ],
)
def test_rollouts_per_problem_are_enough_for_what_is_learnt(
    n: int, settings: dict[str, Any], message: str | None
) -> None:
    config = LearnerConfig(learning_rate=1e-2, **settings)
    with pytest.raises(LearnerError, match=message) if message else nullcontext():
        replace(RUN, rollouts_per_problem=n).check(config)
