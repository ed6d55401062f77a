"""MLflow servers as they are on a bad day: one that is killed, one that says 503, one that never answers."""

import http.client
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


class Server:
    """An MLflow server on one port and one database, started and killed at will."""

    def __init__(self, folder: Path) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.uri = f"http://127.0.0.1:{self.port}"
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = ["mlflow", "server", "--backend-store-uri", f"sqlite:///{self._folder}/mlflow.db", "--workers", "1"]
        command += ["--artifacts-destination", str(self._folder / "artifacts"), "--port", str(self.port)]
        self._process = subprocess.Popen(
            [sys.executable, "-m", *command],
            env={**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        while True:
            assert self._process.poll() is None
            try:
                urllib.request.urlopen(f"{self.uri}/health", timeout=1)
                return
            except (urllib.error.URLError, OSError):
                time.sleep(0.2)

    def signal(self, number: int) -> None:
        if self._process and self._process.poll() is None:
            os.killpg(self._process.pid, number)

    def kill(self) -> None:
        self.signal(signal.SIGCONT)
        self.signal(signal.SIGKILL)
        if self._process:
            self._process.wait()


@contextmanager
def silent() -> Iterator[str]:
    """The address of a server that accepts every connection and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(0.2)
        taken, ended = [], threading.Event()

        def accept() -> None:
            while not ended.is_set():
                try:
                    taken.append(listening.accept()[0])
                except TimeoutError:
                    continue

        thread = threading.Thread(target=accept)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            ended.set()
            thread.join()
            for connection in taken:
                connection.close()


class Front:
    """What stands in front of an MLflow server, passes requests on, and says 503 while it is told to."""

    def __init__(self, port: int | None = None) -> None:
        self.refuses = port is None
        self.asked: list[str] = []
        front = self

        class Handler(BaseHTTPRequestHandler):
            def answer(self) -> None:
                front.asked.append(self.path)
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                if front.refuses or port is None:
                    self.send_response(503)
                    self.send_header("Content-Length", "0")
                    self.end_headers()
                    return
                passed = http.client.HTTPConnection("127.0.0.1", port)
                # Its own Host: MLflow refuses others.
                headers = {k: v for k, v in self.headers.items() if k.lower() not in {"host", "connection"}}
                passed.request(self.command, self.path, body, headers)
                found = passed.getresponse()
                content = found.read()
                self.send_response(found.status)
                for name in ("Content-Type", "Content-Disposition"):
                    if found.headers.get(name):
                        self.send_header(name, found.headers[name])
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_: object) -> None:
                """Say nothing."""

        for method in ("GET", "POST", "PUT", "PATCH", "DELETE"):
            setattr(Handler, f"do_{method}", Handler.answer)
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.uri = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()
