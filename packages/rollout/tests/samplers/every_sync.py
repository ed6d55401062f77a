"""What every sampler whose weights can be replaced does, besides ``every_sampler``.

The files that import these tests define ``sampler`` as there. Each test leaves it with the model's own weights.
"""

from pathlib import Path
from typing import Any

import pytest
from isocompute.rollout import RolloutError


def test_log_probabilities_are_the_models_after_every_sync(sampler: Any, tiny: Any, tmp_path: Path) -> None:
    synced_three_times(sampler, tiny, tmp_path, leave_out="")


def synced_three_times(sampler: Any, tiny: Any, folder: Path, *, leave_out: str) -> None:
    """Sync other weights, others again and the model's own, and compare with transformers each time."""
    begin = sampler.weights_version
    for version, seed in ((begin + 1, 5), (begin + 2, 6), (begin + 3, 0)):
        policy = tiny.save(folder, seed=seed)
        before = tiny.sample(sampler)
        weights = [(name, tensor) for name, tensor in policy.state_dict().items() if name != leave_out]
        sampler.sync(weights, version)
        after = tiny.sample(sampler)
        assert sampler.weights_version == version
        assert set(after["weights_version"]) == {version}
        assert after["response_ids"].to_list() != before["response_ids"].to_list()
        assert tiny.largest_difference(policy, after) < 1e-4


def test_a_sync_that_is_not_the_whole_model_is_refused_and_blocks_sampling(sampler: Any, tiny: Any) -> None:
    import torch

    whole = dict(tiny.save(tiny.folder, seed=0).state_dict())
    before, version = tiny.sample(sampler), sampler.weights_version
    last = list(whole)[-1]
    wrong = {
        f"a sync lacks the tensor {last}": {k: v for k, v in whole.items() if k != last},
        r"a sync lacks the tensor .* and \d+ more": {},
        "brings the tensor model.norm.nonsense, which the model does not have": whole
        | {"model.norm.nonsense": torch.zeros(1)},
        r"brings the tensor model.norm.weight as \(1,\); the model has it as \(32,\)": whole
        | {"model.norm.weight": torch.zeros(1)},
    }
    for message, weights in wrong.items():
        with pytest.raises(RolloutError, match=message):
            sampler.sync(weights, version + 1)
        with pytest.raises(RolloutError, match="the last sync failed"):
            tiny.sample(sampler)
    with pytest.raises(RolloutError, match=r"brings the tensor .* twice"):
        sampler.sync([*whole.items(), (last, whole[last])], version + 1)
    sampler.sync(whole, version + 1)
    after = tiny.sample(sampler)
    assert sampler.weights_version == version + 1
    assert after["response_ids"].to_list() == before["response_ids"].to_list()


def test_weights_that_end_in_an_error_block_sampling(sampler: Any, tiny: Any) -> None:
    whole = dict(tiny.save(tiny.folder, seed=0).state_dict())
    version = sampler.weights_version + 1

    def torn() -> Any:
        yield from list(whole.items())[:3]
        raise OSError("the disk is gone")

    with pytest.raises(OSError, match="the disk is gone"):
        sampler.sync(torn(), version)
    with pytest.raises(RolloutError, match="the last sync failed"):
        tiny.sample(sampler)
    sampler.sync(whole, version)
    assert len(tiny.sample(sampler)) == 24


def test_a_sync_in_the_middle_of_a_stream_is_refused(sampler: Any, tiny: Any) -> None:
    own, version = tiny.save(tiny.folder, seed=0).state_dict(), sampler.weights_version
    stream = sampler.stream(tiny.problems, samples=40, seed=3, step=1)
    next(stream)
    with pytest.raises(RolloutError, match="a stream is still open"):
        sampler.sync(own, version + 1)
    assert {value for group in stream for value in group["weights_version"].to_pylist()} == {version}
    sampler.sync(own, version + 1)
    assert sampler.weights_version == version + 1


class Lost:
    """A tensor of the right shape that is gone when it is copied."""

    def __init__(self, tensor: Any) -> None:
        self.shape, self.dtype, self.nbytes = tensor.shape, tensor.dtype, tensor.nbytes

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"the tensor is gone ({name})")


def test_a_sync_cut_off_in_the_middle_blocks_sampling_until_a_whole_one(
    sampler: Any, tiny: Any, tmp_path: Path
) -> None:
    before, version = tiny.sample(sampler), sampler.weights_version
    other, own = (tiny.save(tmp_path, seed=seed).state_dict() for seed in (5, 0))
    # A layer's query and key arrive, its value does not.
    name = "model.layers.1.self_attn.v_proj.weight"
    with pytest.raises(RolloutError, match="not take over the weights"):
        sampler.sync({key: Lost(value) if key == name else value for key, value in other.items()}, version + 1)
    with pytest.raises(RolloutError, match="the last sync failed"):
        tiny.sample(sampler)
    sampler.sync(own, version + 1)
    assert tiny.sample(sampler)["response_ids"].to_list() == before["response_ids"].to_list()
