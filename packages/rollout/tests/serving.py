"""A real server on loopback, and a proxy in front of it that injects faults."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

KEY = "the-key-of-the-test"
TEMPLATE = (
    "{% for message in messages %}{{ message['role'][0] == 's' and '9' or '' }}{{ message['content'] }}{% endfor %}+"
)
"""Renders a user's message as its text and a plus sign, so that a chat's prompt is another than a plain one."""

QUIET = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    # As in the sampler of this package: no C++ compiler for the ranks of tokens.
    "TORCHDYNAMO_DISABLE": "1",
}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Served:
    """vLLM's server with a tiny model, in a process of its own.

    Args:
        model: Folder of the model.
        folder: For its log and its chat template.
    """

    def __init__(self, model: Path, folder: Path) -> None:
        self._port = free_port()
        self.url = f"http://127.0.0.1:{self._port}/v1"
        template, self._log = folder / "template.jinja", folder / "log"
        template.write_text(TEMPLATE)
        with self._log.open("w") as log:
            # A prompt prefilled in chunks breaks per-request seeds on CPU.
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "vllm.entrypoints.openai.api_server",
                    "--model",
                    str(model),
                    "--host",
                    "127.0.0.1",
                    "--port",
                    str(self._port),
                    "--served-model-name",
                    "tiny",
                    "--dtype",
                    "float32",
                    "--max-model-len",
                    "24",
                    "--enforce-eager",
                    "--no-enable-chunked-prefill",
                    "--max-num-batched-tokens",
                    "1024",
                    "--max-num-seqs",
                    "64",
                    "--api-key",
                    KEY,
                    "--logprobs-mode",
                    "processed_logprobs",
                    "--chat-template",
                    str(template),
                ],
                env=os.environ | QUIET,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def wait(self) -> None:
        """Wait until it answers."""
        for _ in range(600):
            with contextlib.suppress(OSError), urllib.request.urlopen(self.url[:-3] + "/health", timeout=1):
                return
            assert self._process.poll() is None, self._log.read_text()[-4000:]
            time.sleep(0.5)

    def end(self, how: signal.Signals = signal.SIGTERM) -> None:
        """End it, and the engine's process that a killed server leaves behind."""
        self._process.send_signal(how)
        self._process.wait(timeout=60)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)


Plan = Callable[[dict[str, Any]], str | None]
"""From a request's JSON to the name of the fault to inject (``Proxy.FAULTS``), or None."""


class Proxy(ThreadingHTTPServer):
    """Passes requests on to a server, except where a plan says otherwise.

    Args:
        url: The server's address.
        plan: Which fault each request meets.
    """

    FAULTS = (
        "500",
        "busy",
        "hang",
        "drip",
        "cut off",
        "reset",
        "no JSON",
        "no choices",
        "two choices",
        "lost token",
        "lost log-probability",
        "unknown token",
        "too long",
        "aborted",
        "wrong prompt",
    )
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, url: str, plan: Plan = lambda asked: None) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.behind, self.plan = url, plan
        self.change: Callable[[dict[str, Any]], None] = lambda asked: None
        self.url = f"http://127.0.0.1:{self.server_port}/v1"
        self.injected: list[str] = []
        self.connections = 0
        self.asked: list[dict[str, Any]] = []
        self.ends = threading.Event()

    def process_request(self, request: Any, client_address: Any) -> None:
        """Count connections."""
        self.connections += 1
        super().process_request(request, client_address)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of clients that went away."""


@contextlib.contextmanager
def between(
    url: str, plan: Plan = lambda asked: None, *, change: Callable[[dict[str, Any]], None] = lambda asked: None
) -> Iterator[Proxy]:
    """Run a proxy in a thread; ``change`` alters what it passes on."""
    proxy = Proxy(url, plan)
    proxy.change = change
    threading.Thread(target=proxy.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    try:
        yield proxy
    finally:
        proxy.ends.set()
        proxy.shutdown()
        proxy.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # Head and body are two writes, the second of which would wait 40 ms for the first to be acknowledged.
    disable_nagle_algorithm = True
    server: Proxy

    def do_GET(self) -> None:
        self.answer(*self.passed_on(None))

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        asked = json.loads(body)
        self.server.asked.append(asked)
        fault = self.server.plan(asked)
        self.server.change(asked)
        body = json.dumps(asked).encode()
        if fault is None:
            self.answer(*self.passed_on(body))
            return
        self.server.injected.append(fault)
        self.inject(fault, body)

    def inject(self, fault: str, body: bytes) -> None:
        """Answer wrongly."""
        if fault.startswith("refuse "):
            name = fault.removeprefix("refuse ")
            said = {"error": {"message": f"Unrecognized request argument supplied: {name}"}}
            self.answer(400, json.dumps(said).encode())
        elif fault in {"500", "busy"}:
            self.answer(
                500 if fault == "500" else 503, b"the engine is gone", retry="0.01" if fault == "busy" else None
            )
        elif fault == "hang":
            self.close_connection = True
            self.server.ends.wait(60)
        elif fault == "reset":
            self.close_connection = True
        elif fault == "no JSON":
            self.answer(200, b"<html>a gateway's page</html>")
        else:
            _, content = self.passed_on(body)
            if fault == "drip":
                self.drip(content)
            elif fault == "cut off":
                self.close_connection = True
                self.answer(200, content, sent=len(content) // 2)
            else:
                self.answer(200, json.dumps(spoilt(fault, json.loads(content))).encode())

    def drip(self, content: bytes) -> None:
        """Send a byte at a time, so that no single read takes long."""
        self.close_connection = True
        with contextlib.suppress(OSError):
            self.answer(200, content, sent=0)
            for byte in content:
                if self.server.ends.wait(0.05):
                    return
                self.wfile.write(bytes([byte]))

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

    def answer(self, code: int, content: bytes, *, sent: int | None = None, retry: str | None = None) -> None:
        self.send_response(code)
        self.send_header("Content-Length", str(len(content)))
        if retry is not None:
            self.send_header("Retry-After", retry)
        self.end_headers()
        with contextlib.suppress(OSError):
            self.wfile.write(content[:sent])

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


def spoilt(fault: str, answer: dict[str, Any]) -> dict[str, Any]:
    """An answer that cannot be right."""
    choice = answer["choices"][0]
    reported = choice.get("logprobs") or {}
    if fault == "no choices":
        del answer["choices"]
    elif fault == "two choices":
        answer["choices"] = [choice, choice]
    elif fault == "lost token":
        choice["token_ids"] = choice["token_ids"][:-1]
    elif fault == "lost log-probability":
        values = reported.get("token_logprobs") or reported.get("content")
        del values[-1]
    elif fault == "unknown token":
        choice["token_ids"][0] = 10**6
    elif fault == "too long":
        choice["token_ids"] = choice["token_ids"] * 9
        answer["usage"]["completion_tokens"] = len(choice["token_ids"])
    elif fault == "aborted":
        choice["finish_reason"] = "abort"
    elif fault == "wrong prompt":
        choice["prompt_token_ids"] = [2]
    return answer
