"""A server in both protocols: what every sampler does, what only a server does, and its faults.

With ISOCOMPUTE_ROLLOUT_FAULTS (``nox -s faults``) it is vLLM's own server, and has more of them.
"""

import dataclasses
import os
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from every_sampler import *  # noqa: F403
from isocompute.rollout import RolloutError, Sampling, open_sampler
from isocompute.rollout.samplers.sampling import Interruption, response_seed
from serving import KEY, Proxy, free_port

pytest.importorskip("httpx2")

from isocompute.rollout.samplers.servers import client

pytestmark = [pytest.mark.slow("a server"), pytest.mark.xdist_group("server")]

FAULTS = int(os.environ.get("ISOCOMPUTE_ROLLOUT_FAULTS", "3"))
# Shared tests of what the protocols send and read differently; the others see completions alone.
CHAT = ("row_per_response", "stop_text", "outside_ascii", "temperature_0")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "protocol" in metafunc.fixturenames:
        shared, name = metafunc.function.__module__ == "every_sampler", metafunc.function.__name__
        alone = shared and not any(part in name for part in CHAT)
        metafunc.parametrize("protocol", ["completions", *([] if alone else ["chat"])], scope="module")


@pytest.fixture(scope="module")
def folder(protocol: str, tiny: Any, chat_tiny: Path) -> str:
    """The model's folder, whose tokenizer has a chat template where prompts are chats."""
    return str(chat_tiny if protocol == "chat" else tiny.folder)


@pytest.fixture(scope="module")
def opened(folder: str, protocol: str, server_url: str, tiny: Any) -> Callable[..., Any]:
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


def test_a_server_gives_the_responses_of_its_engine_in_process(sampler: Any, tiny: Any, protocol: str) -> None:
    engine = open_sampler(
        "vllm" if "ISOCOMPUTE_ROLLOUT_FAULTS" in os.environ else "transformers", str(tiny.folder), tiny.sampling
    )
    plain = tiny.problems.with_columns(pl.col("prompt") + "+") if protocol == "chat" else tiny.problems
    served, local = tiny.sample(sampler, samples=8), tiny.sample(engine, plain, samples=8)
    engine.close()
    assert set(served["retokenized"]) == {False}
    differing = ("logprobs", "weights_version", "retokenized")
    assert served.drop(differing).equals(local.drop(differing, strict=False))
    worst = (served["logprobs"].explode() - local["logprobs"].explode()).abs().max()
    assert worst is not None
    # In batches of other sizes sums round otherwise: some units in the last place of logits, which are below 100.
    assert worst < 1e-4


def test_a_strict_server_is_asked_without_the_fields_it_refuses(
    opened: Any, sampler: Any, tiny: Any, server_url: str, protocol: str
) -> None:
    strict = ["return_token_ids", "min_p", "repetition_penalty", "top_k", "stop_token_ids"]
    # Newer chat servers want max_completion_tokens instead.
    strict += ["max_tokens"] if protocol == "chat" else []
    whole = tiny.sample(sampler)
    with Proxy(server_url, lambda asked: next((f"refuse {n}" for n in strict if n in asked), None)) as proxy:
        tokenized = tiny.sample(opened(base_url=proxy.url, concurrency=1))
        assert len(proxy.injected) == len(strict)
    assert set(tokenized["retokenized"]) == {True}
    for left, right in zip(tokenized.iter_rows(named=True), whole.iter_rows(named=True), strict=True):
        # Padding is not text, and bytes that are no character become another one.
        if left["response_ids"] == right["response_ids"]:
            assert left["logprobs"] == pytest.approx(right["logprobs"], abs=1e-4)
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
    with Proxy(server_url, lambda asked: f"refuse {name}") as proxy:
        strict = opened(dataclasses.replace(tiny.sampling, **options), base_url=proxy.url)
        with pytest.raises(RolloutError, match=f"the server refuses {name} .* the responses would be others"):
            tiny.sample(strict)


