import resource
from pathlib import Path

import pytest
import torch
from isocompute.learner.checkpoint import Checkpoint, Checkpoints
from isocompute.learner.errors import CheckpointError


def checkpoint(step: int) -> Checkpoint:
    return Checkpoint(
        step=step,
        tensors={"w": torch.full((3,), float(step))},
        values={"version": step},
        progress={"evals": []},
    )


def test_the_newest_is_read_and_older_ones_go(tmp_path: Path) -> None:
    store = Checkpoints(tmp_path / "c")
    assert store.newest() is None
    store.save(checkpoint(1))
    store.save(checkpoint(12))
    newest = store.newest()
    assert newest is not None
    assert newest.step == 12
    assert newest.tensors["w"].tolist() == [12.0] * 3
    assert len(list((tmp_path / "c").iterdir())) == 1


def test_a_checkpoint_that_was_being_written_is_not_seen(tmp_path: Path) -> None:
    store = Checkpoints(tmp_path)
    store.save(checkpoint(1))
    (tmp_path / ".step-000000002.writing").mkdir()
    newest = store.newest()
    assert newest is not None
    assert newest.step == 1


def test_a_damaged_checkpoint_is_named(tmp_path: Path) -> None:
    folder = Checkpoints(tmp_path).save(checkpoint(1))
    (folder / "tensors.safetensors").write_bytes(b"no")
    with pytest.raises(CheckpointError, match="step-000000001"):
        Checkpoints(tmp_path).newest()


def test_a_folder_that_cannot_be_written_to_is_one_error(tmp_path: Path) -> None:
    (tmp_path / "c").write_text("a file where the folder should be")
    with pytest.raises(CheckpointError, match="cannot be written"):
        Checkpoints(tmp_path / "c").save(checkpoint(1))


def test_a_checkpoint_that_does_not_fit_leaves_the_one_before(tmp_path: Path) -> None:
    """The system ends a file at 64 kB here, as a full disk would."""
    store = Checkpoints(tmp_path)
    store.save(checkpoint(1))
    large = Checkpoint(step=2, tensors={"w": torch.zeros(100_000)}, values={}, progress={})
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**16, hard))
    try:
        with pytest.raises(CheckpointError, match="step-000000002: the checkpoint cannot be written"):
            store.save(large)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    newest = store.newest()
    assert newest is not None
    assert newest.step == 1
    assert len(list(tmp_path.iterdir())) == 1
