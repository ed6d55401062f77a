"""Settings of the learner and of the learning rate: how they are read, and what is refused."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from isocompute.learner import LearnerConfig
from isocompute.learner.recipes import RECIPES
from isocompute.rollout import Sampling

from experiments.errors import ExperimentError
from experiments.settings import load
from experiments.settings.model import DeclaredRate, learner_config

from ..made import PARAMS, changed

LEARNER = "sweep.easy.learner"
RATE = "sweep.easy.learning_rate"
ANCHOR = {
    "rule": "linear",
    "learning_rates": [0.001],
    "rollouts_per_problem": 2,
    "problems_per_batch": 32,
    "rollouts": 64,
    "evaluate_every": 64,
    "seeds": [9],
}

DECLARED = {"rule": "sqrt", "learning_rate": 1.0e-6}


def test_an_adapter_is_a_group_that_may_be_left_out(tmp_path: Path) -> None:
    for given, modules in (({}, ("all-linear",)), ({"target_modules": ["q_proj", "v_proj"]}, ("q_proj", "v_proj"))):
        settings = load(changed(tmp_path, f"{LEARNER}.adapter", given), "smoke").sweep["easy"].learner
        adapter = learner_config(settings, Sampling(), learning_rate=1.0).adapter
        assert adapter is not None
        assert adapter.target_modules == modules
    settings = load(changed(tmp_path, f"{LEARNER}.adapter", None), "smoke").sweep["easy"].learner
    assert learner_config(settings, Sampling(), learning_rate=1.0).adapter is None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "value", "message"),
    [
        (f"{LEARNER}.adapter", 4, "adapter is 4"),
        (f"{LEARNER}.adapter", {"ranks": 4}, ".did you mean 'rank'"),
        (f"{LEARNER}.adapter", {"rank": "4"}, "rank is '4'"),
        (f"{LEARNER}.adapter", {"rank": 0}, "adapter: rank is 0"),
        (f"{LEARNER}.adapter", {"target_modules": "q_proj"}, "is 'q_proj'; it must"),
        (f"{LEARNER}.adapter", {"target_modules": []}, "target_modules is .*"),
        (f"{LEARNER}.adapter", {"target_modules": [3]}, "target_modules.0. is 3"),
        (RATE, {"rule": "tuned"}, "learning_rate lacks"),
        (RATE, {"seeds": [1]}, "learning_rate lacks rule"),
        (f"{RATE}.rule", "cubic", "rule is 'cubic'"),
        (RATE, 1.0e-3, "learning_rate is 0.001"),
        (f"{RATE}.problems_per_batch", 4, "'problems_per_batch'"),
        (f"{RATE}.learning_rate_s", [1.0], ".*mean 'learning_rates'"),
        ("sweep.hard.learning_rate.learning_rate", 1.0, "learning_rate has both"),
        (f"{RATE}.learning_rate", 1.0, "learning_rate has both"),
        (RATE, {"rule": "tuned", "learning_rate": 1.0}, ".*'learning_rates'"),
        (RATE, DECLARED | {"rule": "root"}, "rule is 'root'"),
        (RATE, {"learning_rate": 1.0}, "learning_rate lacks rule"),
        (RATE, DECLARED | {"seeds": [900]}, "has no setting 'seeds'"),
        (RATE, DECLARED | {"batch_rollout": 8}, "you mean 'batch_rollouts'"),
        (RATE, DECLARED | {"batch_rollouts": 0}, "batch_rollouts is 0"),
        (RATE, DECLARED | {"learning_rate": 0.0}, "learning_rate is 0.0"),
        (RATE, DECLARED | {"learning_rate": "1e-6"}, "is '1e-6'"),
        ("sweep.hard.learning_rate", ANCHOR | {"problems_per_batch": 32}, "problems_per_batch is 32"),
        (f"{RATE}.extensions", -1, "extensions is -1"),
        (f"{RATE}.rollouts_per_problem", [1], "holds 1"),
        ("sweep.easy.rollouts_per_problem", [1, 2], "rollouts_per_problem"),
        ("sweep.easy.rollouts_per_problem", [0, 2], r"rollouts_per_problem\[0\]"),
        (LEARNER, {"kl": 1}, "kl is 1"),
        (LEARNER, {"kl_coefficient": 1}, "setting 'kl_coefficient'"),
        (LEARNER, {"kl": {"coeficient": 1}}, "'coeficient'.*'coefficient'"),
        (LEARNER, {"optimizer": {"beta2": 1.0}}, "optimizer: beta2 is 1.0"),
        (LEARNER, {"objective": {"algorithm": "pqo"}}, "algorithm is 'pqo'"),
        (LEARNER, {"recipe": "isocompute"}, "recipe is 'isocompute'"),
        (LEARNER, {"recipe": "scalerl", "kl": 3}, "kl is 3"),
        (LEARNER, {"objective": 3}, "objective is 3"),
        (LEARNER, {"batch": {"trained_rollouts": 4}}, "trained_rollouts is 4"),
        (LEARNER, {"temperature": 0.5}, "it is the sampler's"),
        (LEARNER, {"learning_rate": 0.5}, "a pilot finds it"),
        (LEARNER, {"optimizer": {"decay": "exponential"}}, "decay is 'exponential'"),
        (f"{RATE}.evaluate_every", 24, "and divide rollouts .16."),
        (f"{RATE}.seeds", [900, 1], "seeds holds 1"),
        (f"{RATE}.learning_rates", [-1.0], r"learning_rates\[0\] is"),
        (f"{RATE}.learning_rates", [1.0e-3, 0.0], r"learning_rates\[1\] is"),
        (f"{RATE}.learning_rates", [float("inf")], r"learning_rates\[0\] is"),
    ],
)
def test_what_cannot_be_is_one_clear_error(change: str, value: object, message: str, tmp_path: Path) -> None:
    with pytest.raises(ExperimentError, match=message) as refused:
        load(changed(tmp_path, change, value), "smoke")
    assert len(str(refused.value).splitlines()) == 1
    assert "pydantic" not in str(refused.value)


def of_a_cell(learner: Mapping[str, Any]) -> LearnerConfig:
    """The learner's settings of a cell with responses of 12 tokens."""
    return learner_config(learner, Sampling(max_new_tokens=12), learning_rate=1e-3)


