"""A vLLM engine in a Ray actor of its own, synced over vLLM's weight transfer."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from isocompute.rollout import RolloutError, open_sampler
from isocompute.rollout.samplers import transfer


@pytest.fixture(scope="module")
def remote(cluster: Any, tiny: Any) -> Iterator[Any]:
    pytest.importorskip("vllm")
    opened = open_sampler("vllm-remote", str(tiny.folder), tiny.sampling, transport="object_store")
    yield opened
    opened.close()


def test_an_engine_of_its_own_gives_the_tokens_of_the_engine_in_process(
    remote: Any, vllm_sampler: Any, tiny: Any
) -> None:
    remote_rollouts, local_rollouts = tiny.sample(remote), tiny.sample(vllm_sampler)
    assert remote_rollouts["response_ids"].to_list() == local_rollouts["response_ids"].to_list()
    assert remote_rollouts.drop("logprobs", "weights_version").equals(
        local_rollouts.drop("logprobs", "weights_version")
    )
    worst = (remote_rollouts["logprobs"].explode() - local_rollouts["logprobs"].explode()).abs().max()
    assert worst is not None
    assert worst < 1e-5


def test_log_probabilities_are_the_models_after_every_sync_of_an_engine_of_its_own(
    remote: Any, tiny: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Several chunks per sync, as for a model larger than one chunk.
    monkeypatch.setattr(transfer, "CHUNK_BYTES", 20_000)
    assert remote.weights_version == 0
    for version, seed in ((1, 5), (2, 6), (3, 0)):
        policy = tiny.save(tmp_path, seed=seed)
        before = tiny.sample(remote)
        remote.sync(policy.state_dict().items(), version)
        after = tiny.sample(remote)
        assert remote.weights_version == version
        assert set(after["weights_version"]) == {version}
        assert after["response_ids"].to_list() != before["response_ids"].to_list()
        assert tiny.largest_difference(policy, after) < 1e-4


def test_an_engine_of_its_own_refuses_as_one_in_process_does(remote: Any, tiny: Any) -> None:
    import torch

    long = tiny.problems.head(1).with_columns(prompt=pl.lit("1+1+1+1+1="), problem_id=pl.lit("long"))
    with pytest.raises(RolloutError, match=r"^problem long has a prompt of 10 tokens"):
        tiny.sample(remote, long)
    with pytest.raises(RolloutError, match=r"brings the tensor model.norm.nonsense, which the model does not have"):
        remote.sync([("model.norm.nonsense", torch.zeros(1))], 4)
    whole = dict(tiny.save(tiny.folder, seed=0).state_dict())
    last = list(whole)[-1]
    with pytest.raises(RolloutError, match=f"a sync lacks the tensor {last}"):
        remote.sync({name: tensor for name, tensor in whole.items() if name != last}, 4)
    with pytest.raises(RolloutError, match="weights may be incomplete"):
        tiny.sample(remote)


def test_an_engine_that_times_out_is_ended_and_the_call_is_named(
    remote: Any, cluster: Any, tiny: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = remote._actor
    # The real engine is not killed: it serves the tests after this.
    monkeypatch.setattr(cluster, "kill", lambda actor: None)
    monkeypatch.setattr(remote, "_answer_seconds", 0.0)
    monkeypatch.setattr(remote, "_whole", True)
    with pytest.raises(RolloutError, match="the engine timed out: sample took more than 0 s, and the engine was ended"):
        tiny.sample(remote, samples=16)
    with pytest.raises(RolloutError, match="the sampler is closed"):
        tiny.sample(remote)
    remote._actor = opened


def test_an_engine_that_has_died_is_reported(remote: Any, cluster: Any) -> None:
    cluster.kill(remote._actor)
    with pytest.raises(RolloutError, match="the engine's process has died"):
        remote.sync([], 5)


def test_a_cluster_without_room_is_reported(cluster: Any, tiny: Any) -> None:
    with pytest.raises(RolloutError, match=r"no room for it \(it has 2 CPUs and 0 GPUs\)"):
        open_sampler("vllm-remote", str(tiny.folder), tiny.sampling, num_gpus=8, start_seconds=1)
