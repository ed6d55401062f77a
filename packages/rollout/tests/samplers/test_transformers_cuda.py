"""transformers on a GPU on a tiny random model, and weights of another process by CUDA IPC; only where there is one."""

import multiprocessing
from typing import Any

import pytest
from every_sampler import *  # noqa: F403
from every_sync import *  # noqa: F403
from isocompute.rollout import open_sampler
from isocompute.rollout.samplers import weights
from shared_weights import take

pytestmark = pytest.mark.slow("every test of a sampler")
torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("there is no CUDA device: all of this file needs one", allow_module_level=True)


@pytest.fixture(scope="module")
def sampler(tiny: Any) -> Any:
    return open_sampler("transformers", str(tiny.folder), tiny.sampling, device="cuda")


@pytest.fixture(scope="module")
def tied_sampler(tied_tiny: Any) -> Any:
    return open_sampler("transformers", str(tied_tiny.folder), tied_tiny.sampling, device="cuda")


def test_weights_of_another_process_come_by_cuda_ipc_however_the_device_is_named() -> None:
    given = {"a": torch.arange(1000.0, device="cuda"), "b": torch.ones(3, 5, dtype=torch.bfloat16, device="cuda")}
    devices = ["cuda", "cuda:0", torch.device("cuda"), torch.device("cuda", 0)]
    held = [weights.pack(list(given.items()), "cuda") for _ in devices]
    context = multiprocessing.get_context("spawn")
    answers = context.SimpleQueue()
    taken = [(weights.share(*each), device) for each, device in zip(held, devices, strict=True)]
    process = context.Process(target=take, args=(taken, answers))
    process.start()
    process.join()
    assert process.exitcode == 0
    for _ in devices:
        found = answers.get()
        assert list(found) == list(given)
        for name, tensor in given.items():
            assert found[name] == tensor.tolist()
