"""A real server on CPU: seeds, log-probabilities, refusals."""

import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest

pytest.importorskip("vllm")

from isocompute.rollout import RolloutError, open_sampler  # noqa: E402
from isocompute.rollout.cli import main  # noqa: E402

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
def url(tiny: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    port = free_port()
    said = (tmp_path_factory.mktemp("server") / "log").open("w+")
    # A prompt prefilled in chunks breaks per-request seeds on CPU.
    server = subprocess.Popen(
        [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(tiny.folder), "--port", str(port),
         "--served-model-name", "tiny", "--host", "127.0.0.1", "--dtype", "float32", "--max-model-len", "16",
         "--enforce-eager", "--no-enable-chunked-prefill", "--max-num-batched-tokens", "1024", "--api-key", KEY,
         "--max-num-seqs", "64", "--logprobs-mode", "processed_logprobs"],
        env=os.environ | QUIET, stdout=said, stderr=subprocess.STDOUT,
    )  # fmt: skip
    try:
        for _ in range(240):
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=1):
                    break
            except OSError:
                time.sleep(0.5)
                assert server.poll() is None, Path(said.name).read_text()[-4000:]
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        server.terminate()
        server.wait(timeout=30)
        said.close()


@pytest.fixture
def sampler(url: str, tiny: Any) -> Any:
    return open_sampler("openai", str(tiny.folder), tiny.sampling, base_url=url, api_key=KEY, concurrency=8)


def test_a_server_gives_the_tokens_and_log_probabilities_of_the_engine_in_process(
    sampler: Any, vllm_sampler: Any, tiny: Any
) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    served, here = tiny.sample(sampler, samples=8), tiny.sample(vllm_sampler, samples=8)
    assert served.drop("logprobs").equals(here.drop("logprobs"))
    policy = AutoModelForCausalLM.from_pretrained(tiny.folder, dtype=torch.float32).eval()
    assert tiny.largest_difference(policy, served) < 1e-4
    assert set(served["finish_reason"]) == {"stop", "length"}
    assert tiny.sample(sampler, seed=4)["response_ids"].to_list() != here["response_ids"].to_list()


def test_without_token_ids_from_the_server_the_text_is_tokenized(sampler: Any, tiny: Any) -> None:
    whole = tiny.sample(sampler)
    sampler._fields = {}
    read = tiny.sample(sampler)
    assert read["reward"].to_list() == whole["reward"].to_list()
    for left, right in zip(read.iter_rows(named=True), whole.iter_rows(named=True), strict=True):
        # The padding token is the only one that text does not show.
        assert left["response_ids"] == [token for token in right["response_ids"] if token != 0]
        assert len(left["logprobs"]) in {0, len(left["response_ids"])}


def test_a_servers_weights_cannot_be_replaced(sampler: Any, url: str) -> None:
    with pytest.raises(RolloutError, match=f"the server at {url} keeps its weights"):
        sampler.sync([], 1)


def test_a_server_that_refuses_is_quoted(url: str, tiny: Any) -> None:
    opened = {"base_url": url, "api_key": KEY}
    with pytest.raises(RolloutError, match=f"{url} refuses \\(401"):
        open_sampler("openai", str(tiny.folder), tiny.sampling, base_url=url)
    with pytest.raises(RolloutError, match=r"has no model other \(it has tiny\)"):
        open_sampler("openai", str(tiny.folder), tiny.sampling, served_model="other", **opened)
    from isocompute.rollout import Sampling

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


def test_a_server_that_is_not_there_is_named(tiny: Any) -> None:
    nowhere = f"http://127.0.0.1:{free_port()}/v1"
    with pytest.raises(RolloutError, match=f"the server at {nowhere} does not answer .*refused"):
        open_sampler("openai", str(tiny.folder), tiny.sampling, base_url=nowhere)
    with pytest.raises(RolloutError, match="has to be like http"):
        open_sampler("openai", str(tiny.folder), tiny.sampling, base_url="localhost:8000")
