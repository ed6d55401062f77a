"""Real TRL runs with a hooked generator, whose logs are read as the truth or refused: ``nox -s trainers``.

``nox -s trainers -- --trl-runs 200`` is the long campaign.
"""

import importlib
import os
from pathlib import Path

import pytest


def test_what_trl_generated_is_read_or_refused(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    os.environ.update(HF_HUB_OFFLINE="1", TRL_EXPERIMENTAL_SILENCE="1", CUDA_VISIBLE_DEVICES="")
    if "ISOCOMPUTE_TRAINERS" in os.environ:
        importlib.import_module("trl")
    pytest.importorskip("trl", exc_type=ImportError)
    from trl_runs import campaign, summary

    runs = int(request.config.getoption("--trl-runs", 20))
    outcomes = campaign(runs, tmp_path, int(request.config.getoption("--trl-seed", 0)))
    said = summary(outcomes)
    print(said)
    refused = sum(outcome.kind == "refused" for outcome in outcomes)
    assert not [outcome for outcome in outcomes if outcome.kind == "wrong"], said
    assert refused <= max(1, 0.05 * runs), said
