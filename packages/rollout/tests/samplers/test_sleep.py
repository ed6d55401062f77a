"""The order in which a vLLM engine sleeps, wakes and takes weights: the rule alone, and with a real engine on CPU.

vLLM on CPU frees no memory when it sleeps, but keeps account of what sleeps and schedules nothing until all is awake.
"""

from collections.abc import Iterator
from itertools import product
from typing import Any, get_args

import pytest
from isocompute.rollout import RolloutError
from isocompute.rollout.samplers.sampling import EngineConfig
from isocompute.rollout.samplers.vllm.sampler import STEPS, WRONG, Event, Sleep, State, step

pytestmark = pytest.mark.slow("vLLM")


def test_every_event_in_every_state_is_a_step_or_an_error() -> None:
    every = set(product(get_args(State), get_args(Event)))
    assert STEPS.keys() | WRONG.keys() == every
    assert not STEPS.keys() & WRONG.keys()
    for state, event in WRONG:
        with pytest.raises(RolloutError, match=r"^the engine was .*must"):
            step(state, event, level=1, name="the engine")


@pytest.mark.parametrize("level", [1, 2])
def test_weights_wake_before_the_cache_and_nothing_wakes_twice(level: int) -> None:
    resident, state = {"weights", "kv_cache"}, "awake"
    for event in ("sample", "sleep", "load", "load", "loaded", "sample", "sleep", "sleep", "load", "loaded", "load"):
        after, tags = step(state, event, level=level, name="the engine")  # type: ignore[arg-type]
        if after == "asleep":
            resident = set()
        assert not resident & set(tags)
        resident |= set(tags)
        if event in ("load", "sample"):
            assert "weights" in resident
        assert (resident == {"weights", "kv_cache"}) == (after == "awake")
        state = after


def test_discarded_weights_answer_nothing_before_a_sync() -> None:
    assert step("asleep", "sample", level=1, name="the engine") == ("awake", ("weights", "kv_cache"))
    with pytest.raises(RolloutError, match="engine sleep must be 1"):
        step("asleep", "sample", level=2, name="the engine")


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
    sleep.on("sleep")
    for event in ("load", "loaded"):
        with pytest.raises(MemoryError):
            sleep.on(event)  # type: ignore[arg-type]
        sleep.on(event)  # type: ignore[arg-type]
    assert (woken, sleep.state) == ([("weights",), ("kv_cache",)], "awake")


def test_levels_that_do_not_exist_and_devices_that_cannot_sleep_are_refused() -> None:
    assert EngineConfig(sleep=2).resolved(longest=16, cuda=True).sleep == 2
    for wrong in (3, True):
        with pytest.raises(RolloutError, match=rf"engine sleep is {wrong}; it must be 0 \(stay\), 1"):
            EngineConfig(sleep=wrong)
    with pytest.raises(RolloutError, match="1, and vLLM on CPU frees"):
        EngineConfig(sleep=1).resolved(longest=16, cuda=False)


@pytest.fixture
def sleeping(vllm_sampler: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Any, list[Any]]]:
    """An engine on CPU that is let sleep all the same, and what it was told."""
    told: list[Any] = []
    llm = vllm_sampler._llm
    sleep, wake = llm.sleep, llm.wake_up

    def slept(level: int) -> Any:
        told.append(level)
        return sleep(level=level)

    def woken(tags: list[str]) -> Any:
        told.append(tuple(tags))
        return wake(tags=tags)

    monkeypatch.setattr(llm, "sleep", slept)
    monkeypatch.setattr(llm, "wake_up", woken)
    monkeypatch.setattr(vllm_sampler, "sleeps", True)
    for level in (0, 1):
        monkeypatch.setattr(vllm_sampler, "_sleep", Sleep(llm, level=level, name="the engine"))
    yield vllm_sampler, told
    vllm_sampler._sleep.on("sample")


def test_an_engine_sleeps_after_a_training_batch_and_wakes_for_a_sync_and_for_samples(
    sleeping: tuple[Any, list[Any]], tiny: Any, tmp_path: Any
) -> None:
    sampler, told = sleeping
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
    assert (told, sampler._sleep.state) == ([("weights",)], "loading")
    sampler.sync(policy.state_dict(), version + 1)
    assert told == [("weights",), ("kv_cache",)]
    assert not engine.is_sleeping()
    assert tiny.largest_difference(policy, tiny.sample(sampler)) < 1e-4
    sampler.sync(tiny.save(tmp_path, seed=0).state_dict(), version + 2)
    assert tiny.sample(sampler)["response_ids"].to_list() == before["response_ids"].to_list()


def test_vllm_itself_refuses_to_sleep_on_cpu(tiny: Any) -> None:
    pytest.importorskip("vllm")
    from vllm import LLM

    with pytest.raises(ValueError, match="Sleep mode is not"):
        LLM(model=str(tiny.folder), enable_sleep_mode=True)
