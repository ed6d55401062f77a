"""Settings out of their range, or that contradict each other, are refused when they are made."""

import math
from contextlib import nullcontext
from dataclasses import fields, replace
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
    TOLERANCES,
    AdapterConfig,
    BatchConfig,
    ComputeConfig,
    CriticConfig,
    EntropyConfig,
    ImportanceConfig,
    KLConfig,
    LearnerConfig,
    ObjectiveConfig,
    OptimizerConfig,
    RunConfig,
    SyncConfig,
)
from isocompute.learner.errors import LearnerError
from isocompute.learner.objective.loss import KL_ESTIMATORS, SURROGATES
from isocompute.learner.recipes import RECIPES, with_recipe

RUN = RunConfig(
    run_id="r", rollouts_per_problem=4, problems_per_batch=8, seed=1, evaluate_every=512, evaluations_per_octave=2
)

ONE: dict[str, Any] = {"learning_rate": 1.0}
PLAIN = LearnerConfig(**ONE)
PPO, OF_A_BATCH = ObjectiveConfig(algorithm="ppo"), ObjectiveConfig(baseline="batch", scale="batch")


@pytest.mark.parametrize(
    ("group", "setting", "message"),
    [
        (LearnerConfig, {"learning_rate": 0.0}, r"learning_rate is 0\.0"),
        (LearnerConfig, {"learning_rate": "1e-3"}, "learning_rate is '1e-3'"),
        (ImportanceConfig, {"cap": float("nan")}, "cap is nan"),
        (ImportanceConfig, {"level": "word"}, "level is 'word'"),
        (KLConfig, {"place": "reward", "mask_zero_variance": True}, "mask_zero_variance needs place: loss"),
        (EntropyConfig, {"mask_zero_variance": 1}, "mask_zero_variance is 1"),
        (ObjectiveConfig, {"updates_per_batch": 0}, "updates_per_batch is 0"),
        (CriticConfig, {"gae_lambda": 1.5}, r"gae_lambda is 1\.5"),
        (CriticConfig, {"clip": 0}, "clip is 0"),
        (BatchConfig, {"drop_above": 1.5}, r"drop_above is 1\.5"),
        (ComputeConfig, {"micro_batch_tokens": 0}, "micro_batch_tokens is 0"),
        (OptimizerConfig, {"beta2": 1.0}, r"beta2 is 1\.0"),
        (OptimizerConfig, {"warmup_steps": 2.5}, r"warmup_steps is 2\.5"),
        (OptimizerConfig, {"decay_steps": 100}, "decay_steps is 100, and a constant learning rate has no horizon"),
        (OptimizerConfig, {"decay": "linear"}, "decay_steps is 0; a linear decay must end after the warm-up of 10 s"),
        (OptimizerConfig, {"decay": "cosine", "decay_steps": 10}, "a cosine decay must end after the warm-up of 10 s"),
        (OptimizerConfig, {"decay_after": 5}, "decay_after is 5, and a constant learning rate never falls: it must"),
        (OptimizerConfig, {"decay": "linear", "decay_after": 99, "decay_steps": 99}, "after is 99; a decay must begin"),
        (
            LearnerConfig,
            ONE | {"objective": PPO, "batch": BatchConfig(trained_rollouts=2)},
            "trained_rollouts is",
        ),
        (LearnerConfig, ONE | {"objective": ObjectiveConfig(surrogate="policy_gradient", clip_low=0.2)}, "a bound of"),
        (LearnerConfig, ONE | {"objective": ObjectiveConfig(baseline="batch")}, "baseline 'batch'"),
        (LearnerConfig, ONE | {"objective": ObjectiveConfig(baseline="gae")}, "baseline 'gae'"),
        (LearnerConfig, ONE | {"objective": ObjectiveConfig(algorithm="dr_grpo")}, "constant_length"),
        (AdapterConfig, {"rank": 0}, "rank is 0"),
        (AdapterConfig, {"target_modules": "q_proj"}, "target_modules is 'q_proj'"),
        (AdapterConfig, {"target_modules": ()}, r"target_modules is \(\)"),
        (SyncConfig, {"mean": 0.0}, r"mean is 0\.0"),
        (partial(replace, RUN), {"rollouts_per_problem": 0}, "rollouts_per_problem is 0; it must be .* 1"),
        (partial(replace, RUN), {"evaluate_every": 24}, "not a multiple of the batch of 32"),
        (LearnerConfig, ONE | {"temprature": 1.0}, "no setting 'temprature' .did you mean 'temperature'"),
        (partial(replace, RUN), {"evaluations_per_octave": 0}, "per_octave is 0; it must be .* 1"),
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


@pytest.mark.parametrize("name", ALGORITHMS)
def test_an_algorithm_is_its_parts_and_each_can_be_replaced(name: str) -> None:
    own = ObjectiveConfig(algorithm=name, constant_length=9).resolved
    assert own.surrogate == ALGORITHMS[name].surrogate
    assert None not in (own.baseline, own.scale, own.aggregation)
    other = ObjectiveConfig(algorithm=name, aggregation="sequence", clip_high=0.5).resolved
    assert (other.aggregation, other.clip_high) == ("sequence", 0.5)
    assert (other.surrogate, other.baseline, other.scale) == (own.surrogate, own.baseline, own.scale)


@pytest.mark.parametrize(
    ("decay", "decay_after", "expected"),
    [
        ("linear", 0, [0.5, 1.0, 0.8, 0.6, 0.4, 0.2, 0.0]),
        ("linear", 2, [0.5, 1.0, 0.8, 0.6, 0.4, 0.2, 0.0]),
        ("linear", 5, [0.5, 1.0, 1.0, 1.0, 1.0, 0.5, 0.0]),
        ("cosine", 0, [0.5, 1.0, 0.9045085, 0.6545085, 0.3454915, 0.0954915, 0.0]),
    ],
)
def test_a_decay_begins_after_the_warm_up_and_after_the_last_step_at_the_peak(
    decay: str, decay_after: int, expected: list[float]
) -> None:
    config = OptimizerConfig(warmup_steps=2, decay=decay, decay_after=decay_after, decay_steps=6)
    assert [config.factor_at(step) for step in range(1, 8)] == pytest.approx(expected, abs=1e-7)


@given(st.sampled_from(["linear", "cosine"]), st.integers(0, 30), st.integers(0, 60), st.integers(1, 60))
def test_up_to_the_last_step_at_the_peak_a_decay_is_the_constant_rate(
    decay: str, warmup_steps: int, decay_after: int, more: int
) -> None:
    constant = OptimizerConfig(warmup_steps=warmup_steps)
    last = max(warmup_steps, decay_after) + more
    decaying = replace(constant, decay=decay, decay_after=decay_after, decay_steps=last)
    same = range(1, decay_after + 1)
    assert [decaying.factor_at(step) for step in same] == [constant.factor_at(step) for step in same]
    peak = max(warmup_steps, decay_after)
    assert peak == 0 or decaying.factor_at(peak) == 1.0
    falling = [decaying.factor_at(step) for step in range(max(peak, 1), last + 2)]
    assert all(before > after for before, after in pairwise(falling))
    assert falling[-1] == 0.0


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


def config_of(settings: dict[str, Any]) -> LearnerConfig:
    groups = {
        name: replace(getattr(LearnerConfig(learning_rate=1e-6), name), **values) for name, values in settings.items()
    }
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


def test_the_two_ratios_that_scalerl_has_instead_of_one_are_cut_at_the_same_value() -> None:
    config = config_of(with_recipe({"recipe": "scalerl"}))
    assert 1 + config.objective.resolved.clip_high == config.importance.cap
    assert config.pipeline.lag == 8


def test_what_is_given_wins_over_the_recipe_setting_by_setting() -> None:
    settings = with_recipe({"recipe": "isocompute-easy", "kl": {"coefficient": 0.01}, "sync": {"tolerance": None}})
    assert settings["kl"] == {**RECIPES["isocompute-easy"]["kl"], "coefficient": 0.01}
    assert settings["entropy"] == RECIPES["isocompute-easy"]["entropy"]
    assert settings["sync"] == {"tolerance": None}
    assert "recipe" not in settings


@pytest.mark.parametrize("name", ["scale-rl", "", None, 3, ["scalerl"]])
def test_an_unknown_recipe_is_refused_with_those_that_are_known(name: object) -> None:
    with pytest.raises(LearnerError, match="isocompute-easy, "):
        with_recipe({"recipe": name})


def grid(run: RunConfig, budget: int) -> list[int]:
    """Rollouts at which a run of some budget is evaluated, step 0 included."""
    steps = range(budget // run.batch_rollouts + 1)
    return [step * run.batch_rollouts for step in steps if run.evaluated_at(step * run.batch_rollouts)]


@given(st.integers(1, 9))
def test_points_are_close_together_and_as_many_in_each_octave(per_octave: int) -> None:
    run = replace(RUN, evaluations_per_octave=per_octave)
    points = grid(run, 512 * per_octave * 2**5)
    regular = [at for at in points if at >= 512 * per_octave]
    assert all(after * per_octave <= at * (per_octave + 1) for at, after in pairwise(regular))
    octaves = [math.floor(math.log2(at / (512 * per_octave))) for at in regular[:-1]]
    assert [octaves.count(octave) for octave in range(5)] == [per_octave] * 5
    assert grid(replace(RUN, evaluations_per_octave=None), 512 * 9) == [512 * k for k in range(10)]
    # Before, there is one at every multiple, and the ends of all octaves are on every grid.
    assert points[: per_octave + 1] == [512 * k for k in range(per_octave + 1)]
    assert {512 * per_octave * 2**octave for octave in range(6)} <= set(points)


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
