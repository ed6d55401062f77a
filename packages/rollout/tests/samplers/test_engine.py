"""Settings of engines: profiles, refusals, plain values."""

import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from isocompute.rollout import RolloutError
from isocompute.rollout.samplers.sampling import EngineConfig, engine_from, settings_of
from isocompute.rollout.samplers.vllm.sampler import engine_arguments


def test_the_profile_is_that_of_the_device_that_is_there() -> None:
    assert EngineConfig().resolved(longest=16, cuda=False).device == "cpu"
    assert EngineConfig().resolved(longest=16, cuda=True).device == "cuda"
    with pytest.raises(RolloutError, match="this process has no CUDA"):
        EngineConfig(profile="cuda").resolved(longest=16, cuda=False)
    with pytest.raises(RolloutError, match="in its build for CUDA"):
        EngineConfig(profile="cpu").resolved(longest=16, cuda=True)


def test_workarounds_for_cpu_do_not_apply_on_cuda() -> None:
    cpu, cuda = (EngineConfig().resolved(longest=2048, cuda=cuda) for cuda in (False, True))
    for name in ("chunked_prefill", "prefix_caching", "cuda_graphs"):
        assert (getattr(cpu, name), getattr(cuda, name)) == (False, True)
    assert (cpu.dtype, cuda.dtype) == ("float32", "auto")
    assert (cpu.async_scheduling, cuda.async_scheduling) == (False, None)
    assert (cpu.max_batched_tokens, cuda.max_batched_tokens) == (16_384, 8_192)


def test_without_chunked_prefill_the_longest_request_fits_into_one_pass() -> None:
    assert EngineConfig().resolved(longest=40_000, cuda=False).max_batched_tokens == 40_000
    assert EngineConfig().resolved(longest=40_000, cuda=True).max_batched_tokens == 8_192
    with pytest.raises(RolloutError, match="is 100; without chunked"):
        EngineConfig(max_batched_tokens=100).resolved(longest=101, cuda=False)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"profile": "tpu"}, "profile is 'tpu'"),
        ({"dtype": "int8"}, "dtype is 'int8'"),
        ({"max_concurrent": 0}, "max_concurrent is 0"),
        ({"max_concurrent": True}, "max_concurrent is True"),
        ({"tensor_parallel": 1.5}, "tensor_parallel is 1.5"),
        ({"cuda_graphs": "no"}, "cuda_graphs is 'no'"),
        ({"memory_share": 1.2}, "memory_share is 1.2"),
        ({"memory_share": "half"}, "memory_share is 'half'"),
        ({"kv_cache_gib": 0}, "kv_cache_gib is 0"),
        ({"gpu_memory_utilization": 0.4}, "gpu_memory_utilization;"),
    ],
)
def test_a_wrong_setting_is_one_sentence(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(RolloutError, match=message):
        engine_from(settings)


@pytest.mark.parametrize(
    "settings",
    [{"chunked_prefill": True}, {"cuda_graphs": True}, {"async_scheduling": True}, {"tensor_parallel": 2}],
    ids=lambda settings: "-".join(settings),
)
def test_what_a_cpu_does_not_have_is_refused_there_and_taken_on_cuda(settings: dict[str, Any]) -> None:
    config = engine_from(settings)
    with pytest.raises(RolloutError, match=f"engine {next(iter(settings))} is"):
        config.resolved(longest=16, cuda=False)
    assert config.resolved(longest=16, cuda=True).device == "cuda"


def test_a_pass_smaller_than_the_responses_generated_together_is_refused() -> None:
    with pytest.raises(RolloutError, match="max_concurrent = 512"):
        EngineConfig(max_batched_tokens=256).resolved(longest=16, cuda=True)
    assert EngineConfig(max_concurrent=20_000).resolved(longest=16, cuda=False).max_batched_tokens == 20_000


@given(
    st.builds(
        EngineConfig,
        profile=st.sampled_from(["auto", "cpu"]),
        dtype=st.sampled_from([None, "bfloat16"]),
        max_concurrent=st.none() | st.integers(1, 4096),
        memory_share=st.none() | st.floats(0.01, 1),
        prefix_caching=st.none() | st.booleans(),
    )
)
def test_settings_are_the_same_through_plain_values(config: EngineConfig) -> None:
    assert engine_from(dataclasses.asdict(config)) == config
    assert engine_from(settings_of(config)) == config
    engine = config.resolved(longest=16, cuda=False)
    assert all(getattr(engine, f.name) is not None for f in dataclasses.fields(engine) if f.name != "kv_cache_gib")


@pytest.mark.parametrize(("parallel", "executor"), [(1, "uni"), (2, "mp")])
def test_an_engine_on_several_gpus_runs_its_own_workers_in_whatever_placement_group_it_is(
    parallel: int, executor: str
) -> None:
    engine = EngineConfig(tensor_parallel=parallel).resolved(longest=16, cuda=True)
    assert engine_arguments(engine, None)["distributed_executor_backend"] == executor
