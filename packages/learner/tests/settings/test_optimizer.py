from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from isocompute.learner.config import LearnerConfig, OptimizerConfig
from isocompute.learner.errors import LearnerError


def test_the_learning_rate_rises_linearly_and_stays() -> None:
    config = LearnerConfig(learning_rate=2.0, optimizer=OptimizerConfig(warmup_steps=4))
    assert [config.learning_rate_at(step) for step in (1, 2, 4, 5, 99)] == [0.5, 1.0, 2.0, 2.0, 2.0]
    assert OptimizerConfig(warmup_steps=0).factor_at(1) == 1.0


@pytest.mark.parametrize(
    ("decay", "expected"),
    [
        ("linear", [0.5, 1.0, 0.8, 0.6, 0.4, 0.2, 0.0]),
        ("cosine", [0.5, 1.0, 0.9045085, 0.6545085, 0.3454915, 0.0954915, 0.0]),
    ],
)
def test_after_the_warm_up_the_learning_rate_falls_to_0_after_the_last_step_of_its_decay_and_stays(
    decay: str, expected: list[float]
) -> None:
    config = OptimizerConfig(warmup_steps=2, decay=decay, decay_steps=6)
    assert [config.factor_at(step) for step in range(1, 8)] == pytest.approx(expected, abs=1e-7)


@pytest.mark.parametrize(
    ("decay_after", "expected"),
    [
        (0, [0.5, 1.0, 0.8, 0.6, 0.4, 0.2, 0.0]),
        (1, [0.5, 1.0, 0.8, 0.6, 0.4, 0.2, 0.0]),
        (2, [0.5, 1.0, 0.8, 0.6, 0.4, 0.2, 0.0]),
        (4, [0.5, 1.0, 1.0, 1.0, 2 / 3, 1 / 3, 0.0]),
        (5, [0.5, 1.0, 1.0, 1.0, 1.0, 0.5, 0.0]),
    ],
)
def test_a_decay_begins_after_the_warm_up_and_after_the_last_step_at_the_peak(
    decay_after: int, expected: list[float]
) -> None:
    config = OptimizerConfig(warmup_steps=2, decay="linear", decay_after=decay_after, decay_steps=6)
    assert [config.factor_at(step) for step in range(1, 8)] == pytest.approx(expected, abs=1e-12)


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


@pytest.mark.parametrize(("decay", "build"), [("linear", "LinearLR"), ("cosine", "CosineAnnealingLR")])
def test_a_decay_is_that_of_torch(decay: str, build: str) -> None:
    config = OptimizerConfig(warmup_steps=0, decay=decay, decay_steps=19)
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.3)
    settings = {"T_max": 20} if decay == "cosine" else {"start_factor": 1.0, "end_factor": 0.0, "total_iters": 20}
    schedule = getattr(torch.optim.lr_scheduler, build)(optimizer, **settings)
    for step in range(1, 21):
        optimizer.step()
        schedule.step()
        assert 0.3 * config.factor_at(step) == pytest.approx(schedule.get_last_lr()[0], abs=1e-12)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"beta2": 1.0}, r"beta2 is 1\.0"),
        ({"beta1": -0.1}, "beta1 is -0.1"),
        ({"epsilon": 0.0}, r"epsilon is 0\.0"),
        ({"warmup_steps": 2.5}, r"warmup_steps is 2\.5"),
        ({"decay": "exponential"}, "decay is 'exponential'"),
        ({"decay_steps": 100}, "decay_steps is 100, and a constant learning rate has no horizon"),
        ({"decay": "linear"}, "decay_steps is 0; a linear decay must end after the warm-up of 10 steps"),
        ({"decay": "cosine", "decay_steps": 10}, "a cosine decay must end after the warm-up of 10 steps"),
        ({"decay_after": 5}, "decay_after is 5, and a constant learning rate never falls: it must be 0"),
        ({"decay": "linear", "decay_after": -1, "decay_steps": 99}, "decay_after is -1"),
        ({"decay": "linear", "decay_after": 99, "decay_steps": 99}, "decay_after is 99; a decay must begin before"),
        ({"decay": "cosine", "decay_steps": 99.5}, r"decay_steps is 99\.5"),
    ],
)
def test_a_setting_out_of_its_range_is_named(setting: dict[str, object], message: str) -> None:
    with pytest.raises(LearnerError, match=message):
        OptimizerConfig(**setting)  # type: ignore[arg-type]
