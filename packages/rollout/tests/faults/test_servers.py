"""Faults of servers; ISOCOMPUTE_ROLLOUT_FAULTS asks for more of them, of vLLM's own server."""

import os
import random
import threading
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from isocompute.rollout import open_sampler, response_seed
from serving import KEY, Proxy, between

pytest.importorskip("httpx2")

from isocompute.rollout.samplers.servers import client

FAULTS = int(os.environ.get("ISOCOMPUTE_ROLLOUT_FAULTS", "6"))
KINDS = (*Proxy.FAULTS, "dies")
SAMPLES = 4

pytestmark = [pytest.mark.slow("a server"), pytest.mark.xdist_group("server")]


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three attempts at a request, and hardly a pause between them."""
    monkeypatch.setattr(client, "ATTEMPTS", 3)
    monkeypatch.setattr(client, "FIRST_PAUSE_SECONDS", 0.01)


@pytest.fixture(scope="module")
def undisturbed(server_url: str, tiny: Any, chat_tiny: Path) -> dict[str, pl.DataFrame]:
    """The answers of a server without faults, by protocol."""
    return {
        protocol: tiny.sample(opened(tiny, chat_tiny, protocol, base_url=server_url), samples=SAMPLES)
        for protocol in ("completions", "chat")
    }


def opened(tiny: Any, chat_tiny: Path, protocol: str, **options: Any) -> Any:
    folder = chat_tiny if protocol == "chat" else tiny.folder
    return open_sampler("openai", str(folder), tiny.sampling, api_key=KEY, protocol=protocol, **options)


@pytest.mark.parametrize("number", range(FAULTS))
def test_a_fault_of_a_server_costs_no_other_response_and_is_visible(
    number: int, server_url: str, tiny: Any, chat_tiny: Path, undisturbed: dict[str, pl.DataFrame]
) -> None:
    source = random.Random(number)
    fault = KINDS[number % len(KINDS)]
    protocol = source.choice(["completions", "chat"]) if fault != "wrong-prompt" else "completions"
    lasting, two_servers = source.random() < 0.5, fault == "dies" or source.random() < 0.3
    expected = undisturbed[protocol]
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
        faulty = stack.enter_context(between(server_url, plan))
        urls = [faulty.url, *([stack.enter_context(between(server_url)).url] if two_servers else [])]
        sampler = opened(
            tiny, chat_tiny, protocol, base_urls=urls, concurrency=8, timeout_seconds=2 if fault == "hang" else 60
        )
        groups = list(sampler.stream(tiny.problems, samples=SAMPLES, seed=3, step=1, run_id="r"))
        sampler.close()
    assert met or two_servers
    found = pl.concat([pl.DataFrame(pl.from_arrow(group)) for group in groups]).sort("problem_id", "sample")
    # Each response is there once, finished or aborted with the reason, and those that met no fault are as ever.
    assert found.select("problem_id", "sample").equals(expected.select("problem_id", "sample"))
    aborted = found.filter(pl.col("finish_reason") == "aborted")
    allowed = {hit[seed] for seed, times in met.items() if times >= 3} if lasting and not two_servers else set()
    assert set(aborted.select("problem_id", "sample").rows()) == allowed
    assert aborted["failure"].str.contains("failed 3 times").all()
    kept, others = (each.join(aborted, on=["problem_id", "sample"], how="anti") for each in (found, expected))
    assert kept.drop("logprobs").equals(others.drop("logprobs"))
