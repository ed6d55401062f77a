"""The thread that sends: nothing that trains or writes results waits for MLflow."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from isocompute.budget.contract import tracking
from isocompute.budget.contract.errors import redacted
from isocompute.budget.contract.files import reason_of

from ..errors import listed
from ..outbox import Outbox, Parcel
from .delivery import Delivery

RETRY_SECONDS = 15.0
PATIENCE_SECONDS = 300.0
"""How long the end of a stage waits for one run: a large artifact, or new tables, take their time. A server that does
not answer is given up by MLflow's client before that."""
SEND = "python -m experiments send"


class Sender:
    """Sends parcels in the order in which they came, those first that an earlier process has left."""

    def __init__(self) -> None:
        # MLflow's client would ask again for minutes; what was not sent is sent later.
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "10")
        self.outbox = Outbox()
        self._changed = threading.Condition()
        self._waiting: dict[str, Parcel] = {parcel.id: parcel for parcel in self.outbox.parcels()}
        self._deliveries: dict[str, Delivery] = {}
        self._thread: threading.Thread | None = None
        self._ready = self._closed = False
        self._failures, self._resumes_at = 0, 0.0
        self.reason = ""
        self._start()

    def put(self, parcel: Parcel, *, keep: bool = True) -> None:
        """Send a parcel as soon as may be; one of the same run that still waits is replaced.

        Args:
            keep: Whether it is put into the outbox, too, for later commands.
        """
        if keep:
            self.outbox.put(parcel)
        with self._changed:
            self._waiting[parcel.id] = parcel
            self._start()
            self._changed.notify_all()

    def drain(self) -> Sequence[Parcel]:
        """Wait until everything is sent, or MLflow does not answer."""
        with self._changed:
            failures = self._failures
            self._resumes_at = 0.0
            self._start()
            self._changed.notify_all()
            while left := len(self._waiting):
                moved = self._changed.wait_for(
                    lambda: len(self._waiting) < left or self._failures > failures, PATIENCE_SECONDS
                )
                if not moved:
                    self.reason = "it does not answer"
                if not moved or self._failures > failures:
                    break
            return list(self._waiting.values())

    def close(self) -> None:
        """Stop trying; what was not sent stays in the outbox, if it was put there."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def report(self) -> bool:
        """Wait as ``drain`` does, and say in one line what was not sent; returns whether there is such a thing."""
        left = self.drain()
        self.close()
        if left:
            names = listed(sorted({parcel.name for parcel in left}), most=5, between="; ")
            print(
                f"MLflow: not sent are the runs {names} ({redacted(self.reason)}). They are in "
                f"{os.path.relpath(self.outbox.folder)}; the next stage, or `{SEND}`, sends them.",
                flush=True,
            )
        return bool(left)

    def _start(self) -> None:
        """Start the thread where there is something to send and none does; it ends with its process, sent or not."""
        if self._waiting and (self._thread is None or not self._thread.is_alive()):
            self._thread = threading.Thread(target=self._run, name="mlflow", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        while True:
            with self._changed:
                if self._closed or not self._waiting:
                    self._thread = None
                    return
                pause = self._resumes_at - time.monotonic()
                if pause > 0:
                    self._changed.wait(pause)
                    continue
                parcels = sorted(self._waiting.values(), key=lambda parcel: not parcel.folder)
            failed = False
            for parcel in parcels:
                error = self._sent(parcel)
                failed |= error is not None
                if error is not None and not _is_of_one_run(error):
                    break
            with self._changed:
                if failed:
                    self._failures += 1
                    self._resumes_at = time.monotonic() + RETRY_SECONDS
                self._changed.notify_all()

    def _sent(self, parcel: Parcel) -> Exception | None:
        """Send one parcel; returns what came of it if it was not sent."""
        delivery = self._deliveries.setdefault(parcel.id, Delivery())
        try:
            with self.outbox.sending():
                if not self._ready:
                    tracking.ensure_store()
                    self._ready = True
                # Not where another process has sent it meanwhile, or its cell was thrown away.
                if parcel.ended is None or Path(parcel.folder).is_dir():
                    delivery.send(parcel)
                self._done(parcel)
        except Exception as error:
            # Nobody knows what has arrived: the next try reads again what there is.
            del self._deliveries[parcel.id]
            self.reason = reason_of(error)
            return error
        return None

    def _done(self, parcel: Parcel) -> None:
        """Forget a parcel, unless there is a newer one; one that goes on stays on disk."""
        with self._changed:
            if self._waiting.get(parcel.id) is parcel:
                del self._waiting[parcel.id]
                self._changed.notify_all()
                if parcel.ended is not None or not parcel.folder:
                    self.outbox.remove(parcel)


def _is_of_one_run(error: Exception) -> bool:
    """Whether only this run cannot be sent, as when its files are gone: the others are tried, too."""
    return isinstance(error, FileNotFoundError) or getattr(error, "error_code", None) == "INVALID_PARAMETER_VALUE"
