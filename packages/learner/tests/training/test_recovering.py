"""A run whose ranks die is run again while it gets on; ``tests/ranks/test_group.py`` kills real ones."""

from pathlib import Path

import pytest
import torch
from isocompute.learner.errors import DivergenceError, RankError
from isocompute.learner.saving.checkpoint import Checkpoint, Checkpoints
from isocompute.learner.training.loop import through_deaths


def test_a_run_that_gets_no_further_ends_after_some_tries(tmp_path: Path) -> None:
    store = Checkpoints(tmp_path)
    tries = []

    def attempt() -> None:
        tries.append(store.newest_step())
        if len(tries) == 2:
            store.save(Checkpoint(step=5, tensors={"w": torch.zeros(1)}, values={}))
        raise RankError("rank 1 of 2 died")

    with pytest.raises(RankError, match="rank 1 of 2 died"):
        through_deaths(attempt, checkpoints=store, tries=3)
    assert tries == [None, None, 5, 5]


def test_any_other_error_is_raised_at_once(tmp_path: Path) -> None:
    tries = []

    def attempt() -> None:
        tries.append(1)
        raise DivergenceError("diverged")

    with pytest.raises(DivergenceError):
        through_deaths(attempt, checkpoints=Checkpoints(tmp_path))
    assert len(tries) == 1
