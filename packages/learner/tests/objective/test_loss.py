"""The objective on tensors alone."""

from dataclasses import fields, replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from isocompute.learner.config import (
    ALGORITHMS,
    KL_ESTIMATORS,
    LEVELS,
    CriticConfig,
    EntropyConfig,
    ImportanceConfig,
    KLConfig,
    LearnerConfig,
    ObjectiveConfig,
)
from isocompute.learner.errors import LearnerError
from isocompute.learner.objective.loss import TIS, ObjectiveInputs, loss_metrics, objective
from isocompute.learner.records.steps import Share, added

PLAIN = LearnerConfig(learning_rate=1.0)
WHOLE = LearnerConfig(
    learning_rate=1.0,
    kl=KLConfig(coefficient=0.1),
    entropy=EntropyConfig(coefficient=0.01),
    importance=ImportanceConfig(cap=1.5),
)
SEEDS = st.integers(0, 2**32 - 1)
SIZES = st.lists(st.integers(0, 5), min_size=1, max_size=5).filter(any)
CONFIGS = [
    LearnerConfig(
        learning_rate=1.0,
        objective=ObjectiveConfig(algorithm=algorithm, constant_length=7, updates_per_batch=2),
        importance=ImportanceConfig(level=level, cap=1.2),
        kl=KLConfig(coefficient=0.1, estimator=estimator),
        entropy=EntropyConfig(coefficient=0.01),
    )
    for algorithm in ALGORITHMS
    for level, estimator in zip(LEVELS, KL_ESTIMATORS, strict=True)
]


def inputs(sizes: list[int], seed: int = 0, *, on_policy: bool = False) -> ObjectiveInputs:
    """Responses of some lengths with random numbers; the second one's group has equal rewards."""
    random = torch.Generator().manual_seed(seed)
    count = sum(sizes)

    def normal(scale: float) -> torch.Tensor:
        return torch.randn(count, generator=random, dtype=torch.float64) * scale

    old = -normal(1.0).abs() - 0.1
    logprobs = (old + normal(0.2)).requires_grad_()
    response = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    return ObjectiveInputs(
        logprobs=logprobs,
        sampler_logprobs=(logprobs.detach() if on_policy else old) + normal(0.2),
        advantages=normal(1.0),
        weights=(1.0 + response) / 50,
        response=response,
        responses=len(sizes),
        zero_variance=response == 1,
        entropy=-logprobs * 0.5,
        old_logprobs=None if on_policy else old,
        reference_logprobs=old + normal(0.3),
        values=normal(1.0).requires_grad_(),
        old_values=normal(1.0),
        returns=normal(1.0),
    )


def cut(whole: ObjectiveInputs, responses: list[int]) -> ObjectiveInputs:
    """A micro-batch of some of the responses, numbered anew."""
    chosen = torch.isin(whole.response, torch.tensor(responses))
    parts: dict[str, Any] = {}
    for field in fields(whole):
        tensor = getattr(whole, field.name)
        parts[field.name] = tensor[chosen] if isinstance(tensor, torch.Tensor) else tensor
    place = torch.full((whole.responses,), -1)
    place[torch.tensor(responses, dtype=torch.long)] = torch.arange(len(responses))
    return ObjectiveInputs(**parts | {"response": place[parts["response"]], "responses": len(responses)})


