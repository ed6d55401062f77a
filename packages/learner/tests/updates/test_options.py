"""Each option changes what it should, and nothing else, in all that comes of one batch."""

from pathlib import Path

import pytest
import torch
from isocompute.learner.config import AdapterConfig, LearnerConfig
from isocompute.learner.objective.advantages import with_cohorts
from isocompute.learner.training.loop import learn
from isocompute.learner.updates.adam import Optimizer
from observed import ROUNDING, Watched, batch, differences, given, observed, options
from option_rows import CASES, PPO_AGAIN, TERMS, Case
from small_run import RUN

pytestmark = pytest.mark.slow("an update for each option")

ALWAYS = {"learning_rate", "temperature", "objective.epochs", "objective.updates_per_batch"}
"""Options that change what is measured or what it costs in every batch; in one case they change no gradient."""

OF_RANKS = {"compute.sharding"}
"""Options that one learner alone has no use for: see ``tests/ranks/test_sharding.py``."""


def test_every_option_has_a_case_in_which_it_acts_and_one_in_which_it_does_not() -> None:
    assert CASES.keys() == set(options(LearnerConfig(learning_rate=1.0, adapter=AdapterConfig()))) - OF_RANKS
    for option, cases in CASES.items():
        assert any(case.changes for case in cases), option
        least = min((case.changes for case in cases), key=len)
        assert not least & {"policy", "critic", "policy step", "critic step"}, option
        assert not least or option in ALWAYS, option


@pytest.mark.parametrize(
    ("option", "case"),
    [
        pytest.param(option, case, id=f"{option}-{'acts' if case.changes else 'idle'}-{number}")
        for option, cases in CASES.items()
        for number, case in enumerate(cases)
    ],
)
def test_an_option_changes_what_it_should_and_nothing_else(model: Path, option: str, case: Case) -> None:
    config = given(case.base, {option: case.value})
    assert config != case.base
    before, after = (observed(model, c, case.kind, case.start, case.dtype) for c in (case.base, config))
    found = differences(before, after)
    changed = {name for name, apart in found.items() if apart > ROUNDING}
    assert changed == case.changes
    assert case.rounding or found.keys() == changed, "what stays is the same bit for bit"
    assert all(found[name] <= case.most for name in changed)
    if "refused" in case.changes:
        named = f"above {option} = " if option.startswith("sync") else f"{option.rpartition('.')[2]} is {case.value}"
        assert named in after["refused"]


@pytest.mark.parametrize("config", [TERMS, PPO_AGAIN], ids=["one step", "two steps and a critic"])
def test_an_update_is_the_optimizer_s_step_with_the_gradient_of_the_batch(model: Path, config: LearnerConfig) -> None:
    learner, other = (Watched(model, config, dtype=torch.float64) for _ in range(2))
    learner.watch()
    learn(learner=learner, run=RUN, step=1, rollouts=with_cohorts(batch(model, "mixed"), config.batch))
    optimizer = Optimizer(other.policy, other.critic, config)
    for gradient in learner.gradients:
        for name, parameter in other.trained().items():
            parameter.grad = gradient[name].clone()
        optimizer.clip()
        optimizer.step(1)
    assert learner.gradients
    assert all(torch.equal(weight, other.trained()[name]) for name, weight in learner.trained().items())
