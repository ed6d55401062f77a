"""A real server on CPU: seeds, log-probabilities, refusals."""

import contextlib
import dataclasses
import json
import os
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from isocompute.rollout import RolloutError, Sampling, open_sampler
from isocompute.rollout.cli import main
from isocompute.rollout.samplers import openai

QUIET = {
    "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
}  # fmt: skip
KEY = "the-key-of-the-test"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="module")
def server(tiny: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Callable[[], None]]]:
    """Start a server; yield its address and a function that waits until it answers."""
    pytest.importorskip("vllm")
    port = free_port()
    log = (tmp_path_factory.mktemp("server") / "log").open("w+")
    # A prompt prefilled in chunks breaks per-request seeds on CPU.
    process = subprocess.Popen(
        [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(tiny.folder), "--port", str(port),
         "--served-model-name", "tiny", "--host", "127.0.0.1", "--dtype", "float32", "--max-model-len", "16",
         "--enforce-eager", "--no-enable-chunked-prefill", "--max-num-batched-tokens", "1024", "--api-key", KEY,
         "--max-num-seqs", "64", "--logprobs-mode", "processed_logprobs"],
        env=os.environ | QUIET, stdout=log, stderr=subprocess.STDOUT,
    )  # fmt: skip

    def wait() -> None:
        for _ in range(600):
            with contextlib.suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=1):
                return
            assert process.poll() is None, Path(log.name).read_text()[-4000:]
            time.sleep(0.5)

    yield f"http://127.0.0.1:{port}/v1", wait
    process.terminate()
    process.wait(timeout=30)
    log.close()


@pytest.fixture(scope="module")
def url(server: tuple[str, Callable[[], None]], vllm_sampler: Any) -> str:
    """The server's address, once it answers; the engine of this process comes up meanwhile."""
    server[1]()
    return server[0]


@pytest.fixture
def sampler(url: str, tiny: Any) -> Any:
    return open_sampler("openai", str(tiny.folder), tiny.sampling, base_url=url, api_key=KEY, concurrency=8)


def test_a_server_gives_the_tokens_and_log_probabilities_of_the_engine_in_process(
    sampler: Any, vllm_sampler: Any, tiny: Any
) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    served, local = tiny.sample(sampler, samples=8), tiny.sample(vllm_sampler, samples=8)
    assert served.drop("logprobs", "weights_version").equals(local.drop("logprobs", "weights_version"))
    policy = AutoModelForCausalLM.from_pretrained(tiny.folder, dtype=torch.float32).eval()
    assert tiny.largest_difference(policy, served) < 1e-4
    assert set(served["finish_reason"]) == {"stop", "length"}
    assert tiny.sample(sampler, seed=4)["response_ids"].to_list() != local["response_ids"].to_list()


def test_a_server_samples_with_the_same_top_p(url: str, vllm_sampler: Any, tiny: Any, monkeypatch: Any) -> None:
    narrow = dataclasses.replace(tiny.sampling, top_p=0.5)
    sampler = open_sampler("openai", str(tiny.folder), narrow, base_url=url, api_key=KEY)
    wide = tiny.sample(vllm_sampler)
    monkeypatch.setattr(vllm_sampler, "sampling", narrow)
    served, local = tiny.sample(sampler), tiny.sample(vllm_sampler)
    assert served["response_ids"].to_list() == local["response_ids"].to_list() != wide["response_ids"].to_list()


def test_without_token_ids_from_the_server_the_text_is_tokenized(sampler: Any, tiny: Any) -> None:
    whole = tiny.sample(sampler)
    sampler._fields = {}
    tokenized = tiny.sample(sampler)
    assert tokenized["reward"].to_list() == whole["reward"].to_list()
    for left, right in zip(tokenized.iter_rows(named=True), whole.iter_rows(named=True), strict=True):
        # The padding token is the only one that text does not show.
        assert left["response_ids"] == [token for token in right["response_ids"] if token != 0]
        assert len(left["logprobs"]) in {0, len(left["response_ids"])}


def test_a_servers_weights_cannot_be_replaced(sampler: Any, url: str) -> None:
    with pytest.raises(RolloutError, match=f"the weights of the server at {url} cannot be replaced"):
        sampler.sync([], 1)


