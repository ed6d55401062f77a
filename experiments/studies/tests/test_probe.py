"""The probe of a base model: the signal of its responses, and how many rollouts are too few for it."""

import json

import pytest
from isocompute.rollout.contract import tables

from experiments.errors import ExperimentError
from experiments.running.cell_folder import content_hash
from experiments.settings import Preset, load
from experiments.studies.panel.prepare import INPUTS
from experiments.studies.panel.probe import probe
from experiments.tests.made import PARAMS

FOLDER = INPUTS / "chains-0"


@pytest.fixture(scope="module")
def probed() -> Preset:
    own = load(PARAMS, "tiny")
    resources = own.resources.model_copy(update={"sampler": "transformers"})
    return own.model_copy(update={"resources": resources, "sweep": {"easy": own.sweep["hard"]}})


@pytest.mark.slow
def test_a_probe_measures_the_signal_of_the_base_model(probed: Preset) -> None:
    model, problems = FOLDER / "base", tables.read(FOLDER / "easy.parquet", "problems")
    found = probe(probed, "easy", (str(model), content_hash(model)), problems, rollouts=1000)
    assert (found.problems, found.responses) == (31, 32)
    fresh = json.loads((FOLDER / "base.json").read_text())["easy"]["train"]["fresh"]
    assert abs(found.pass_rate - fresh) < 0.1
    shares = list(found.groups_with_signal.values())
    assert shares == sorted(shares)
    assert f"{shares[0]:.0%} at n = 2" in "\n".join(found.lines())


def test_too_few_rollouts_are_refused_before_anything_is_loaded(probed: Preset) -> None:
    problems = tables.read(FOLDER / "easy.parquet", "problems")
    with pytest.raises(
        ExperimentError, match=r"8 training problems with 32 responses each; easy has 256.*enough for 7"
    ):
        probe(probed, "easy", ("", ""), problems, rollouts=255)
