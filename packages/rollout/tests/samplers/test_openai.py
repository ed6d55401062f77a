"""A real server on CPU, in both protocols: what every sampler does, and what only a server does."""

import dataclasses
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from every_sampler import *  # noqa: F403
from isocompute.rollout import RolloutError, Sampling, open_sampler
from isocompute.rollout.cli import main
from isocompute.rollout.samplers.sampling import Interruption
from isocompute.rollout.samplers.servers import client
from serving import KEY, between, free_port

# Not imported here: that takes seconds in every process that collects.
pytestmark = [
    pytest.mark.slow("a vLLM server"),
    pytest.mark.xdist_group("vllm"),
    pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed"),
]


CHAT = {
    "test_a_table_has_a_row_per_response_in_the_order_of_problems_and_samples",
    "test_a_stop_text_ends_a_response_and_is_cut_off_its_text",
    "test_log_probabilities_are_those_of_the_distribution_sampled_from",
    "test_prompts_outside_ascii_arrive_whole",
    "test_temperature_0_takes_the_most_probable_token_with_its_untempered_log_probability",
}
"""Shared tests of what the protocols send and read differently; the others see completions alone."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "protocol" in metafunc.fixturenames:
        shared = metafunc.function.__module__ == "every_sampler"
        alone = shared and metafunc.function.__name__ not in CHAT
        protocols = ["completions"] if alone else ["completions", "chat"]
        metafunc.parametrize("protocol", protocols, indirect=True, scope="module")


@pytest.fixture(scope="module")
def protocol(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def folder(protocol: str, tiny: Any, chat_tiny: Path) -> str:
    """The model's folder, whose tokenizer has a chat template where prompts are chats."""
    return str(chat_tiny if protocol == "chat" else tiny.folder)


@pytest.fixture(scope="module")
def opened(
    folder: str, protocol: str, serving: Any, vllm_sampler: Any, server_url: str, tiny: Any
) -> Callable[..., Any]:
    """Open a sampler; the engine of this process comes up while the server does."""

    def open_it(sampling: Sampling = tiny.sampling, **options: Any) -> Any:
        address = {} if "base_urls" in options else {"base_url": server_url}
        asked = {"api_key": KEY, "concurrency": 8, "protocol": protocol, **address, **options}
        return open_sampler("openai", folder, sampling, **asked)

    return open_it


@pytest.fixture(scope="module")
def sampler(opened: Callable[..., Any]) -> Iterator[Any]:
    sampler = opened()
    yield sampler
    sampler.close()


