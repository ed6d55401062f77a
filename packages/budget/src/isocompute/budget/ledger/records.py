"""The payloads of a ledger's records, which ``frames`` puts into a file.

The first byte of a payload is its kind: an attempt that begins (A), a charge (C), a charge that took device time
(T), a step that generated nothing (E, since version 2), the step after which an attempt ended (S), or limits in force
from there on (L, or M with device time and money), and, since they change no sum, in lower case: when and where the
attempt before it began (a). Numbers are little-endian.

A kind in upper case is critical: a reader that does not know it refuses the ledger, since its sums would be wrong. One
in lower case is ancillary: a reader that does not know it leaves the record out. So a new kind of record needs no new
version of the format; the version in the file's first line changes with the framing or with the meaning of a kind.
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Mapping, Sequence

from .counts import COHORTS, Counts
from .fold import CODES
from .limits import Limits

ATTEMPT, CHARGE, TIMED_CHARGE, EMPTY, ENDED, LIMIT, TIMED_LIMIT = b"ACTESLM"
ORIGIN = ord("a")
ANCILLARY = range(ord("a"), ord("z") + 1)
ATTEMPTED = struct.Struct("<Bq")
STEP = struct.Struct("<Bq")
LIMITED = struct.Struct("<Bqq")
# Step and device-seconds, before the entries of a charge that took device time.
TIMED = struct.Struct("<Bqd")
# Rollouts, response tokens, device-seconds, money, price of a device-hour; 0 is none.
TIME_LIMITED = struct.Struct("<Bqqddd")
# After limits that count what is paid; those without it count what is used.
PAID = b"P"
# Step, cohort, rollouts, prompt tokens, response tokens: as many as there are cohorts in the charge.
ENTRY = struct.Struct("<5q")


def encode_attempt(run_id: str, resumed_from: int) -> bytes:
    """Payload that opens an attempt at a run.

    Args:
        resumed_from: The last step that the attempt takes over; 0 for none.
    """
    return ATTEMPTED.pack(ATTEMPT, resumed_from) + run_id.encode()


def decode_attempt(payload: bytes) -> tuple[str, int]:
    """The run and the step resumed from, of a payload that opens an attempt."""
    # A run id was checked when it was written; another program's may be anything.
    return payload[ATTEMPTED.size :].decode(errors="replace"), ATTEMPTED.unpack_from(payload)[1]


def encode_charge(step: int, counts: Mapping[str, Counts], device_seconds: float = 0.0) -> bytes:
    """Payload that charges a step: one record for any number of cohorts.

    Args:
        counts: Counts by cohort; none records that the step was reached.
        device_seconds: Seconds times devices held.
    """
    if not counts and not device_seconds:
        return STEP.pack(EMPTY, step)
    head = TIMED.pack(TIMED_CHARGE, step, device_seconds) if device_seconds else b"C"
    if len(counts) == 1:
        ((cohort, c),) = counts.items()
        return head + ENTRY.pack(step, CODES[cohort], c.rollouts, c.prompt_tokens, c.response_tokens)
    return head + b"".join(
        ENTRY.pack(step, CODES[cohort], c.rollouts, c.prompt_tokens, c.response_tokens) for cohort, c in counts.items()
    )


def encode_charges(charged: Sequence[tuple[int, Mapping[str, Counts]]], device_seconds: float = 0.0) -> bytes:
    """Payload that charges several steps at once: whole or not at all.

    Args:
        charged: Of each step, counts by cohort. The first one takes the device time.
    """
    (step, counts), *later = charged
    payload = encode_charge(step, counts, device_seconds)
    entries = b"".join(encode_charge(after, c)[1:] for after, c in later if c)
    # A first step that generated nothing is reached with the later ones.
    return (b"C" if payload[0] == EMPTY and entries else payload) + entries


def encode_end(step: int) -> bytes:
    """Payload that says after which step an attempt ended."""
    return STEP.pack(ENDED, step)


def decode_entries(payload: bytes) -> bytes:
    """The entries of a charge's payload, as ``entry_columns`` takes them.

    Raises:
        ValueError: The last one is cut short.
    """
    entries = payload[TIMED.size if payload[0] == TIMED_CHARGE else 1 :]
    if len(entries) % ENTRY.size:
        raise ValueError("an entry is cut short")
    return entries


def entry_columns(entries: bytes) -> tuple[array[int], ...]:
    """Step, cohort's place in ``COHORTS``, rollouts, prompt tokens and response tokens of some entries.

    Raises:
        ValueError: There is no such cohort, or a number is negative.
    """
    values = array("q", entries)
    if sys.byteorder == "big":
        values.byteswap()
    found = tuple(values[i::5] for i in range(5))
    # The highest byte of each number, less those of numbers of at least 0.
    if entries[7::8].translate(None, bytes(range(128))) or max(found[1], default=0) >= len(COHORTS):
        raise ValueError("an entry has no cohort that this version knows, or is negative")
    return found


def decode_step(payload: bytes) -> int:
    """The step of a payload that holds nothing else."""
    return int(STEP.unpack(payload)[1])


def decode_time(payload: bytes) -> tuple[int, float]:
    """The step and the device-seconds of a payload that charges device time."""
    _, step, device_seconds = TIMED.unpack_from(payload)
    return step, device_seconds


def encode_limits(limits: Limits) -> bytes:
    """Payload that records the limits in force from there on."""
    counted = (limits.rollouts or 0, limits.response_tokens or 0)
    timed = (limits.device_seconds or 0.0, limits.money or 0.0, limits.price_per_device_hour or 0.0)
    counts = PAID if limits.counted == "paid" else b""
    if any(timed):
        return TIME_LIMITED.pack(TIMED_LIMIT, *counted, *timed) + counts
    return LIMITED.pack(LIMIT, *counted) + counts


def decode_limits(payload: bytes) -> Limits:
    """The limits that a payload records."""
    size = (TIME_LIMITED if payload[0] == TIMED_LIMIT else LIMITED).size
    payload, counts = payload[:size], payload[size:]
    if counts not in (PAID, b""):
        raise ValueError(f"the limits count {counts!r}")
    if payload[0] == TIMED_LIMIT:
        _, rollouts, response_tokens, device_seconds, money, price = TIME_LIMITED.unpack(payload)
    else:
        (_, rollouts, response_tokens), device_seconds, money, price = LIMITED.unpack(payload), 0.0, 0.0, 0.0
    return Limits(
        rollouts=rollouts or None,
        response_tokens=response_tokens or None,
        device_seconds=device_seconds or None,
        money=money or None,
        price_per_device_hour=price or None,
        counted="paid" if counts else "used",
    )
