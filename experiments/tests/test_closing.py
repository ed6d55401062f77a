"""What ``repro`` says at its end of other base models."""

import pytest

from experiments.closing import from_other_bases
from experiments.settings import load

from .made import PARAMS, ROOT


def test_what_was_found_from_other_bases_is_said_of_the_same_sweep_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    tiny = load(PARAMS, "tiny")
    assert "5 alone" in from_other_bases(tiny, "hard")
    longer = tiny.sweep["hard"].model_copy(update={"rollouts": 16384})
    assert from_other_bases(tiny.model_copy(update={"sweep": {"hard": longer}}), "hard") == ""
    assert from_other_bases(load(PARAMS, "smoke"), "hard") == ""
