"""When and where an attempt at a run began."""

from __future__ import annotations

import os
import secrets
import socket
import struct
from dataclasses import dataclass
from datetime import UTC, datetime

JOB_VARIABLES = ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "FLUX_JOB_ID")
"""Where schedulers say which job a process belongs to."""

TEXT_BYTES = 64
"""Largest length of a name, in bytes of UTF-8: that of a host name on Linux. Longer ones are cut."""

# Kind, seconds since 1970, salt, host, job: of one size everywhere.
ORIGIN = struct.Struct(f"<Bq8s{TEXT_BYTES}s{TEXT_BYTES}s")


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """When and where an attempt began. It is shown, and enters no count and no ``ledger`` table.

    Attributes:
        began: In UTC, to the second.
        host: Name of the machine.
        job: The scheduler's name of the job; None without a scheduler.
        salt: Random, so that two runs that charge the same are not taken for copies of each other.
    """

    began: datetime
    host: str
    job: str | None
    salt: bytes


def here() -> Origin:
    """The origin of an attempt that begins now, in this process."""
    job = next((os.environ[name] for name in JOB_VARIABLES if os.environ.get(name)), None)
    return Origin(
        began=datetime.now(UTC).replace(microsecond=0),
        host=_cut(socket.gethostname()).decode(),
        job=None if job is None else _cut(job).decode(),
        salt=secrets.token_bytes(8),
    )


def encode_origin(kind: int, origin: Origin) -> bytes:
    """Payload that says when and where an attempt began."""
    seconds = int(origin.began.timestamp())
    return ORIGIN.pack(kind, seconds, origin.salt, _cut(origin.host), _cut(origin.job or ""))


def decode_origin(payload: bytes) -> Origin:
    """What such a payload says; what a later version adds to it is left out.

    Raises:
        ValueError: It is cut short, or its time is none.
    """
    try:
        _, seconds, salt, host, job = ORIGIN.unpack_from(payload)
        began = datetime.fromtimestamp(seconds, UTC)
    except (struct.error, OverflowError, OSError) as error:
        raise ValueError(f"it does not say when an attempt began ({error})") from None
    host, job = (text.rstrip(b"\0").decode(errors="replace") for text in (host, job))
    return Origin(began=began, host=host, job=job or None, salt=salt)


def _cut(text: str) -> bytes:
    """At most so many bytes of a text, without a part of a character."""
    return text.encode(errors="replace")[:TEXT_BYTES].decode(errors="ignore").encode()