def test_a_server_with_another_chat_template_is_named(tiny: Any, server_url: str) -> None:
    other = open_sampler("openai", str(tiny.folder), tiny.sampling, base_url=server_url, api_key=KEY, protocol="chat")
    with pytest.raises(RolloutError, match="prompt of 5 tokens where"):
        tiny.sample(other, tiny.problems.head(1))


def test_a_server_that_refuses_is_quoted_and_its_weights_cannot_be_replaced(
    opened: Any, sampler: Any, server_url: str, tiny: Any
) -> None:
    with pytest.raises(RolloutError, match=f"the weights of the server at {server_url} cannot be replaced"):
        sampler.sync([], 1)
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
        ("either base_url or base_urls", tiny.sampling, {}),
        ("protocol is 'grpc'", tiny.sampling, {"base_url": nowhere, "protocol": "grpc"}),
        ("concurrency is 0", tiny.sampling, {"base_url": nowhere, "concurrency": 0}),
        ("timeout_seconds is 0", tiny.sampling, {"base_url": nowhere, "timeout_seconds": 0}),
        ("interruption .* the protocol chat cannot", cut, {"base_url": nowhere, "protocol": "chat"}),
    ):
        with pytest.raises(RolloutError, match=message):
            open_sampler("openai", str(tiny.folder), sampling, **options)


@pytest.mark.parametrize("number", range(FAULTS))
def test_a_fault_of_a_server_costs_no_other_response_and_is_visible(
    number: int, opened: Any, sampler: Any, protocol: str, server_url: str, tiny: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Three attempts at a request, and hardly a pause between them.
    monkeypatch.setattr(client, "ATTEMPTS", 3)
    monkeypatch.setattr(client, "FIRST_PAUSE_SECONDS", 0.01)
    source = random.Random(f"{protocol} {number}")
    # With chat another prompt is another template, which ends a run. A short run has each fault with one protocol.
    kinds = [fault for fault in (*Proxy.FAULTS, "dies") if fault != "wrong-prompt" or protocol == "completions"]
    fault = kinds[(number + 2 * (protocol == "chat")) % len(kinds)]
    lasting, two_servers = source.random() < 0.5, fault == "dies" or source.random() < 0.3
    expected = tiny.sample(sampler)
    keys = source.sample(expected.select("problem_id", "sample").rows(), source.randint(1, 6))
    hit = {response_seed(3, "train", 1, *key): key for key in keys}
    met, lock = Counter[int](), threading.Lock()

    def plan(asked: dict[str, Any]) -> str | None:
        """Requests of some seeds meet the fault, at each attempt (``lasting``) or at the first."""
        with lock:
            seed = asked["seed"]
            if seed not in hit or (met[seed] and not lasting):
                return None
            met[seed] += 1
        if fault == "dies":
            # As when the kernel ends a process: every connection is closed, and nobody listens.
            faulty.server_close()
            return "reset"
        return fault

    with ExitStack() as stack:
        faulty = stack.enter_context(Proxy(server_url, plan))
        urls = [faulty.url, *([stack.enter_context(Proxy(server_url)).url] if two_servers else [])]
        disturbed = opened(base_urls=urls, timeout_seconds=2 if fault == "hang" else 60)
        groups = list(disturbed.stream(tiny.problems, samples=4, seed=3, step=1, run_id="r"))
        disturbed.close()
    assert met or two_servers
    found = pl.concat([pl.DataFrame(group) for group in groups]).sort("problem_id", "sample")
    # Each response is there once, finished or aborted with the reason, and those that met no fault are as ever.
    assert found.select("problem_id", "sample").equals(expected.select("problem_id", "sample"))
    aborted = found.filter(pl.col("finish_reason") == "aborted")
    allowed = {hit[seed] for seed, times in met.items() if times >= 3} if lasting and not two_servers else set()
    assert set(aborted.select("problem_id", "sample").rows()) == allowed
    assert aborted["failure"].str.contains("failed 3 times").all()
    kept, others = (each.join(aborted, on=["problem_id", "sample"], how="anti") for each in (found, expected))
    assert kept.drop("logprobs").equals(others.drop("logprobs"))
