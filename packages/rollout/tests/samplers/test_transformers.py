"""transformers on a tiny random model."""

from pathlib import Path
from typing import Any

import pytest
from every_sampler import *  # noqa: F403
from isocompute.rollout import RolloutError, Sampling, open_sampler


@pytest.fixture(scope="module")
def kind() -> str:
    return "transformers"


@pytest.fixture(scope="module")
def sampler(tiny: Any) -> Any:
    return open_sampler("transformers", str(tiny.folder), tiny.sampling)


def test_a_model_that_cannot_be_loaded_is_named(tiny: Any, tmp_path: Path) -> None:
    with pytest.raises(RolloutError, match="cannot be loaded"):
        open_sampler("transformers", str(tmp_path), tiny.sampling)


@pytest.mark.parametrize("top_p", [0.0, -1.0, 1.5])
def test_a_top_p_outside_its_range_is_refused(top_p: float) -> None:
    with pytest.raises(RolloutError, match="top_p is"):
        Sampling(top_p=top_p)