def test_a_decay_needs_a_horizon_that_does_not_depend_on_the_budget(tmp_path: Path) -> None:
    path = changed(tmp_path, LEARNER, {"optimizer": {"decay": "cosine"}})
    with pytest.raises(ExperimentError, match="decay_steps is 0"):
        load(path, "smoke")
    path = changed(tmp_path, LEARNER, {"optimizer": {"decay": "cosine", "decay_steps": 99}})
    assert of_a_cell(load(path, "smoke").sweep["easy"].learner).optimizer.decay_steps == 99


def test_a_constant_length_is_the_longest_response_unless_it_is_given(tmp_path: Path) -> None:
    for objective, length in (
        ({"algorithm": "dr_grpo"}, 12),
        ({"aggregation": "constant"}, 12),
        ({"algorithm": "dr_grpo", "constant_length": 5}, 5),
        ({"algorithm": "dr_grpo", "aggregation": "token"}, None),
    ):
        sweep = load(changed(tmp_path, LEARNER, {"objective": objective}), "smoke").sweep["easy"]
        assert of_a_cell(sweep.learner).objective.constant_length == length


def test_a_recipe_is_what_is_not_given(tmp_path: Path) -> None:
    asked = {"recipe": "isocompute-easy", "kl": {"coefficient": 0.5}}
    learner = of_a_cell(load(changed(tmp_path, LEARNER, asked), "smoke").sweep["easy"].learner)
    own = of_a_cell(RECIPES["isocompute-easy"])
    assert learner.kl.coefficient == 0.5
    assert learner == replace(own, kl=replace(own.kl, coefficient=0.5))
    for name, recipe in RECIPES.items():
        # Every recipe is a configuration of this preset.
        read = load(changed(tmp_path, LEARNER, {"recipe": name}), "smoke").sweep["easy"].learner
        assert of_a_cell(read) == of_a_cell(recipe)


def test_a_group_of_one_is_legal_where_no_baseline_is_the_groups(tmp_path: Path) -> None:
    raw = yaml.safe_load(PARAMS.read_text())
    raw["smoke"]["sweep"]["easy"] |= {"rollouts_per_problem": [1, 2], "evaluate_every": 16}
    raw["smoke"]["prescribe"]["easy"]["baselines"] = [2]
    for objective, legal in (
        ({"algorithm": "ppo"}, True),
        ({"algorithm": "grpo", "baseline": "batch", "scale": "batch"}, True),
        ({"algorithm": "grpo"}, False),
    ):
        raw["smoke"]["sweep"]["easy"]["learner"] = {"objective": objective}
        (tmp_path / "params.yaml").write_text(yaml.safe_dump(raw))
        if legal:
            assert load(tmp_path / "params.yaml", "smoke").sweep["easy"].grid()[0] == (1, 4)
            continue
        with pytest.raises(ExperimentError, match="rollouts_per_problem"):
            load(tmp_path / "params.yaml", "smoke")


def test_what_is_searched_is_every_pair_or_those_of_some_n_or_the_anchors(tmp_path: Path) -> None:
    preset = load(PARAMS, "smoke")
    assert preset.sweep["easy"].searched() == [(2, 4), (4, 4)]
    assert preset.sweep["hard"].searched() == [(4, 4)]
    some = load(changed(tmp_path, f"{RATE}.rollouts_per_problem", [4]), "smoke")
    assert some.sweep["easy"].searched() == [(4, 4)]


def test_a_declared_rate_is_for_the_batch_of_the_playbook_and_searches_nothing(tmp_path: Path) -> None:
    sweep = load(changed(tmp_path, RATE, DECLARED), "smoke").sweep["easy"]
    assert sweep.learning_rate == DeclaredRate(rule="sqrt", learning_rate=1e-6, batch_rollouts=1024)
    assert (sweep.search, sweep.searched(), sweep.selecting_seeds()) == (None, [], {0, 1})


def test_a_search_is_one_though_a_rate_could_be_declared(tmp_path: Path) -> None:
    preset = load(PARAMS, "smoke")
    for name, seeds in (("easy", {0, 1, 900}), ("hard", {0, 900})):
        assert preset.sweep[name].search is preset.sweep[name].learning_rate
        assert preset.sweep[name].selecting_seeds() == seeds


def test_a_runs_identity_does_not_depend_on_how_a_number_was_written(tmp_path: Path) -> None:
    learner = load(changed(tmp_path, LEARNER, {"kl": {"coefficient": 1}}), "smoke").sweep["easy"].learner
    assert repr(of_a_cell(learner).kl.coefficient) == "1.0"
