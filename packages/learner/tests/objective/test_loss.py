"""The objective on tensors alone, and the functions that it is made of."""

import math
from dataclasses import fields, replace
from functools import partial
from typing import Any, get_args

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from isocompute.learner.config import (
    ALGORITHMS,
    Aggregation,
    CriticConfig,
    EntropyConfig,
    ImportanceConfig,
    KLConfig,
    LearnerConfig,
    Level,
    ObjectiveConfig,
    PipelineConfig,
)
from isocompute.learner.objective.loss import (
    KL_ESTIMATORS,
    SURROGATES,
    ObjectiveInputs,
    Policies,
    Surrogate,
    importance_weights,
    loss_weights,
    objective,
    value_loss,
)
from isocompute.learner.records.steps import added

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
    for algorithm, level, estimator in zip(ALGORITHMS, 2 * get_args(Level), 2 * [*KL_ESTIMATORS], strict=True)
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
    policies = (tokens.logprobs.detach(), tokens.sampler_logprobs, tokens.reference_logprobs)
    for policy, sampler, reference, advantage, share in zip(*policies, tokens.advantages, tokens.weights, strict=True):
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
@settings(max_examples=15)
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


def test_the_correction_is_for_the_policy_of_before_the_batchs_first_update() -> None:
    """What has happened since is the surrogate's ratio, which is clipped."""
    tokens = inputs([2, 3])
    same = replace(tokens, sampler_logprobs=tokens.old_logprobs)
    _, metrics = objective(same, PLAIN)
    assert metrics["importance_weight"].value == 1.0
    assert metrics["mismatch_k3"].value == 0.0
    assert metrics["ratio"].value == pytest.approx(float((tokens.logprobs.detach() - tokens.old_logprobs).exp().mean()))


@pytest.mark.parametrize("name", SURROGATES)
def test_with_a_lag_a_token_is_weighted_once_by_the_policy_that_drew_it(name: str) -> None:
    """Whichever version that was: MiniMax-M1, equations 4 and 5; PPO, equation 7; PipelineRL, section 4."""
    config = replace(PLAIN, objective=ObjectiveConfig(surrogate=name), importance=ImportanceConfig(cap=1.2))
    tokens = replace(inputs([2, 3]), old_logprobs=None)
    alone, expected = replace(config, importance=ImportanceConfig(level="none")), tokens
    if name == "policy_gradient":
        alone = config
    else:
        expected = replace(tokens, old_logprobs=tokens.sampler_logprobs)
    found, wanted = objective(tokens, replace(config, pipeline=PipelineConfig(lag=2)))[0], objective(expected, alone)[0]
    assert torch.equal(found, wanted)
    assert torch.equal(*(torch.autograd.grad(loss, tokens.logprobs)[0] for loss in (found, wanted)))


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


RATIOS = st.floats(0.25, 4.0)
TOKENS = st.lists(st.tuples(RATIOS, st.floats(-2, 2)), min_size=1, max_size=8)
CLIPS: dict[str, float | None] = {"clip_low": 0.2, "clip_high": 0.3}


def tried(
    name: str,
    tokens: list[tuple[float, float]],
    *,
    on_policy: bool = False,
    response: list[int] | None = None,
    clips: dict[str, float | None] = CLIPS,
) -> tuple[torch.Tensor, Surrogate]:
    """A surrogate of tokens as (π/π_old, advantage), and the gradient of its sum by the log-probabilities."""
    ratios, advantages = torch.tensor(tokens, dtype=torch.float64).T
    old = torch.linspace(-2, -1, len(tokens), dtype=torch.float64)
    logprobs = (old + ratios.log()).requires_grad_()
    index = torch.tensor(response or [0] * len(tokens))
    policies = Policies(
        logprobs=logprobs, old_logprobs=None if on_policy else old, response=index, responses=int(index.max()) + 1
    )
    found = SURROGATES[name](policies, advantages, **clips)
    found.loss.sum().backward()
    return logprobs.grad, found


