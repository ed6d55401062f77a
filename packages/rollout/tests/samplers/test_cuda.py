"""vLLM on CUDA on a tiny random model, its sleep, and pools over CUDA IPC and NCCL; only where there are the GPUs."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from isocompute.rollout import RolloutError, open_sampler
from isocompute.rollout.samplers.sampling import EngineConfig

torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("there is no CUDA device: all of this file needs one", allow_module_level=True)
cumem = pytest.importorskip("vllm.device_allocator.cumem")


@pytest.fixture(scope="module", params=["untied", "tied"])
def model(request: pytest.FixtureRequest, tiny: Any, tied_tiny: Any) -> Any:
    return tiny if request.param == "untied" else tied_tiny


@pytest.fixture(scope="module")
def sampler(model: Any) -> Iterator[Any]:
    engine = EngineConfig(profile="cuda", memory_share=0.3, dtype="bfloat16")
    opened = open_sampler("vllm", str(model.folder), model.sampling, engine=engine)
    yield opened
    opened.close()


def test_log_probabilities_are_the_models_to_bfloat16_after_every_sync(
    sampler: Any, model: Any, tmp_path: Path
) -> None:
    for version, seed in ((1, 5), (2, 6), (3, 0)):
        policy = model.save(tmp_path, seed=seed)
        before = model.sample(sampler)
        sampler.sync({name: tensor.to("cuda") for name, tensor in policy.state_dict().items()}, version)
        after = model.sample(sampler)
        assert after["response_ids"].to_list() != before["response_ids"].to_list()
        # Weights of another seed would differ by more than 1 nat.
        assert model.largest_difference(policy, after) < 0.2


@pytest.mark.parametrize("level", [1, 2])
def test_an_engine_frees_the_gpu_while_it_sleeps_and_has_the_weights_of_the_sync_that_wakes_it(
    level: int, tiny: Any, tmp_path: Path
) -> None:
    engine = EngineConfig(profile="cuda", memory_share=0.3, dtype="bfloat16", sleep=level)
    if cumem.CuMemAllocator.get_instance().get_current_usage():
        pytest.skip("vLLM lets one engine of a process sleep, and another one has: run this test alone")
    opened = open_sampler("vllm", str(tiny.folder), tiny.sampling, engine=engine)
    awake = torch.cuda.mem_get_info()[0]
    first = tiny.sample(opened)
    # The KV cache is nearly all of its 0.3 of the GPU.
    assert torch.cuda.mem_get_info()[0] - awake > 0.1 * torch.cuda.mem_get_info()[1]
    if level == 1:
        assert tiny.sample(opened)["response_ids"].to_list() == first["response_ids"].to_list()
    else:
        with pytest.raises(RolloutError, match="discarded when it went to"):
            tiny.sample(opened)
    for version, seed in ((1, 5), (2, 6)):
        policy = tiny.save(tmp_path, seed=seed)
        opened.sync({name: tensor.to("cuda") for name, tensor in policy.state_dict().items()}, version)
        assert tiny.largest_difference(policy, tiny.sample(opened)) < 0.2
    opened.close()


@pytest.mark.parametrize("transport", ["object_store", "ipc", "nccl"])
def test_a_pool_on_gpus_has_the_weights_of_every_sync(
    transport: str, tiny: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ray = pytest.importorskip("ray")
    gpus = torch.cuda.device_count()
    if transport == "nccl" and gpus < 2:
        # NCCL refuses two processes of one host on one GPU; as of two hosts they send over a socket.
        monkeypatch.setenv("NCCL_SOCKET_IFNAME", "lo")
        monkeypatch.setenv("NCCL_HOSTID", "replica")
    ray.init(num_cpus=4, num_gpus=gpus, include_dashboard=False, object_store_memory=2**28, log_to_driver=False)
    monkeypatch.setenv("NCCL_HOSTID", "learner")
    # Ray gives a replica the first GPU: NCCL has the weights on the last one, CUDA IPC needs them on the same.
    torch.cuda.set_device(gpus - 1 if transport == "nccl" else 0)
    pool = {"replicas": 1, "num_gpus": 1.0 if transport == "nccl" and gpus > 1 else 0.5, "bucket_bytes": 20_000}
    engine = EngineConfig(profile="cuda", memory_share=0.3, dtype="bfloat16", sleep=1)
    opened: Any = open_sampler(
        "vllm", str(tiny.folder), tiny.sampling, engine=engine, replicas={**pool, "transport": transport}
    )
    for version, seed in ((1, 5), (2, 6), (3, 0)):
        policy = tiny.save(tmp_path, seed=seed)
        opened.sync({name: tensor.to("cuda") for name, tensor in policy.state_dict().items()}, version)
        after = tiny.sample(opened)
        assert set(after["weights_version"]) == {version}
        assert tiny.largest_difference(policy, after) < 0.2
    opened.close()
    ray.shutdown()
    torch.cuda.set_device(0)
