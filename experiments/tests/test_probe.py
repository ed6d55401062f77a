"""A real probe of a committed base model, and what is said where it settles nothing."""

import json
from dataclasses import asdict

import numpy as np
import pytest
from isocompute.learner.noise.scale import Interval
from isocompute.rollout.contract import tables

from experiments.errors import ExperimentError
from experiments.probe import Probe, probe, rollouts_of
from experiments.running.work import content_hash
from experiments.settings import Preset, load

from .made import PARAMS, ROOT

FOLDER = ROOT / "experiments" / "studies" / "panel" / "inputs" / "chains-0"


@pytest.fixture(scope="module")
def preset() -> Preset:
    own = load(PARAMS, "tiny")
    resources = own.resources.model_copy(update={"sampler": "transformers"})
    return own.model_copy(update={"resources": resources, "sweep": {"easy": own.sweep["hard"]}})


@pytest.mark.slow
def test_a_probe_measures_signal_and_noise_of_the_base_model(preset: Preset) -> None:
    model, problems = FOLDER / "base", tables.read(FOLDER / "easy.parquet", "problems")
    found = probe(preset, "easy", (str(model), content_hash(model)), problems, rollouts=1000)
    assert (found.problems, found.responses) == (31, 32)
    fresh = json.loads((FOLDER / "base.json").read_text())["easy"]["train"]["fresh"]
    assert abs(found.pass_rate - fresh) < 0.1
    shares = list(found.groups_with_signal.values())
    assert shares == sorted(shares)
    assert all(np.diff([scale.lower for scale in found.noise_scale.values()]) > 0)
    assert json.loads(json.dumps(asdict(found)))["first_guess"].keys() == {"value", "lower", "upper"}


def test_too_few_rollouts_are_refused_before_anything_is_loaded(preset: Preset) -> None:
    problems = tables.read(FOLDER / "easy.parquet", "problems")
    with pytest.raises(
        ExperimentError, match=r"8 training problems with 32 responses each; easy has 256.*enough for 7"
    ):
        probe(preset, "easy", ("", ""), problems, rollouts=255)


@pytest.mark.parametrize(("budget", "rollouts"), [(65_536, 8192), (2_000_000, 20_000)])
def test_a_probe_takes_a_hundredth_of_the_budget_and_no_less_than_tells_something(budget: int, rollouts: int) -> None:
    assert rollouts_of(budget) == rollouts


@pytest.mark.parametrize(
    ("guess", "said"),
    [
        (Interval(value=12.34, lower=8.1, upper=40.0), "first guess of n: 12 (8.1 to 40)"),
        (Interval(value=30.0, lower=8.1, upper=None), "first guess of n: unresolved: at least 8.1; more rollouts"),
        (Interval(value=None, lower=float("inf"), upper=None), "first guess of n: unresolved: no gradient was seen"),
    ],
)
def test_what_is_not_resolved_is_called_so(guess: Interval, said: str) -> None:
    found = Probe(
        problems=256,
        responses=32,
        pass_rate=0.06,
        groups_with_signal={2: 0.1},
        noise_scale={2: guess},
        problems_scale=guess,
        first_guess=guess,
    )
    assert said in "\n".join(found.lines())
