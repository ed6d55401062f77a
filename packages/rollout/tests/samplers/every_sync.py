"""Syncs of every sampler whose weights can be replaced, and of those in this process with a tied output head.

The files that import these tests define ``sampler`` as for ``every_sampler``, and ``tied_sampler``, open on the folder
of ``tied_tiny``, where they import those of tied models. Each test leaves it with the model's own weights.
"""

import os
import random
from pathlib import Path
from typing import Any

import pytest
from hashed import Lost
from isocompute.rollout import RolloutError, Sampling

FAULTS = int(os.environ.get("ISOCOMPUTE_ROLLOUT_FAULTS", "10")) // 10


def replayed(row: dict[str, Any], policies: Any, sampling: Sampling) -> list[float]:
    """Log-probabilities of a response, token by token, each after the cache that the weights of then have left.

    Args:
        row: Of a ``rollouts`` table.
        policies: The model of each version.
    """
    import torch
    from isocompute.rollout.samplers.transformers import distribution

    ids, starts = row["response_ids"], dict(zip(row["version_starts"], row["versions"], strict=True))
    sampled = row.get("sampled") or [True] * len(ids)
    found: list[float] = []
    cache: Any = None
    new, version = list(row["prompt_ids"]), -1
    for at, token in enumerate(ids):
        version = starts.get(at, version)
        if not sampled[at]:
            # What follows an interruption is read anew, prompt and all.
            found.append(0.0)
            cache, new = None, [*row["prompt_ids"], *ids[: at + 1]]
            continue
        with torch.no_grad():
            out = policies[version](input_ids=torch.tensor([new]), past_key_values=cache, use_cache=True)
        cache, new = out.past_key_values, [token]
        found.append(float(distribution(out.logits[:, -1], sampling)[0, token]))
    return found


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
    one = torch.zeros(1)
    for message, weights in (
        (f"lacks the tensor {last}", [pair for pair in whole.items() if pair[0] != last]),
        (r"lacks the tensor .* and \d+ more", []),
        ("the tensor nonsense, which the model does not have", whole | {"nonsense": one}),
        (r"the tensor model.norm.weight as \(1,\); the model", whole | {"model.norm.weight": one}),
        (r"brings the tensor .* twice", [*whole.items(), (last, whole[last])]),
    ):
        with pytest.raises(RolloutError, match=message):
            sampler.sync(weights, version + 1)
        with pytest.raises(RolloutError, match="the last sync failed"):
            tiny.sample(sampler)
    sampler.sync(whole, version + 1)
    after = tiny.sample(sampler)
    assert sampler.weights_version == version + 1
    assert after["response_ids"].to_list() == before["response_ids"].to_list()


def test_a_sync_in_the_middle_of_a_stream_is_refused(sampler: Any, tiny: Any) -> None:
    own, version = tiny.save(tiny.folder, seed=0).state_dict(), sampler.weights_version
    stream = sampler.stream(tiny.problems, samples=40, seed=3, step=1)
    next(stream)
    with pytest.raises(RolloutError, match="a stream is still open"):
        sampler.sync(own, version + 1)
    assert {value for group in stream for value in group["weights_version"].to_pylist()} == {version}
    sampler.sync(own, version + 1)
    assert sampler.weights_version == version + 1


@pytest.mark.parametrize("number", range(FAULTS))
def test_a_sync_cut_off_in_the_middle_blocks_sampling_until_a_whole_one(
    sampler: Any, tiny: Any, tmp_path: Path, number: int
) -> None:
    source, before, version = random.Random(number), tiny.sample(sampler), sampler.weights_version
    other = list(tiny.save(tmp_path, seed=source.randrange(1, 100)).state_dict().items())
    for _ in range(source.randint(1, 3)):
        lost = source.randrange(len(other))

        def torn(lost: int = lost) -> Any:
            yield from other[:lost]
            raise OSError("the disk is gone")

        whole = ((name, Lost(t) if i == lost else t) for i, (name, t) in enumerate(other))
        for error, message, weights in (
            (RolloutError, "not take over the weights", whole),
            (OSError, "the disk is gone", torn()),
        ):
            with pytest.raises(error, match=message):
                sampler.sync(weights, version + 1)
            with pytest.raises(RolloutError, match="the last sync failed"):
                next(sampler.stream(tiny.problems, samples=4, seed=3, step=1))
            assert sampler.weights_version == version
    policy, own = (tiny.save(tmp_path, seed=seed) for seed in (source.randrange(1, 100), 0))
    sampler.sync(policy.state_dict().items(), version + 1)
    assert tiny.largest_difference(policy, tiny.sample(sampler)) < 1e-4
    sampler.sync(own.state_dict(), version + 2)
    assert tiny.sample(sampler)["response_ids"].to_list() == before["response_ids"].to_list()


@pytest.mark.parametrize("leave_out", ["", "lm_head.weight"], ids=["given", "left out"])
def test_log_probabilities_are_a_tied_models_after_every_sync(
    tied_sampler: Any, tied_tiny: Any, tmp_path: Path, leave_out: str
) -> None:
    synced_three_times(tied_sampler, tied_tiny, tmp_path, leave_out=leave_out)
