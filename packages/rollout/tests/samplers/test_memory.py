"""Memory of engines by arithmetic, for the shapes of published models."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from isocompute.rollout import RolloutError, Sampling
from isocompute.rollout.samplers.local import PROBES
from isocompute.rollout.samplers.sampling import EngineConfig
from isocompute.rollout.samplers.vllm.memory import GIB, MemoryPlan, estimate, free_bytes, size_of
from isocompute.rollout.samplers.vllm.sampler import engine_arguments

SIZES = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads")


def config(kind: str, sizes: tuple[int, ...], vocabulary: int, positions: int, *, tied: bool = False) -> dict[str, Any]:
    """The configuration of a model in bfloat16."""
    stated = {"model_type": kind, "vocab_size": vocabulary, "max_position_embeddings": positions, "dtype": "bfloat16"}
    return stated | {"tie_word_embeddings": tied} | dict(zip(SIZES, sizes, strict=True))


QWEN_7B = config("qwen2", (3584, 18944, 28, 28, 4), 152_064, 131_072)
QWEN_HALF_B = config("qwen2", (896, 4864, 24, 14, 2), 151_936, 32_768, tied=True)
LLAMA_8B = config("llama", (4096, 14336, 32, 32, 8), 128_256, 131_072)
PARAMETERS = {"Qwen2.5-7B": 7_615_616_512, "Qwen2.5-0.5B": 494_032_768, "Llama-3.1-8B": 8_030_261_248}
CONFIGS = {"Qwen2.5-7B": QWEN_7B, "Qwen2.5-0.5B": QWEN_HALF_B, "Llama-3.1-8B": LLAMA_8B}
GPU = 80e9


def plan(
    name: str, engine: EngineConfig, *, cuda: bool, available: float, sampling: Sampling | None = None
) -> MemoryPlan:
    asked = sampling or Sampling()
    longest = asked.max_prompt_tokens + asked.max_new_tokens
    size = size_of(CONFIGS[name], parameters=PARAMETERS[name])
    return estimate(size, engine.resolved(longest=longest, cuda=cuda), asked, model=name, available=available)


@given(st.integers(0, 5000), st.none() | st.integers(1, 2000), st.integers(1, 512))
def test_an_engine_on_cpu_has_room_for_what_can_be_alive_and_no_more(
    responses: int, limit: int | None, tokens: int
) -> None:
    asked, config = Sampling(max_prompt_tokens=8, max_new_tokens=tokens), EngineConfig(max_concurrent=limit)
    alive = max(1, min(limit or 1024, responses))
    engine = config.resolved(longest=8 + tokens, cuda=False, responses=responses)
    assert engine_arguments(engine, None)["max_num_seqs"] == alive + PROBES
    size = size_of(QWEN_HALF_B, parameters=PARAMETERS["Qwen2.5-0.5B"])
    found = estimate(size, engine, asked, model="m", available=2**50)
    # Of whole blocks of 128 tokens.
    assert (found.kv, found.concurrent) == (alive * -(-(8 + tokens) // 128) * 128 * found.kv_token, alive)


@pytest.mark.parametrize(
    ("name", "kv_bytes"), [("Qwen2.5-7B", 57_344), ("Qwen2.5-0.5B", 12_288), ("Llama-3.1-8B", 131_072)]
)
def test_the_kv_cache_of_a_token_and_the_weights_are_known(name: str, kv_bytes: int) -> None:
    found = plan(name, EngineConfig(), cuda=True, available=0.9 * GPU)
    assert (found.kv_token, found.needed["weights"]) == (kv_bytes, 2 * PARAMETERS[name])
    # GPUs that share a model take a part each.
    shared = plan(name, EngineConfig(tensor_parallel=4), cuda=True, available=0.9 * GPU)
    assert (shared.needed["weights"], shared.kv_token) == (found.needed["weights"] / 4, kv_bytes / 4)
    # A checkpoint in float32 is held in 16 bits unless it is asked for.
    size = size_of(CONFIGS[name] | {"dtype": "float32"}, parameters=PARAMETERS[name])
    for dtype, width in (("auto", 2), ("float32", 4)):
        engine = EngineConfig(dtype=dtype).resolved(longest=2048, cuda=True)
        assert estimate(size, engine, Sampling(), model="m", available=GPU).needed["weights"] == width * size.parameters


@pytest.mark.parametrize(
    ("quantization", "bits"),
    [
        ({"quant_method": "awq", "bits": 4}, 4),
        ({"quant_method": "fp8"}, 8),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, 4),
        ({"quant_method": "compressed-tensors", "config_groups": {"group_0": {"weights": {"num_bits": 4}}}}, 4),
    ],
)
def test_quantised_weights_take_what_their_checkpoint_takes(quantization: dict[str, Any], bits: int) -> None:
    config, engine = QWEN_7B | {"quantization_config": quantization}, EngineConfig().resolved(longest=2048, cuda=True)
    for stored, weights in ((0.0, bits / 8 * 72e9), (41e9, 41e9)):
        size = size_of(config, parameters=72_000_000_000, stored=stored)
        # The unquantised weights alone would be 144 GB.
        planned = estimate(size, engine, Sampling(max_new_tokens=64), model="m", available=1.1 * GPU)
        assert planned.needed["weights"] == weights


@pytest.mark.parametrize(
    ("name", "settings", "gib", "remedy"),
    [
        ("Qwen2.5-7B", {}, 30, "dtype must be bfloat16"),
        ("Qwen2.5-7B", {"dtype": "bfloat16"}, 16, "the model must be smaller, or"),
        ("Qwen2.5-0.5B", {"kv_cache_gib": 15}, 16, "kv_cache_gib must be at most"),
        ("Qwen2.5-0.5B", {"max_concurrent": 16_000}, 16, "max_concurrent must be at most"),
        ("Qwen2.5-0.5B", {"max_concurrent": 64, "max_batched_tokens": 262_144}, 16, "max_batched_tokens must be at"),
    ],
)
def test_what_cannot_fit_a_cpu_is_refused_with_the_setting_that_would_make_it_fit(
    name: str, settings: dict[str, Any], gib: float, remedy: str
) -> None:
    with pytest.raises(RolloutError, match=f"the model {name} needs .* GiB on the CPU .*: {remedy}") as refused:
        plan(name, EngineConfig(**settings), cuda=False, available=gib * GIB)
    setting, named, value = str(refused.value).rpartition(": ")[2].partition(" must be at most ")
    if named:
        number = float(value) if setting == "kv_cache_gib" else int(value)
        plan(name, EngineConfig(**settings | {setting: number}), cuda=False, available=gib * GIB)


def test_requests_longer_than_the_model_takes_or_than_its_cache_are_refused() -> None:
    with pytest.raises(RolloutError, match=r"kv_cache_gib is 0.01; a"):
        plan("Qwen2.5-0.5B", EngineConfig(kv_cache_gib=0.01), cuda=False, available=16 * GIB)
    long = Sampling(max_prompt_tokens=1024, max_new_tokens=32_768)
    with pytest.raises(RolloutError, match=r"model Qwen2.5-0.5B takes"):
        plan("Qwen2.5-0.5B", EngineConfig(), cuda=True, available=0.9 * GPU, sampling=long)
    # A context extended by YaRN counts as extended.
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
    assert size_of(QWEN_HALF_B | {"rope_scaling": yarn}, parameters=1).positions == 131_072


def test_free_memory_is_the_containers_where_that_is_less(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text("MemTotal: 16777216 kB\nMemAvailable: 8388608 kB\n")
    assert free_bytes(tmp_path) == 8 * GIB
    group = tmp_path / "sys/fs/cgroup"
    group.mkdir(parents=True)
    (group / "memory.max").write_text("max\n")
    (group / "memory.current").write_text("1000\n")
    assert free_bytes(tmp_path) == 8 * GIB
    (group / "memory.max").write_text(f"{4 * GIB}\n")
    (group / "memory.current").write_text(f"{GIB}\n")
    assert free_bytes(tmp_path) == 3 * GIB
    # Files that were read, such as a checkpoint: memory that is given back.
    (group / "memory.stat").write_text(f"anon {GIB // 4}\nactive_file 7\ninactive_file {GIB // 2}\n")
    assert free_bytes(tmp_path) == 3.5 * GIB
    older = group / "memory"
    older.mkdir()
    (older / "memory.limit_in_bytes").write_text(f"{2 * GIB}\n")
    (older / "memory.usage_in_bytes").write_text(f"{GIB}\n")
    (older / "memory.stat").write_text(f"inactive_file 5\ntotal_inactive_file {GIB // 2}\n")
    assert free_bytes(tmp_path) == 1.5 * GIB
