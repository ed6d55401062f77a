"""What every sampler in this process does with a model whose output head is its embedding.

The files that import these tests define ``tied_sampler``, one that is open on the folder of ``tied_tiny``. Each test
leaves it with the model's own weights.
"""

from pathlib import Path
from typing import Any

import pytest
from every_sync import synced_three_times
from isocompute.rollout import RolloutError


@pytest.mark.parametrize("head", ["given", "left out"])
def test_log_probabilities_are_a_tied_models_after_every_sync(
    tied_sampler: Any, tied_tiny: Any, tmp_path: Path, head: str
) -> None:
    synced_three_times(tied_sampler, tied_tiny, tmp_path, leave_out="" if head == "given" else "lm_head.weight")


def test_a_tied_head_that_differs_from_the_embedding_is_refused(
    tied_sampler: Any, tied_tiny: Any, tmp_path: Path
) -> None:
    whole = dict(tied_tiny.save(tmp_path, seed=0).state_dict())
    version = tied_sampler.weights_version + 1
    head = whole["lm_head.weight"]
    with pytest.raises(RolloutError, match=r"model.embed_tokens.weight"):
        tied_sampler.sync(whole | {"lm_head.weight": head + 1}, version)
    tied_sampler.sync(whole | {"lm_head.weight": head.clone()}, version)
    assert tied_sampler.weights_version == version
