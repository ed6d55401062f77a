"""Servers on loopback: vLLM's, one that answers in its words, and a proxy in front of either that injects faults."""

import contextlib
import json
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from concurrent.futures import Future
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from isocompute.rollout.samplers.sampling import Request, Response, Sampling, as_it_is

KEY = "the-key-of-the-test"
TEMPLATE = (
    "{% for message in messages %}{{ message['role'][0] == 's' and '9' or '' }}{{ message['content'] }}{% endfor %}+"
)
"""Renders a user's message as its text and a plus sign, so that a chat's prompt is another than a plain one."""

# As in the sampler of this package: no C++ compiler for the ranks of tokens, and no thread of vLLM's own choosing.
QUIET = """VLLM_CPU_KVCACHE_SPACE=1 VLLM_CPU_OMP_THREADS_BIND=nobind VLLM_ENABLE_V1_MULTIPROCESSING=0 OMP_NUM_THREADS=1
    VLLM_NO_USAGE_STATS=1 DO_NOT_TRACK=1 HF_HUB_OFFLINE=1 TORCHDYNAMO_DISABLE=1"""
# A prompt prefilled in chunks breaks per-request seeds on CPU.
LONGEST = 24
OPTIONS = f"""--served-model-name tiny --api-key {KEY} --host 127.0.0.1 --max-model-len {LONGEST} --max-num-seqs 64
    --dtype float32 --logprobs-mode processed_logprobs --enforce-eager --no-enable-chunked-prefill
    --max-num-batched-tokens 1024"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Handler(BaseHTTPRequestHandler):
    """One connection to a server in this process; a subclass responds."""

    protocol_version = "HTTP/1.1"
    # Head and body are two writes, the second of which would wait 40 ms for the first to be acknowledged.
    disable_nagle_algorithm = True
    server: Any

    def do_GET(self) -> None:
        self.respond(None)

    def do_POST(self) -> None:
        self.respond(self.rfile.read(int(self.headers["Content-Length"])))

    def respond(self, body: bytes | None) -> None:
        raise NotImplementedError

    def give(self, code: int, content: bytes, sent: int | None = None, **headers: str) -> None:
        self.send_response(code)
        for name, value in {"Content_Length": str(len(content)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        with contextlib.suppress(OSError):
            self.wfile.write(content[:sent])

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


class Loopback(ThreadingHTTPServer):
    """A server in this process, which answers from now on until its end."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, handler: type[Handler]) -> None:
        super().__init__(("127.0.0.1", 0), handler)
        self.url = f"http://127.0.0.1:{self.server_port}/v1"
        threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True).start()

    def end(self) -> None:
        self.shutdown()
        self.server_close()

    def __exit__(self, *_: Any) -> None:
        self.end()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of clients that went away."""


class Served:
    """vLLM's server with a tiny model, in a process of its own; a folder has its log and its chat template."""

    def __init__(self, model: Path, folder: Path) -> None:
        self._port = free_port()
        self.url = f"http://127.0.0.1:{self._port}/v1"
        template, self._log = folder / "template.jinja", folder / "log"
        template.write_text(TEMPLATE)
        command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(model)]
        command += [*OPTIONS.split(), "--port", str(self._port), "--chat-template", str(template)]
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                command,
                env=os.environ | dict(pair.split("=") for pair in QUIET.split()),
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        for _ in range(600):
            with contextlib.suppress(OSError), urllib.request.urlopen(self.url[:-3] + "/health", timeout=1):
                return
            assert self._process.poll() is None, self._log.read_text()[-4000:]
            time.sleep(0.5)

    def end(self) -> None:
        """End it, and the engine's process that a killed server leaves behind."""
        self._process.terminate()
        self._process.wait(timeout=60)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)


