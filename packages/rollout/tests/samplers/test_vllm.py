"""vLLM in this process: an engine on the tiny model, one on a tied one, and the rule by which engines sleep.

vLLM on CPU frees no memory when it sleeps, but keeps account of what sleeps and schedules nothing until all is awake.
"""

import os
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import polars as pl
import pytest
from every_sampler import *  # noqa: F403
from every_sync import *  # noqa: F403
from isocompute.rollout import RolloutError, Sampling, open_sampler
from isocompute.rollout.contract import tables
from isocompute.rollout.samplers.sampling import EngineConfig
from isocompute.rollout.samplers.vllm.sampler import Sleep

# Not imported here: that takes seconds in every process that collects.
pytestmark = [
    pytest.mark.slow("vLLM"),
    pytest.mark.xdist_group("vllm"),
    pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed"),
]


@pytest.fixture(scope="module")
def sampler(vllm_sampler: Any) -> Any:
    return vllm_sampler


@pytest.fixture(scope="module")
def tied_sampler(tied_tiny: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A narrow engine on a tied model with another token at which responses end, and with prompts that are cached."""
    import transformers

    folder = tmp_path_factory.mktemp("narrow")
    tied_tiny.save(folder, seed=0)
    ends = [1, tied_tiny.ids("3")[0]]
    stated = transformers.GenerationConfig(eos_token_id=ends, top_k=1, temperature=0.6, do_sample=True)
    stated.save_pretrained(folder)
    narrow = EngineConfig(prefix_caching=True, max_batched_tokens=320)
    sampling = Sampling(max_new_tokens=8, max_prompt_tokens=300)
    opened = open_sampler("vllm", str(folder), sampling, engine=narrow, responses=4)
    yield opened
    opened.close()


def test_an_engine_on_cpu_compiles_nothing(sampler: Any) -> None:
    from vllm.v1.sample import sampler as of_vllm

    assert sampler.engine.device == "cpu"
    assert not hasattr(of_vllm.batched_count_greater_than, "_torchdynamo_orig_callable")
    assert "TORCHDYNAMO_DISABLE" not in os.environ


def test_a_sync_forgets_cached_prompts_and_a_generation_config_says_only_where_responses_stop(
    tied_sampler: Any, tied_tiny: Any, tmp_path: Path
) -> None:
    policy, three = tied_tiny.save(tmp_path, seed=0), tied_tiny.ids("3")[0]
    # A prompt of more than a block of the cache, which holds 128 tokens.
    long = tied_tiny.problems.head(2).with_columns(prompt=pl.Series(["1+" * 100 + "1=", "2-" * 100 + "1="]))
    before = tied_tiny.sample(tied_sampler, long, samples=16)
    assert tied_tiny.largest_difference(policy, before) < 1e-4
    assert before["response_ids"].n_unique() > 4
    for row in before.iter_rows(named=True):
        assert three not in row["response_ids"][:-1]
        assert row["finish_reason"] == ("stop" if row["response_ids"][-1] in (1, three) else "length")
    assert three in before["response_ids"].list.last()
    other = tied_tiny.save(tmp_path, seed=5)
    tied_sampler.sync(other.state_dict(), 1)
    assert tied_tiny.largest_difference(other, tied_tiny.sample(tied_sampler, long, samples=8)) < 1e-4
    tied_sampler.sync(policy.state_dict(), 2)


def test_problems_may_come_while_others_are_answered(sampler: Any, tiny: Any) -> None:
    assert tiny.sample(sampler).drop("logprobs").equals(tiny.sample_fed(sampler).drop("logprobs"))


def test_a_narrow_engine_gives_the_same_tokens_and_one_that_fails_is_named_after_the_groups_that_are_whole(
    sampler: Any, tiny: Any, tied_sampler: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # More requests than it generates together, and few enough.
    assert tied_sampler.engine.max_concurrent == tied_sampler.holds == 4
    whole = tiny.sample(tied_sampler)
    parts = [tiny.sample(tied_sampler, tiny.problems[i : i + 1]) for i in range(6)]
    assert whole["response_ids"].to_list() == tables.concat(parts, "rollouts")["response_ids"].to_list()
    engine: Any = tied_sampler._llm.llm_engine
    advance, steps = engine.step, iter(range(20))

    def failing() -> Any:
        if next(steps, None) is None:
            raise RuntimeError("the device is lost")
        return advance()

    monkeypatch.setattr(engine, "step", failing)
    stream, groups = tied_sampler.stream(tiny.problems, samples=4, seed=3, step=1), []
    with pytest.raises(RolloutError, match=r"engine of .* failed while sampling .*the device is lost"):
        groups += stream
    assert 1 <= len(groups) < 6
    assert all(group["sample"].to_pylist() == [0, 1, 2, 3] for group in groups)
    with pytest.raises(RolloutError, match="open another sampler"):
        tiny.sample(tied_sampler)
    tied_sampler.close()
    with pytest.raises(RolloutError, match="the sampler is closed"):
        tiny.sample(tied_sampler)
    # vLLM takes the process groups of all engines away with the first one that ends.
    assert len(tiny.sample(sampler)) == 24


def test_a_model_that_transformers_has_no_language_model_for_gets_a_cache_of_a_usual_size(
    tiny: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import vllm

    tiny.save(tmp_path, seed=0)
    given: dict[str, Any] = {}

    def engine(**options: Any) -> None:
        given.update(options)
        raise ValueError("nobody has this model\nat line 3")

    # A configuration that belongs to encoders only; vLLM goes by the architecture.
    (tmp_path / "config.json").write_text((tmp_path / "config.json").read_text().replace('"llama"', '"eurobert"'))
    monkeypatch.setattr(vllm, "LLM", engine)
    with pytest.raises(RolloutError, match=r"the base model .* cannot be loaded \(nobody has this model\)"):
        open_sampler("vllm", str(tmp_path), tiny.sampling)
    assert given["kv_cache_memory_bytes"] == 4 * 2**30


def test_discarded_weights_answer_nothing_before_a_sync() -> None:
    sleep = Sleep(SimpleNamespace(sleep=lambda level: None), level=2, name="the engine")
    sleep.sleep()
    with pytest.raises(RolloutError, match="engine sleep must be 1"):
        sleep.wake_to_sample()


def test_what_did_not_wake_is_woken_by_the_next_try() -> None:
    room, woken = [False, True, False, True], list[tuple[str, ...]]()

    class Engine:
        def sleep(self, level: int) -> None:
            woken.clear()

        def wake_up(self, tags: list[str]) -> bool:
            if not room.pop(0):
                raise MemoryError
            woken.append(tuple(tags))
            return len(woken) == 2

    sleep = Sleep(Engine(), level=1, name="the engine")
    sleep.sleep()
    for tag in ("weights", "kv_cache"):
        with pytest.raises(MemoryError):
            sleep.wake(tag)
        sleep.wake(tag)
    assert (woken, sleep.asleep) == ([("weights",), ("kv_cache",)], [])


def test_an_engine_sleeps_after_a_training_batch_and_wakes_for_a_sync_and_for_samples(
    sampler: Any, tiny: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # On CPU it is let sleep all the same, and says what it was told.
    told: list[Any] = []
    llm = sampler._llm
    sleep, wake = llm.sleep, llm.wake_up
    monkeypatch.setattr(llm, "sleep", lambda level: (told.append(level), sleep(level=level))[1])
    monkeypatch.setattr(llm, "wake_up", lambda tags: (told.append(tuple(tags)), wake(tags=tags))[1])
    monkeypatch.setattr(sampler, "sleeps", True)
    monkeypatch.setattr(sampler, "_sleep", Sleep(llm, level=1, name="the engine"))
    engine, version = sampler._llm.llm_engine, sampler.weights_version
    tiny.sample(sampler, phase="eval")
    assert told == []
    before = tiny.sample(sampler)
    assert told == [1]
    assert engine.is_sleeping()
    assert tiny.sample(sampler, phase="eval").drop("weights_version")["response_ids"].len() == 24
    assert told == [1, ("weights", "kv_cache")]
    assert not engine.is_sleeping()
    tiny.sample(sampler)
    told.clear()
    policy = tiny.save(tmp_path, seed=5)
    with pytest.raises(RolloutError, match="a sync lacks the tensor"):
        sampler.sync(dict(list(policy.state_dict().items())[:3]), version + 1)
    assert (told, sampler._sleep.asleep) == ([("weights",)], ["kv_cache"])
    sampler.sync(policy.state_dict(), version + 1)
    assert told == [("weights",), ("kv_cache",)]
    assert not engine.is_sleeping()
    assert tiny.largest_difference(policy, tiny.sample(sampler)) < 1e-4
    sampler.sync(tiny.save(tmp_path, seed=0).state_dict(), version + 2)
    assert tiny.sample(sampler)["response_ids"].to_list() == before["response_ids"].to_list()
    sampler._sleep.wake_to_sample()
