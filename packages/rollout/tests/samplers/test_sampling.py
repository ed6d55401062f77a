"""Settings of sampling and of engines: what is refused, profiles, that they survive JSON; the over-long penalty."""

import dataclasses
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from isocompute.rollout import Interruption, RolloutError, Sampling, sampling_from
from isocompute.rollout.samplers.sampling import EngineConfig, LengthPenalty, engine_from
from isocompute.rollout.samplers.vllm.sampler import engine_arguments

INTERRUPTIONS = st.tuples(st.integers(1, 40), st.integers(0, 9), st.text(min_size=1).filter(str.strip)).map(
    lambda drawn: Interruption(lowest=drawn[0], highest=drawn[0] + drawn[1], phrase=drawn[2])
)
SETTINGS = st.builds(
    Sampling,
    temperature=st.just(0) | st.floats(0.01, 100, exclude_max=True),
    max_new_tokens=st.integers(50, 5000),
    max_prompt_tokens=st.integers(1, 5000),
    top_p=st.floats(0, 1, exclude_min=True),
    top_k=st.integers(0, 100),
    min_p=st.floats(0, 1, exclude_max=True),
    stop=st.lists(st.text(min_size=1), max_size=3).map(tuple),
    stop_token_ids=st.lists(st.integers(0, 100), max_size=3).map(tuple),
    keep_text=st.booleans(),
    interruption=st.none() | INTERRUPTIONS,
    length_penalty=st.none() | st.integers(1, 9).map(lambda m: LengthPenalty(longest=9, margin=m)),
)


@settings(max_examples=40)
@given(SETTINGS)
def test_settings_survive_json(sampling: Sampling) -> None:
    assert sampling_from(json.loads(json.dumps(dataclasses.asdict(sampling)))) == sampling


def test_what_is_left_out_has_its_default() -> None:
    assert sampling_from({}) == Sampling()
    assert sampling_from({"max_new_tokens": 16384, "interruption": {}}).interruption == Interruption()


@pytest.mark.parametrize(
    ("read", "settings", "message"),
    [
        (sampling_from, {"temperature": 0.001}, r"temperature is 0\.001"),
        (sampling_from, {"temperature": float("nan")}, "temperature is nan"),
        (sampling_from, {"top_p": 0.0}, r"top_p is 0\.0"),
        (sampling_from, {"max_new_tokens": 0}, "max_new_tokens is 0"),
        (sampling_from, {"stop": "###"}, "stop is '###'; it must be a list"),
        (sampling_from, {"stop": ["a", ""]}, r"stop\[1\] is ''"),
        (sampling_from, {"interruption": {"lowest": 9, "highest": 8}}, r"interruption\.lowest is 9"),
        (sampling_from, {"interruption": {"phrase": " "}}, r"interruption\.phrase is ' '"),
        (sampling_from, {"interruption": {}, "max_new_tokens": 12_000}, "max_new_tokens is 12000"),
        (sampling_from, {"length_penalty": {"longest": 5}}, "length_penalty lacks margin"),
        (sampling_from, {"length_penalty": {"longest": 5, "margin": 6}}, r"length_penalty\.margin is 6"),
        (sampling_from, {"temprature": 1.0}, "'temprature'"),
        (engine_from, {"sleep": 3}, r"engine\.sleep is 3"),
        (engine_from, {"memory_share": 1.2}, "memory_share is 1.2"),
        (engine_from, {"gpu_memory_utilization": 0.4}, "'gpu_memory_utilization'"),
    ],
)
def test_a_setting_that_cannot_be_is_named_with_what_would_be_right(read: Any, settings: Any, message: str) -> None:
    with pytest.raises(RolloutError, match=message):
        read(settings)


@pytest.mark.parametrize(
    ("settings", "cuda", "message"),
    [
        ({"profile": "cuda"}, False, "this process has no CUDA"),
        ({"profile": "cpu"}, True, "in its build for CUDA"),
        # A pass holds the responses generated together, and without chunked prefill the longest request.
        ({"max_batched_tokens": 100}, False, "is 100; without chunked"),
        ({"max_batched_tokens": 256}, True, "max_concurrent = 512"),
        *(
            ({name: True}, False, f"engine {name} is")
            for name in ("chunked_prefill", "cuda_graphs", "async_scheduling")
        ),
        ({"tensor_parallel": 2}, False, "engine tensor_parallel is"),
        ({"sleep": 1}, False, "engine sleep is"),
    ],
)
def test_what_a_device_does_not_have_is_refused_there_and_taken_on_the_other(
    settings: dict[str, Any], cuda: bool, message: str
) -> None:
    config = engine_from(settings)
    with pytest.raises(RolloutError, match=message):
        config.resolved(longest=101, cuda=cuda)
    if "max_batched_tokens" not in settings:
        assert config.resolved(longest=101, cuda=not cuda).device == ("cpu" if cuda else "cuda")


@pytest.mark.parametrize(
    ("settings", "name", "value"),
    [
        # An engine on several GPUs runs its own workers, in whatever placement group it is.
        ({"tensor_parallel": 1}, "distributed_executor_backend", "uni"),
        ({"tensor_parallel": 2}, "distributed_executor_backend", "mp"),
        ({"float32_head": None}, "hf_overrides", None),
        ({"float32_head": False}, "hf_overrides", None),
        ({"float32_head": True}, "hf_overrides", {"head_dtype": "float32"}),
    ],
)
def test_a_setting_becomes_an_argument_of_the_engine(settings: dict[str, Any], name: str, value: object) -> None:
    engine = EngineConfig(dtype="bfloat16", **settings).resolved(longest=20, cuda=True)
    assert engine_arguments(engine, None).get(name) == value


PHASES = ("train", "eval", "difficulty", "baseline", "canary")
PENALTIES = st.tuples(st.integers(1, 50), st.integers(0, 50)).map(
    lambda pair: LengthPenalty(longest=pair[0] + pair[1], margin=pair[0])
)


@given(PENALTIES, st.integers(0, 200), st.just(1.0) | st.floats(0, 1), st.sampled_from(PHASES))
def test_a_right_response_loses_in_training_what_the_formula_says(
    penalty: LengthPenalty, tokens: int, reward: float, phase: str
) -> None:
    found = penalty.reward(reward, tokens=tokens, phase=phase)
    if reward < 1 or phase != "train":
        assert found == reward
    else:
        over = (tokens - penalty.longest + penalty.margin) / penalty.margin
        assert found == pytest.approx(1 - min(max(over, 0.0), 1.0), abs=1e-12)


def test_a_pass_has_room_for_the_longest_request_on_cpu_and_for_what_is_generated_together() -> None:
    for config, longest, expected in (
        (EngineConfig(), 40_000, 40_000),
        (EngineConfig(max_concurrent=20_000), 16, 20_000),
    ):
        assert config.resolved(longest=longest, cuda=False).max_batched_tokens == expected