@pytest.mark.parametrize("name", SURROGATES)
@given(TOKENS)
@settings(max_examples=25)
def test_on_policy_all_have_the_policy_gradient(name: str, tokens: list[tuple[float, float]]) -> None:
    gradient, found = tried(name, tokens, on_policy=True)
    advantages = torch.tensor(tokens, dtype=torch.float64)[:, 1]
    assert torch.allclose(gradient, -advantages, atol=1e-12)
    assert torch.equal(found.ratio, torch.ones_like(found.ratio))
    assert not (found.clipped_low | found.clipped_high).any()


@given(RATIOS, st.floats(-2, 2).filter(lambda advantage: abs(advantage) > 0.01))
def test_clipping_takes_the_gradient_of_a_token_that_went_too_far(ratio: float, advantage: float) -> None:
    gradient, found = tried("clip", [(ratio, advantage)])
    too_far = (advantage > 0 and ratio > 1.3) or (advantage < 0 and ratio < 0.8)
    assert float(gradient) == pytest.approx(0.0 if too_far else -ratio * advantage, abs=1e-12)
    assert bool(found.clipped_low | found.clipped_high) == too_far
    assert float(found.loss.detach()) == pytest.approx(-min(ratio * advantage, min(max(ratio, 0.8), 1.3) * advantage))


@given(RATIOS, st.floats(-2, 2))
def test_cispo_keeps_the_gradient_of_every_token_and_bounds_its_weight(ratio: float, advantage: float) -> None:
    gradient, found = tried("cispo", [(ratio, advantage)])
    assert float(gradient) == pytest.approx(-min(max(ratio, 0.8), 1.3) * advantage, abs=1e-12)
    assert bool(found.clipped_low) == (ratio < 0.8)
    assert bool(found.clipped_high) == (ratio > 1.3)


def test_no_bound_is_no_bound() -> None:
    for name in ("clip", "cispo"):
        gradient, found = tried(name, [(100.0, 1.0), (0.001, -1.0)], clips={"clip_low": None, "clip_high": None})
        assert not (found.clipped_low | found.clipped_high).any()
        assert gradient.tolist() == pytest.approx([-100.0, 0.001])
    # A lower bound of 1 or more is none either: ratios are above 0.
    one, other = (tried("cispo", [(0.001, 1.0)], clips={"clip_low": low, "clip_high": None}) for low in (None, 1.5))
    assert torch.equal(one[0], other[0])


def test_a_responses_ratio_is_the_geometric_mean_of_its_tokens() -> None:
    tokens = [(1.1, 1.0), (1.0, 1.0), (0.25, 1.0), (4.0, 1.0), (3.0, 1.0)]
    gradient, found = tried("gspo", tokens, response=[0, 0, 1, 1, 2])
    assert found.ratio.tolist() == pytest.approx([1.1**0.5, 1.1**0.5, 1.0, 1.0, 3.0])
    assert found.clipped_high.tolist() == [False] * 4 + [True]
    # Inside a response ratios of 0.25 and 4 are not clipped, as each of them would be alone.
    assert gradient.tolist() == pytest.approx([-(1.1**0.5), -(1.1**0.5), -1.0, -1.0, 0.0])


def test_each_counts_what_its_name_says() -> None:
    """Responses of 1, 3 and 4 tokens; the first two in one group."""
    tokens, groups = np.array([1, 3, 4]), np.array([0, 0, 1])
    expected = {"token": np.full(3, 1 / 8), "sequence": [1 / 3, 1 / 9, 1 / 12], "prompt": np.full(3, 1 / 8)}
    expected["constant"] = np.full(3, 1 / 30)
    for name, weights in expected.items():
        assert loss_weights(tokens, groups, aggregation=name, constant_length=10) == pytest.approx(weights)
    last_two = loss_weights(tokens, np.array([0, 1, 1]), aggregation="prompt")
    assert last_two == pytest.approx([1 / 2, 1 / 14, 1 / 14])


@pytest.mark.parametrize("name", get_args(Aggregation))
def test_responses_without_tokens_change_nothing(name: str) -> None:
    weigh = partial(loss_weights, aggregation=name, constant_length=8)
    more = weigh(np.array([2, 0, 3, 0]), np.array([0, 0, 1, 2]))
    assert more[[0, 2]] == pytest.approx(weigh(np.array([2, 3]), np.array([0, 1])))
    assert len(weigh(np.zeros(0, int), np.zeros(0, int))) == 0


