"""vLLM in this process on a tiny random model."""

import json
import os
from collections.abc import Iterator
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from every_base_model import *  # noqa: F403
from every_sampler import *  # noqa: F403
from every_sync import *  # noqa: F403
from every_tied import *  # noqa: F403
from isocompute.rollout import RolloutError, Sampling, open_sampler
from isocompute.rollout.samplers.sampling import EngineConfig, Request

# Not imported here: that takes seconds in every process that collects.
pytestmark = [
    pytest.mark.slow("vLLM"),
    pytest.mark.xdist_group("vllm"),
    pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed"),
]


@pytest.fixture(scope="module")
def kind() -> str:
    return "vllm"


@pytest.fixture(scope="module")
def sampler(vllm_sampler: Any) -> Any:
    return vllm_sampler


@pytest.fixture(scope="module")
def tied_sampler(tied_tiny: Any) -> Iterator[Any]:
    opened = open_sampler("vllm", str(tied_tiny.folder), tied_tiny.sampling)
    yield opened
    opened.close()


def test_an_engine_on_cpu_compiles_nothing(sampler: Any) -> None:
    from vllm.v1.sample import sampler as of_vllm

    assert sampler.engine.device == "cpu"
    assert not hasattr(of_vllm.batched_count_greater_than, "_torchdynamo_orig_callable")
    assert "TORCHDYNAMO_DISABLE" not in os.environ


def test_a_sync_forgets_cached_prompts_and_a_generation_config_says_only_where_responses_stop(
    tiny: Any, tmp_path: Path
) -> None:
    import transformers

    policy, three = tiny.save(tmp_path, seed=0), tiny.ids("3")[0]
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 512}))
    stated = transformers.GenerationConfig(eos_token_id=[1, three], top_k=1, temperature=0.6, do_sample=True)
    stated.save_pretrained(tmp_path)
    sampling = Sampling(max_new_tokens=8, max_prompt_tokens=300)
    opened = open_sampler("vllm", str(tmp_path), sampling, engine=EngineConfig(prefix_caching=True, max_concurrent=4))
    # A prompt of more than a block of the cache, which holds 128 tokens.
    long = tiny.problems.head(2).with_columns(prompt=pl.Series(["1+" * 100 + "1=", "2-" * 100 + "1="]))
    before = tiny.sample(opened, long, samples=16)
    assert tiny.largest_difference(policy, before) < 1e-4
    assert before["response_ids"].n_unique() > 4
    for row in before.iter_rows(named=True):
        assert three not in row["response_ids"][:-1]
        assert row["finish_reason"] == ("stop" if row["response_ids"][-1] in (1, three) else "length")
    assert three in before["response_ids"].list.last()
    other = tiny.save(tmp_path, seed=5)
    opened.sync(other.state_dict(), 1)
    after = tiny.sample(opened, long, samples=8)
    opened.close()
    assert tiny.largest_difference(other, after) < 1e-4


def test_a_model_that_transformers_has_no_language_model_for_is_served(tiny: Any, tmp_path: Any) -> None:
    policy = tiny.save(tmp_path, seed=0)
    config = json.loads((tmp_path / "config.json").read_text())
    # A configuration with Llama's settings that belongs to encoders only; vLLM goes by the architecture.
    (tmp_path / "config.json").write_text(json.dumps(config | {"model_type": "eurobert"}))
    opened = open_sampler("vllm", str(tmp_path), tiny.sampling, engine=EngineConfig(max_concurrent=4, kv_cache_gib=0.1))
    assert opened.plan == ""
    assert tiny.largest_difference(policy, tiny.sample(opened)) < 1e-4
    with pytest.raises(RolloutError, match=r"be loaded \(Unrecognized"):
        opened.sync(policy.state_dict(), 1)
    opened.close()


def test_a_sync_in_this_process_is_refused_where_gpus_share_a_model(
    sampler: Any, tiny: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, version = tiny.save(tiny.folder, seed=0).state_dict(), sampler.weights_version
    monkeypatch.setattr(sampler, "engine", replace(sampler.engine, tensor_parallel=4))
    with pytest.raises(RolloutError, match="the model over 4 GPUs,"):
        sampler.sync(own, version)
    monkeypatch.undo()
    sampler.sync(own, version)


def test_a_request_may_be_followed_by_another_for_the_same_response(sampler: Any, tiny: Any) -> None:
    prompt = tiny.ids("1+1=")
    requests = [Request(prompt_ids=prompt, seed=seed, max_new_tokens=1) for seed in range(3)]
    seen: dict[int, list[int]] = {}

    def control(index: int, response: Any) -> Any:
        seen.setdefault(index, []).extend(response.ids.tolist())
        if len(seen[index]) < 4 and index:
            return Request(prompt_ids=prompt + seen[index], seed=index, max_new_tokens=1)
        return response

    finished = dict(sampler._generate(requests, control))
    assert set(finished) == {0, 1, 2}
    assert [len(seen[index]) for index in range(3)] == [1, 4, 4]


def test_an_engine_answers_one_stream_at_a_time(sampler: Any, tiny: Any) -> None:
    stream = sampler.stream(tiny.problems, samples=40, seed=3, step=1)
    next(stream)
    with pytest.raises(RolloutError, match=f"the vLLM engine of {tiny.folder} is still answering another stream"):
        tiny.sample(sampler)
    stream.close()
    assert len(tiny.sample(sampler)) == 24


def test_a_narrow_engine_gives_the_same_tokens_and_one_that_fails_is_named_after_the_groups_that_are_whole(
    sampler: Any, tiny: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    narrow = EngineConfig(max_concurrent=4, max_batched_tokens=16)
    opened = open_sampler("vllm", str(tiny.folder), tiny.sampling, engine=narrow)
    assert tiny.sample(opened)["response_ids"].to_list() == tiny.sample(sampler)["response_ids"].to_list()
    engine: Any = opened._llm.llm_engine  # type: ignore[attr-defined]
    step, steps = engine.step, iter(range(20))

    def failing() -> Any:
        if next(steps, None) is None:
            raise RuntimeError("the device is lost")
        return step()

    monkeypatch.setattr(engine, "step", failing)
    stream, groups = opened.stream(tiny.problems, samples=4, seed=3, step=1), []
    with pytest.raises(RolloutError, match=f"engine of {tiny.folder} failed while sampling .*the device is lost"):
        groups += stream
    assert 1 <= len(groups) < 6
    assert all(group["sample"].to_pylist() == [0, 1, 2, 3] for group in groups)
    with pytest.raises(RolloutError, match="open another sampler"):
        tiny.sample(opened)
    opened.close()
    with pytest.raises(RolloutError, match="the sampler is closed"):
        tiny.sample(opened)
    # vLLM takes the process groups of all engines away with the first one that ends.
    assert len(tiny.sample(sampler)) == 24


@pytest.mark.parametrize(
    ("sampling", "engine", "message"),
    [
        (Sampling(), None, "max_new_tokens is 2048"),
        (Sampling(max_new_tokens=8, max_prompt_tokens=8), EngineConfig(kv_cache_gib=10**6), "kv_cache_gib must be"),
        (Sampling(max_new_tokens=8, max_prompt_tokens=8), EngineConfig(profile="cuda"), "no CUDA device"),
    ],
)
def test_what_cannot_run_is_refused_before_a_model_is_loaded(
    tiny: Any, sampling: Sampling, engine: Any, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import vllm

    monkeypatch.setattr(vllm, "LLM", None)
    with pytest.raises(RolloutError, match=message):
        open_sampler("vllm", str(tiny.folder), sampling, engine=engine)