def test_a_server_that_refuses_is_quoted(url: str, tiny: Any) -> None:
    opened = {"base_url": url, "api_key": KEY}
    with pytest.raises(RolloutError, match=f"{url} refuses \\(401"):
        open_sampler("openai", str(tiny.folder), tiny.sampling, base_url=url)
    with pytest.raises(RolloutError, match=r"has no model other \(it has tiny\)"):
        open_sampler("openai", str(tiny.folder), tiny.sampling, served_model="other", **opened)
    longer = open_sampler("openai", str(tiny.folder), Sampling(max_new_tokens=99), **opened)
    with pytest.raises(RolloutError, match=f"{url} refuses \\(400"):
        tiny.sample(longer)


def test_the_command_measures_with_a_server(
    url: str, tiny: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    tiny.problems.write_parquet("problems.parquet")
    asked = ["generate", "--model", str(tiny.folder), "--sampler", "openai", "--problems", "problems.parquet",
             "--samples", "2", "--max-new-tokens", "8", "--out", "rollouts.parquet"]  # fmt: skip
    assert main([*asked, "--base-url", url]) == 0
    assert len(pl.read_parquet("rollouts.parquet")) == 12
    assert main(asked) == 2
    assert "--base-url" in capsys.readouterr().err


class Unsteady(BaseHTTPRequestHandler):
    """Passes requests on to the server, except what a strict and busy one would not answer."""

    server_url = ""
    busy = (3,)
    """First token of a prompt that is never answered."""

    def do_GET(self) -> None:
        self.pass_on(None)

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        asked = json.loads(body)
        if "return_token_ids" in asked:
            self.answer(400, b'{"error": {"message": "Unrecognized request argument supplied: return_token_ids"}}')
        elif asked["prompt"][0] in self.busy:
            self.answer(503, b"busy")
        else:
            self.pass_on(body)

    def pass_on(self, body: bytes | None) -> None:
        address = self.server_url + self.path.removeprefix("/v1")
        headers = {"Authorization": self.headers["Authorization"], "Content-Type": "application/json"}
        with urllib.request.urlopen(urllib.request.Request(address, data=body, headers=headers)) as reply:
            self.answer(200, reply.read())

    def answer(self, code: int, content: bytes) -> None:
        self.send_response(code)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


def test_what_a_strict_and_busy_server_never_answers_is_aborted(
    url: str, tiny: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(openai, "ATTEMPTS", 2)
    monkeypatch.setattr(Unsteady, "server_url", url)
    with ThreadingHTTPServer(("127.0.0.1", 0), Unsteady) as between:
        threading.Thread(target=between.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{between.server_port}"
        sampler = open_sampler("openai", str(tiny.folder), tiny.sampling, base_url=address, api_key=KEY)
        rollouts = tiny.sample(sampler)
        begins = pl.col("prompt_ids").list.first()
        failed = rollouts.filter(pl.col("finish_reason") == "aborted")
        assert failed.equals(rollouts.filter(begins.is_in(Unsteady.busy)))
        assert set(failed["problem_id"]) == {"p0", "p2", "p4"}
        assert failed["reward"].sum() == 0
        assert failed["response_ids"].list.len().sum() == 0
        assert rollouts.filter(~begins.is_in(Unsteady.busy))["response_ids"].list.len().min() > 0
        monkeypatch.setattr(Unsteady, "busy", tuple(range(15)))
        with pytest.raises(RolloutError, match=f"{address}/v1 failed every request \\(503"):
            tiny.sample(sampler)
        between.shutdown()


def test_a_server_that_is_not_there_is_named(tiny: Any) -> None:
    nowhere = f"http://127.0.0.1:{free_port()}/v1"
    with pytest.raises(RolloutError, match=f"the server at {nowhere} does not answer .*refused"):
        open_sampler("openai", str(tiny.folder), tiny.sampling, base_url=nowhere)
    with pytest.raises(RolloutError, match="must be like http"):
        open_sampler("openai", str(tiny.folder), tiny.sampling, base_url="localhost:8000")