@pytest.mark.slow
@given(SIZES, SEEDS)
def test_the_loss_is_the_formula_written_out(sizes: list[int], seed: int) -> None:
    """And its gradient: of −w·A·π/π_old it is −w·A, of k3 1 − π_ref/π, of the entropy of these inputs −0.5."""
    tokens = inputs(sizes, seed, on_policy=True)
    loss, metrics = objective(tokens, WHOLE)
    loss.backward()
    expected, gradient = 0.0, []
    policies, advantages = (
        (tokens.logprobs.detach(), tokens.sampler_logprobs, tokens.reference_logprobs),
        tokens.advantages,
    )
    for policy, sampler, reference, advantage, share in zip(*policies, advantages, tokens.weights, strict=True):
        weight = (policy - sampler).exp().clamp(max=1.5)
        kl = (reference - policy).exp() - (reference - policy) - 1
        expected += float(share * (-weight * advantage + 0.1 * kl - 0.01 * (-policy * 0.5)))
        gradient.append(share * (-weight * advantage + 0.1 * (1 - (reference - policy).exp()) + 0.005))
    assert loss.item() == pytest.approx(expected, abs=1e-9)
    assert torch.allclose(tokens.logprobs.grad, torch.stack(gradient), atol=1e-12)
    assert metrics["loss"].value == pytest.approx(expected, abs=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("config", CONFIGS)
@given(SIZES, SEEDS, st.sets(st.integers(0, 4)))
@settings(max_examples=20)
def test_shares_of_an_update_add_up_however_it_is_cut(
    config: LearnerConfig, sizes: list[int], seed: int, first: set[int]
) -> None:
    whole = inputs(sizes, seed)
    leaves = (whole.logprobs, whole.values)
    loss, metrics = objective(whole, config)
    expected = torch.autograd.grad(loss, leaves, allow_unused=True, retain_graph=True)
    in_first = [i for i in range(len(sizes)) if i in first]
    halves = (in_first, [i for i in range(len(sizes)) if i not in first])
    parts = [objective(cut(whole, half), config) for half in halves]
    found = torch.autograd.grad(sum(share for share, _ in parts), leaves, allow_unused=True)
    assert sum(float(share.detach()) for share, _ in parts) == pytest.approx(float(loss.detach()), abs=1e-9)
    for one, other in zip(found, expected, strict=True):
        assert (one is None) == (other is None)
        assert one is None or torch.allclose(one, other, atol=1e-9)
    for name, metric in added(parts[0][1], parts[1][1]).items():
        assert float(metric.total) == pytest.approx(float(metrics[name].total), abs=1e-9)
        assert float(metric.count) == float(metrics[name].count)


@pytest.mark.parametrize("config", [*CONFIGS, PLAIN])
def test_the_names_and_kinds_of_metrics_depend_on_the_settings_alone(config: LearnerConfig) -> None:
    nothing = loss_metrics(config)
    for sizes in ([3, 2], [0, 0]):
        _, found = objective(inputs(sizes), config)
        assert list(found) == list(nothing)
        assert {name: type(metric) for name, metric in found.items()} == {n: type(m) for n, m in nothing.items()}
        for metric in found.values():
            assert (metric.total.dtype, metric.count.dtype) == (torch.float64, torch.float64)
            assert not metric.total.requires_grad
            assert metric.total.shape == metric.count.shape == ()
    assert all(float(metric.total) == float(metric.count) == 0 for metric in nothing.values())
    assert {name for name, metric in nothing.items() if isinstance(metric, Share)} <= {
        "loss",
        "policy_loss",
        "value_loss",
    }


def test_terms_that_are_off_add_nothing_and_need_nothing() -> None:
    needless = {"entropy": None, "reference_logprobs": None, "values": None, "old_values": None, "returns": None}
    tokens = replace(inputs([2, 3], on_policy=True), **needless)
    loss, metrics = objective(tokens, PLAIN)
    weights = (tokens.logprobs - tokens.sampler_logprobs).exp().clamp(max=2.0).detach()
    assert loss.item() == pytest.approx(float((-tokens.weights * weights * tokens.advantages).sum()))
    assert not {"kl", "entropy", "value_loss"} & set(metrics)
    assert metrics["policy_loss"].value == metrics["loss"].value


@pytest.mark.parametrize("regulariser", ["kl", "entropy"])
def test_a_masked_regulariser_leaves_out_groups_of_equal_rewards_alone(regulariser: str) -> None:
    settings_of = {"kl": KLConfig, "entropy": EntropyConfig}[regulariser]
    losses = {}
    for masked in (False, True):
        tokens = inputs([2, 3, 1], on_policy=True)
        config = LearnerConfig(
            learning_rate=1.0, **{regulariser: settings_of(coefficient=0.1, mask_zero_variance=masked)}
        )
        loss, metrics = objective(tokens, config)
        loss.backward()
        losses[masked] = (tokens.logprobs.grad, metrics[regulariser].value)
    plain = inputs([2, 3, 1], on_policy=True)
    objective(plain, PLAIN)[0].backward()
    inside = plain.response == 1
    assert torch.equal(losses[True][0][inside], plain.logprobs.grad[inside])
    assert torch.equal(losses[True][0][~inside], losses[False][0][~inside])
    assert not torch.isclose(losses[False][0][inside], plain.logprobs.grad[inside]).any()
    # What is measured is the mean over all tokens either way.
    assert losses[True][1] == losses[False][1]


def test_an_entropy_that_is_measured_changes_nothing_else() -> None:
    one, other = inputs([2, 3]), inputs([2, 3])
    loss, metrics = objective(one, LearnerConfig(learning_rate=1.0, entropy=EntropyConfig(measured=True)))
    expected, _ = objective(other, PLAIN)
    assert torch.equal(loss, expected)
    assert metrics["entropy"].value == pytest.approx(float(one.entropy.detach().mean()))


@pytest.mark.parametrize("level", TIS)
def test_the_correction_for_the_sampler_weighs_the_policys_term_and_no_regulariser(level: str) -> None:
    tokens = inputs([2, 3])
    config = replace(WHOLE, importance=ImportanceConfig(level=level, cap=1.1))
    _, metrics = objective(tokens, config)
    weights = TIS[level](tokens.old_logprobs, tokens.sampler_logprobs, tokens.response, 2, cap=1.1)
    assert metrics["importance_weight"].value == pytest.approx(float(weights.mean()))
    _, without = objective(tokens, replace(WHOLE, importance=ImportanceConfig(level="none")))
    regularisers = [m["loss"].value - m["policy_loss"].value for m in (metrics, without)]
    assert regularisers[0] == pytest.approx(regularisers[1])


def test_the_correction_is_for_the_policy_of_before_the_batchs_first_update() -> None:
    """What has happened since is the surrogate's ratio, which is clipped."""
    tokens = inputs([2, 3])
    same = replace(tokens, sampler_logprobs=tokens.old_logprobs)
    _, metrics = objective(same, PLAIN)
    assert metrics["importance_weight"].value == 1.0
    assert metrics["mismatch_k3"].value == 0.0
    assert metrics["ratio"].value == pytest.approx(float((tokens.logprobs.detach() - tokens.old_logprobs).exp().mean()))


def test_the_value_loss_is_a_part_of_its_own() -> None:
    config = LearnerConfig(
        learning_rate=1.0, objective=ObjectiveConfig(algorithm="ppo"), critic=CriticConfig(clip=None, coefficient=0.1)
    )
    tokens = inputs([2, 3])
    loss, metrics = objective(tokens, config)
    loss.backward()
    error = tokens.values.detach() - tokens.returns
    assert torch.allclose(tokens.values.grad, tokens.weights * error)
    assert metrics["value_loss"].value == pytest.approx(float((tokens.weights * error**2).sum() / 2))
    assert metrics["loss"].value == pytest.approx(metrics["policy_loss"].value + metrics["value_loss"].value)


def test_what_the_settings_need_must_be_there() -> None:
    tokens = inputs([2, 3])
    with pytest.raises(LearnerError, match="reference_logprobs"):
        objective(replace(tokens, reference_logprobs=None), WHOLE)
    with pytest.raises(LearnerError, match=r"entropy .* None"):
        objective(replace(tokens, entropy=None), WHOLE)
    critic = LearnerConfig(learning_rate=1.0, objective=ObjectiveConfig(algorithm="ppo"))
    for name in ("values", "returns"):
        with pytest.raises(LearnerError, match=f"{name} of "):
            objective(replace(tokens, **{name: None}), critic)


def test_float32_is_within_its_rounding_of_float64() -> None:
    tokens = inputs([3, 5, 2])
    single = replace(
        tokens,
        **{
            field.name: getattr(tokens, field.name).float()
            for field in fields(tokens)
            if isinstance(getattr(tokens, field.name), torch.Tensor) and getattr(tokens, field.name).is_floating_point()
        },
    )
    for config in CONFIGS:
        loss, metrics = objective(single, config)
        expected, exact = objective(tokens, config)
        assert loss.dtype == torch.float32
        assert loss.item() == pytest.approx(expected.item(), abs=1e-5)
        assert metrics["loss"].value == pytest.approx(exact["loss"].value, abs=1e-5)