@pytest.fixture
def prompt_ids(protocol: str, tiny: Any) -> Callable[[str], list[int]]:
    return lambda text: tiny.ids(text + "+" if protocol == "chat" else text)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two attempts at a request, and hardly a pause between them."""
    monkeypatch.setattr(client, "ATTEMPTS", 2)
    monkeypatch.setattr(client, "FIRST_PAUSE_SECONDS", 0.01)


def test_a_server_gives_the_responses_of_the_engine_in_process(
    sampler: Any, vllm_sampler: Any, tiny: Any, protocol: str
) -> None:
    plain = tiny.problems.with_columns(pl.col("prompt") + "+") if protocol == "chat" else tiny.problems
    served, local = tiny.sample(sampler, samples=8), tiny.sample(vllm_sampler, plain, samples=8)
    assert set(served["retokenized"]) == {False}
    differing = ("logprobs", "weights_version", "retokenized")
    assert served.drop(differing).equals(local.drop(differing, strict=False))
    worst = (served["logprobs"].explode() - local["logprobs"].explode()).abs().max()
    assert worst is not None
    assert worst < 1e-5


def test_a_strict_server_is_asked_without_the_fields_it_refuses(
    opened: Any, sampler: Any, tiny: Any, server_url: str, protocol: str
) -> None:
    strict = ["return_token_ids", "min_p", "repetition_penalty", "top_k", "stop_token_ids"]
    # Newer chat servers want max_completion_tokens instead.
    strict += ["max_tokens"] if protocol == "chat" else []
    whole = tiny.sample(sampler)
    with between(server_url, lambda asked: next((f"refuse {n}" for n in strict if n in asked), None)) as proxy:
        tokenized = tiny.sample(opened(base_url=proxy.url, concurrency=1))
        assert len(proxy.injected) == len(strict)
    assert set(tokenized["retokenized"]) == {True}
    for left, right in zip(tokenized.iter_rows(named=True), whole.iter_rows(named=True), strict=True):
        # Padding is not text, and bytes that are no character become another one.
        if left["response_ids"] == right["response_ids"]:
            assert left["logprobs"] == pytest.approx(right["logprobs"], abs=1e-5)
        else:
            assert {0, *range(14, 20)} & set(right["response_ids"])
            assert left["logprobs"] == []
    assert {0, 1} == set(tokenized["logprobs"].list.len().clip(0, 1))


@pytest.mark.parametrize(
    "options", [{"top_k": 3}, {"min_p": 0.1}, {"stop_token_ids": (5,)}], ids=lambda o: next(iter(o))
)
def test_a_server_that_refuses_what_would_change_the_responses_is_not_asked_without_it(
    opened: Any, tiny: Any, server_url: str, options: Any
) -> None:
    name = next(iter(options))
    with between(server_url, lambda asked: f"refuse {name}") as proxy:
        strict = opened(dataclasses.replace(tiny.sampling, **options), base_url=proxy.url)
        with pytest.raises(RolloutError, match=f"the server refuses {name} .* the responses would be others"):
            tiny.sample(strict)


def test_what_a_server_never_answers_is_aborted_and_says_why(
    opened: Any, tiny: Any, server_url: str, impatient: None
) -> None:
    def plan(asked: dict[str, Any]) -> str | None:
        first = asked["prompt"][0] if "prompt" in asked else tiny.ids(asked["messages"][0]["content"])[0]
        return "busy" if first == 3 else None

    with between(server_url, plan) as proxy:
        sampler = opened(base_url=proxy.url)
        rollouts = tiny.sample(sampler)
        failed = rollouts.filter(pl.col("finish_reason") == "aborted")
        assert set(failed["problem_id"]) == {"p0", "p2", "p4"}
        assert len(failed) == 12
        reason = f"the server at {proxy.url} failed 2 times (503 Service Unavailable: the engine is gone)"
        assert set(failed["failure"]) == {reason}
        assert failed["reward"].sum() == failed["response_ids"].list.len().sum() == 0
        assert rollouts.filter(pl.col("finish_reason") != "aborted")["failure"].null_count() == 12
        with pytest.raises(RolloutError, match="all 4 requests failed:"):
            tiny.sample(sampler, tiny.problems.head(1))


def test_of_several_servers_one_that_dies_costs_nothing(
    opened: Any, sampler: Any, tiny: Any, server_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    whole = tiny.sample(sampler, samples=8)
    with between(server_url) as first, between(server_url) as second:
        several = opened(base_urls=[first.url, second.url], concurrency=2)
        assert tiny.sample(several, samples=8).equals(whole)
        assert first.asked
        assert second.asked
        first.shutdown()
        first.server_close()
        several.close()
        assert tiny.sample(several, samples=8).equals(whole)
    assert f"the server at {first.url} is left out" in caplog.text


def test_connections_stay_open(opened: Any, tiny: Any, server_url: str) -> None:
    with between(server_url) as proxy:
        tiny.sample(opened(base_url=proxy.url, concurrency=4), samples=16)
        assert len(proxy.asked) == 96
        assert proxy.connections <= 5


def test_a_server_with_another_chat_template_is_named(tiny: Any, server_url: str) -> None:
    other = open_sampler("openai", str(tiny.folder), tiny.sampling, base_url=server_url, api_key=KEY, protocol="chat")
    with pytest.raises(RolloutError, match="prompt of 5 tokens where"):
        tiny.sample(other, tiny.problems.head(1))


def test_a_servers_weights_cannot_be_replaced(sampler: Any, server_url: str) -> None:
    with pytest.raises(RolloutError, match=f"the weights of the server at {server_url} cannot be replaced"):
        sampler.sync([], 1)


def test_a_server_that_refuses_is_quoted(opened: Any, server_url: str, tiny: Any) -> None:
    with pytest.raises(RolloutError, match=f"{server_url} refuses \\(401"):
        opened(api_key="another")
    with pytest.raises(RolloutError, match=r"has no model other \(it"):
        opened(served_model="other")
    with pytest.raises(RolloutError, match=f"all 24 requests failed: the server at {server_url} refuses \\(400"):
        tiny.sample(opened(Sampling(max_new_tokens=99)))


def test_wrong_options_are_named(tiny: Any) -> None:
    nowhere = f"http://127.0.0.1:{free_port()}/v1"
    cut = dataclasses.replace(tiny.sampling, interruption=Interruption(lowest=1, highest=2))
    for message, sampling, options in (
        (f"the server at {nowhere} does not answer .*refused", tiny.sampling, {"base_url": nowhere}),
        ("must be like http", tiny.sampling, {"base_url": "localhost:8000"}),
        ("must be like http", tiny.sampling, {"base_url": "http://localhost:eighty"}),
        ("either base_url or base_urls", tiny.sampling, {}),
        (f"names the server {nowhere} twice", tiny.sampling, {"base_urls": [nowhere, nowhere + "/"]}),
        ("protocol is 'grpc'", tiny.sampling, {"base_url": nowhere, "protocol": "grpc"}),
        ("concurrency is 0", tiny.sampling, {"base_url": nowhere, "concurrency": 0}),
        ("timeout_seconds is 0", tiny.sampling, {"base_url": nowhere, "timeout_seconds": 0}),
        ("interruption .* the protocol chat cannot", cut, {"base_url": nowhere, "protocol": "chat"}),
    ):
        with pytest.raises(RolloutError, match=message):
            open_sampler("openai", str(tiny.folder), sampling, **options)


def test_the_command_measures_with_a_server(
    server_url: str, tiny: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    tiny.problems.write_parquet("problems.parquet")
    asked = [
        "generate",
        "--model",
        str(tiny.folder),
        "--sampler",
        "openai",
        "--problems",
        "problems.parquet",
        "--samples",
        "2",
        "--max-new-tokens",
        "8",
        "--out",
        "rollouts.parquet",
    ]
    assert main([*asked, "--base-url", server_url]) == 0
    assert len(pl.read_parquet("rollouts.parquet")) == 12
    assert main(asked) == 2
    assert "--base-url" in capsys.readouterr().err
