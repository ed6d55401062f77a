"""The settings of sampling: what is refused, and that they survive JSON."""

import dataclasses
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from isocompute.rollout import Interruption, RolloutError, Sampling, sampling_from
from isocompute.rollout.scoring.length_penalty import LengthPenalty

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


@given(SETTINGS)
def test_settings_survive_json(sampling: Sampling) -> None:
    assert sampling_from(json.loads(json.dumps(dataclasses.asdict(sampling)))) == sampling


def test_what_is_left_out_has_its_default() -> None:
    assert sampling_from({}) == Sampling()
    assert sampling_from({"max_new_tokens": 16384, "interruption": {}}).interruption == Interruption()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"temperature": -0.1}, r"temperature is -0\.1"),
        ({"temperature": 0.001}, r"temperature is 0\.001"),
        ({"temperature": 100}, "temperature is 100"),
        ({"temperature": float("nan")}, "temperature is nan"),
        ({"temperature": "1e-1"}, "temperature is '1e-1'"),
        ({"temperature": None}, "temperature is None"),
        ({"top_p": 0.0}, r"top_p is 0\.0"),
        ({"top_p": 1.5}, r"top_p is 1\.5"),
        ({"top_p": float("nan")}, "top_p is nan"),
        ({"top_p": True}, "top_p is True"),
        ({"min_p": 1.0}, r"min_p is 1\.0"),
        ({"min_p": -0.5}, r"min_p is -0\.5"),
        ({"top_k": -1}, "top_k is -1"),
        ({"top_k": 2.5}, r"top_k is 2\.5"),
        ({"max_new_tokens": 0}, "max_new_tokens is 0"),
        ({"max_new_tokens": "16"}, "max_new_tokens is '16'"),
        ({"max_prompt_tokens": 1.0}, r"max_prompt_tokens is 1\.0"),
        ({"stop": "###"}, "stop is '###'"),
        ({"stop": ["a", ""]}, "stop is .*none of them empty"),
        ({"stop": [1]}, "stop is .*a list of texts"),
        ({"stop": None}, "stop is None"),
        ({"stop_token_ids": 5}, "stop_token_ids is 5"),
        ({"stop_token_ids": [5, -1]}, "of stop_token_ids is -1;"),
        ({"keep_text": 1}, "keep_text is 1"),
        ({"interruption": True}, "interruption is True"),
        ({"interruption": {"lowest": 0}}, r"interruption\.lowest is 0"),
        ({"interruption": {"lowest": 9, "highest": 8}}, "is drawn between 9 and 8"),
        ({"interruption": {"phrase": " "}}, r"interruption\.phrase is ' '"),
        ({"interruption": {"longest": 5}}, "has no setting 'longest';"),
        ({"interruption": {}, "max_new_tokens": 12_000}, "max_new_tokens is 12000"),
        ({"length_penalty": 5}, "length_penalty is 5"),
        ({"length_penalty": {"longest": 5}}, "lacks the setting 'margin'"),
        ({"length_penalty": {"longest": 5, "margin": 6}}, r"length_penalty\.margin is 6"),
        ({"length_penalty": {"shortest": 5}}, "'shortest'"),
        ({"temprature": 1.0}, "'temprature'"),
    ],
)
def test_a_setting_that_cannot_be_is_named_with_what_would_be_right(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(RolloutError, match=message):
        sampling_from(settings)


@pytest.mark.parametrize("settings", [None, [], "temperature"])
def test_settings_that_are_no_mapping_are_refused(settings: Any) -> None:
    with pytest.raises(RolloutError, match="it must have the settings"):
        sampling_from(settings)