LEARNER = torch.tensor([-1.0, -2.0, -0.5, -0.1], dtype=torch.float64)
SAMPLER = torch.tensor([-1.5, -1.0, -0.5, -30.0], dtype=torch.float64)
RESPONSE = torch.tensor([0, 0, 2, 3])


def test_a_responses_weight_is_the_product_of_its_tokens_and_that_of_each_of_them() -> None:
    weigh = partial(importance_weights, LEARNER, SAMPLER, cap=2.0)
    found = weigh(RESPONSE, 4, level="sequence")
    assert found.tolist() == pytest.approx([math.exp(-0.5), math.exp(-0.5), 1.0, 2.0])
    assert torch.equal(weigh(torch.arange(4), 4, level="sequence"), weigh(RESPONSE, 4, level="token"))


def test_how_far_the_sampler_is() -> None:
    tokens = replace(inputs([2, 0, 1, 1, 0]), old_logprobs=LEARNER, sampler_logprobs=SAMPLER)
    metrics, difference = objective(tokens, PLAIN)[1], LEARNER - SAMPLER
    assert metrics["mismatch_kl"].value == pytest.approx(float(-difference.mean()))
    assert metrics["mismatch_k3"].value == pytest.approx(float((difference.exp() - difference - 1).mean()))
    # A ratio beyond e^20 says no more than one of e^20, and a response without tokens has none.
    for name, ratios in (
        ("token_ratio", [math.exp(0.5), math.exp(-1), 1.0, math.exp(20)]),
        ("response_ratio", [math.exp(-0.5), 1.0, math.exp(20)]),
    ):
        assert metrics[name].value == pytest.approx(math.fsum(ratios) / len(ratios))
        assert metrics[f"{name}_square"].value == pytest.approx(math.fsum(r**2 for r in ratios) / len(ratios))
        assert float(metrics[name].count) == len(ratios)


@pytest.mark.parametrize(("name", "unbiased"), [("k1", True), ("k2", False), ("k3", True)])
def test_the_mean_of_an_estimate_is_the_kl_and_its_gradient_is_its_own(name: str, unbiased: bool) -> None:
    """In the mean over the policy's answers k2 has the gradient of the KL, k1 none, and k3 that of the other one."""
    logits = torch.tensor([1.2, 0.1, -0.6], dtype=torch.float64, requires_grad=True)
    policy, reference = logits.log_softmax(0), torch.tensor([0.3, 0.3, 0.4], dtype=torch.float64).log()
    forward, backward = (policy.exp() * (policy - reference)).sum(), (reference.exp() * (reference - policy)).sum()
    estimate = (policy.detach().exp() * KL_ESTIMATORS[name](policy, reference)).sum()
    assert (float(estimate.detach()) == pytest.approx(float(forward.detach()), abs=1e-9)) == unbiased
    found, of_forward, of_backward = (
        torch.autograd.grad(each, logits, retain_graph=True)[0] for each in (estimate, forward, backward)
    )
    expected = {"k1": torch.zeros_like(logits), "k2": of_forward, "k3": of_backward}
    assert torch.allclose(found, expected[name], atol=1e-12)


def test_a_value_that_moved_far_towards_its_return_has_no_gradient() -> None:
    values = torch.tensor([0.8, -0.8, 0.8], requires_grad=True)
    returns, old = torch.tensor([1.0, 1.0, 1.0]), torch.zeros(3)
    loss = value_loss(values, returns, old, clip=0.5)
    loss.sum().backward()
    # The first has come near by more than 0.5; the second has gone away, and is drawn back.
    assert loss.tolist()[0] == 0.5 * 0.5**2
    assert values.grad[0] == 0
    assert values.grad[1] == values[1] - 1
    without = value_loss(values.detach(), returns, old)
    assert torch.equal(without, value_loss(values.detach(), returns, clip=0.5))
    assert torch.equal(without, 0.5 * (values.detach() - returns) ** 2)