class Stub(Loopback):
    """Answers as vLLM's server does, with the tokens of a sampler in this process: it is there at once.

    What is asked for while it generates is answered together.
    """

    def __init__(self, sampler: Any) -> None:
        self._sampler = sampler
        self._asked: queue.Queue[tuple[Sampling, Request, Future[Response]]] = queue.Queue()
        threading.Thread(target=self._run, daemon=True).start()
        super().__init__(_Answers)

    def _run(self) -> None:
        while True:
            batch = [self._asked.get()]
            while not self._asked.empty():
                batch.append(self._asked.get())
            for sampling in {sampling for sampling, _, _ in batch}:
                together = [entry for entry in batch if entry[0] == sampling]
                self._sampler.sampling = sampling
                asked = [request for _, request, _ in together]
                for index, response in filter(None, self._sampler._generate(asked, as_it_is)):
                    together[index][2].set_result(response)

    def answer(self, asked: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        """Return a status and the JSON to a request."""
        tokenizer = self._sampler.tokenizer
        chat, prompt = "messages" in asked, asked.get("prompt")
        if chat:
            said = ["9" * (m["role"] == "system") + m["content"] for m in asked["messages"]]
            prompt = tokenizer("".join(said) + "+", add_special_tokens=False)["input_ids"]
        length = asked.get("max_tokens") or asked["max_completion_tokens"]
        if len(prompt) + length > LONGEST:
            return 400, {"error": {"message": f"at most {LONGEST} tokens"}}
        given = {name: asked[name] for name in ("temperature", "top_p", "top_k", "min_p") if name in asked}
        ends = {name: tuple(asked.get(name, ())) for name in ("stop", "stop_token_ids")}
        future: Future[Response] = Future()
        request = Request(prompt_ids=prompt, seed=asked["seed"], max_new_tokens=length)
        self._asked.put((Sampling(**given, **ends), request, future))
        response = future.result()
        ids, whole = response.ids.tolist(), tokenizer.decode(response.ids, skip_special_tokens=True)
        text = whole if response.text is None else response.text
        stopped_at = next((stop for stop in ends["stop"] if response.text is not None and whole.endswith(stop)), None)
        if stopped_at is None and response.finish_reason == "stop" and ids[-1] != tokenizer.eos_token_id:
            stopped_at = ids[-1]
        # Of a character's single bytes vLLM gives no text.
        tokens = [tokenizer.decode([token]).replace("\N{REPLACEMENT CHARACTER}", "") for token in ids]
        numbers = response.logprobs.tolist()
        choice: dict[str, Any] = {"finish_reason": response.finish_reason, "stop_reason": stopped_at}
        if chat:
            content = [{"token": t, "logprob": n} for t, n in zip(tokens, numbers, strict=True)]
            choice |= {"message": {"role": "assistant", "content": text}, "logprobs": {"content": content}}
        else:
            choice |= {"text": text, "logprobs": {"tokens": tokens, "token_logprobs": numbers}}
        answer = {"choices": [choice], "usage": {"completion_tokens": len(ids)}}
        if asked.get("return_token_ids"):
            choice["token_ids"] = ids
            (answer if chat else choice)["prompt_token_ids"] = prompt
        return 200, answer


class _Answers(Handler):
    def respond(self, body: bytes | None) -> None:
        code, answer = 200, {"data": [{"id": "tiny"}]}
        if self.headers["Authorization"] != f"Bearer {KEY}":
            code, answer = 401, {"error": "Unauthorized"}
        elif body is not None:
            code, answer = self.server.answer(json.loads(body))
        self.give(code, json.dumps(answer).encode())


Plan = Callable[[dict[str, Any]], str | None]
"""From a request's JSON to the name of the fault to inject (``Proxy.FAULTS``), or None."""


class Proxy(Loopback):
    """Passes requests on to a server, except where a plan says otherwise.

    What else may be wrong with an answer, and that it counts as failed, are asked of the client and of the protocols.
    """

    FAULTS = ("wrong-prompt", "500", "hang", "busy", "reset")

    def __init__(self, url: str, plan: Plan = lambda asked: None) -> None:
        self.behind, self.plan = url, plan
        self.injected: list[str] = []
        self.ends = threading.Event()
        super().__init__(_Passes)

    def end(self) -> None:
        self.ends.set()
        super().end()


class _Passes(Handler):
    def respond(self, body: bytes | None) -> None:
        fault = None if body is None else self.server.plan(json.loads(body))
        if body is None or fault is None:
            self.give(*self.passed_on(body))
        else:
            self.server.injected.append(fault)
            self.inject(fault, body)

    def inject(self, fault: str, body: bytes) -> None:
        """Answer wrongly."""
        if fault.startswith("refuse "):
            name = fault.removeprefix("refuse ")
            said = {"error": {"message": f"Unrecognized request argument supplied: {name}"}}
            self.give(400, json.dumps(said).encode())
        elif fault == "500":
            self.give(500, b"the engine is gone")
        elif fault == "busy":
            self.give(503, b"the engine is gone", Retry_After="0.01")
        elif fault == "hang":
            self.close_connection = True
            self.server.ends.wait(60)
        elif fault == "reset":
            self.close_connection = True
        else:
            answer = json.loads(self.passed_on(body)[1])
            answer["choices"][0]["prompt_token_ids"] = [2]
            self.give(200, json.dumps(answer).encode())

    def passed_on(self, body: bytes | None) -> tuple[int, bytes]:
        address = self.server.behind + self.path.removeprefix("/v1")
        headers = {"Authorization": self.headers["Authorization"] or "", "Content-Type": "application/json"}
        try:
            with urllib.request.urlopen(urllib.request.Request(address, data=body, headers=headers)) as reply:
                return 200, reply.read()
        except urllib.error.HTTPError as error:
            return error.code, error.read()
        except OSError:
            return 502, b"there is nothing behind the proxy"
