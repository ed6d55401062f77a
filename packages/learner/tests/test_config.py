import pytest
from isocompute.learner.config import LearnerConfig
from isocompute.learner.errors import LearnerError


def test_the_learning_rate_rises_linearly_and_stays() -> None:
    config = LearnerConfig(learning_rate=1.0, warmup_steps=4)
    assert [config.learning_rate_at(step) for step in (1, 2, 4, 5, 99)] == [0.25, 0.5, 1.0, 1.0, 1.0]
    assert LearnerConfig(learning_rate=1.0, warmup_steps=0).learning_rate_at(1) == 1.0


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"learning_rate": 0.0}, "learning_rate is 0.0; it has to be a positive number"),
        ({"learning_rate": "1e-3"}, "learning_rate is '1e-3'; it has to be a positive number"),
        ({"importance_cap": float("nan")}, "importance_cap is nan"),
        ({"kl_coefficient": -0.1}, "kl_coefficient is -0.1; it has to be a number, 0 or more"),
        ({"micro_batch_rollouts": 0}, "micro_batch_rollouts is 0"),
        ({"micro_batch_rollouts": 2.5}, "micro_batch_rollouts is 2.5"),
    ],
)
def test_a_setting_out_of_its_range_is_named(setting: dict[str, object], message: str) -> None:
    with pytest.raises(LearnerError, match=message):
        LearnerConfig(**({"learning_rate": 1.0} | setting))
