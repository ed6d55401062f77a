"""The wire format of protocol buffers, as far as logs need it: fields by number, with what they hold."""

from __future__ import annotations

from typing import Any


def fields(message: bytes) -> dict[int, list[Any]]:
    """The fields of a message: whole numbers as int, everything else as bytes.

    Raises:
        ValueError: It is not a message.
    """
    found: dict[int, list[Any]] = {}
    place = 0
    while place < len(message):
        key, place = _varint(message, place)
        kind = key & 7
        value: Any
        if kind == 0:
            value, place = _varint(message, place)
        else:
            if kind == 2:
                length, place = _varint(message, place)
            elif kind in (1, 5):
                length = 8 if kind == 1 else 4
            else:
                raise ValueError(f"the wire type {kind} is not used by protocol buffers")
            if place + length > len(message):
                raise ValueError("a field is longer than its message")
            value, place = message[place : place + length], place + length
        found.setdefault(key >> 3, []).append(value)
    return found


def text(value: Any) -> str:
    """The text of a field."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else ""


def _varint(message: bytes, place: int) -> tuple[int, int]:
    """A number of seven bits a byte, and the place after it."""
    number = shift = 0
    while place < len(message):
        byte = message[place]
        number |= (byte & 127) << shift
        place, shift = place + 1, shift + 7
        if byte < 128:
            return number, place
        if shift > 63:
            break
    raise ValueError("a number does not end")
