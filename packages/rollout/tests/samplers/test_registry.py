"""The rule by which a kind of sampler is chosen: the model's size and the device, and nothing of the machine."""

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from isocompute.rollout import RolloutError, Sampling, open_sampler
from isocompute.rollout.samplers.actor import connected_ray
from isocompute.rollout.samplers.registry import CHEAPER_BELOW, CHEAPER_UP_TO, cheaper
from isocompute.rollout.samplers.weights import stored_parameters

SIZES = st.integers(0, 10**12) | st.integers(CHEAPER_BELOW - 2, CHEAPER_BELOW + 2)
LENGTHS = st.integers(2, 10**6) | st.integers(CHEAPER_UP_TO - 2, CHEAPER_UP_TO + 2)


@given(parameters=st.none() | SIZES, longest=LENGTHS, device=st.sampled_from(["cpu", "cuda"]))
def test_transformers_answers_on_a_cpu_with_a_small_model_at_short_length_and_vllm_all_others(
    parameters: int | None, longest: int, device: str
) -> None:
    chosen = cheaper(parameters, longest=longest, device=device)
    small = parameters is not None and parameters < CHEAPER_BELOW and longest <= CHEAPER_UP_TO
    assert chosen.kind == ("transformers" if small and device == "cpu" else "vllm")
    assert str(chosen).startswith(f"{chosen.kind} (")


def test_parameters_are_those_of_the_files_and_tied_ones_count_once(tiny: Any, tied_tiny: Any, tmp_path: Path) -> None:
    for each in (tiny, tied_tiny):
        whole = each.save(tmp_path, seed=0)
        assert stored_parameters(tmp_path) == sum(parameter.numel() for parameter in whole.parameters())
    single = stored_parameters(tmp_path)
    whole.save_pretrained(tmp_path / "parts", max_shard_size="8KB")
    assert len(list((tmp_path / "parts").glob("*.safetensors"))) > 1
    assert stored_parameters(tmp_path / "parts") == single
    # Of a model that is no folder or cannot be read they are not known.
    assert stored_parameters("Qwen/Qwen2.5-0.5B") is None
    (tmp_path / "model.safetensors").write_bytes(b"\xff" * 100)
    assert stored_parameters(tmp_path) is None


def test_the_client_of_servers_is_named_where_it_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("isocompute.rollout.samplers.servers.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "httpx2", None)
    with pytest.raises(RolloutError, match=r"isocompute-rollout\[openai\]"):
        open_sampler("openai", "model", Sampling(), base_url="http://localhost:8000/v1")


def test_a_node_of_a_cluster_joins_it(monkeypatch: pytest.MonkeyPatch) -> None:
    sized: list[bool] = []

    def init(**options: Any) -> None:
        sized.append("object_store_memory" in options)
        # As Ray does there; that it is so is tested with experiments' own cluster.
        if sized[-1]:
            raise ValueError("When connecting to an existing cluster, object_store_memory must not be provided.")

    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(is_initialized=lambda: False, init=init))
    connected_ray()
    assert sized == [True, False]
