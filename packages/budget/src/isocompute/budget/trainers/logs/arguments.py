"""``training_args.bin`` of a transformers Trainer, read for its plain values: nothing in it is unpickled or run."""

from __future__ import annotations

import pickletools
import zipfile
from pathlib import Path
from typing import Any

from ...errors import BudgetError
from ...wording import reason

MARK, UNKNOWN = object(), object()
PLAIN = (bool, int, float, str)
LARGEST = 2**24


def read_arguments(path: Path) -> dict[str, Any]:
    """The arguments whose values are numbers, texts, switches or None.

    The file is a pickle, which could run code if it were loaded. Its instructions are followed here only as far as
    they push plain values and set them in a dictionary; whatever they would build is left out.

    Raises:
        BudgetError: It is no such file.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            name = next(n for n in archive.namelist() if n.endswith("/data.pkl"))
            if archive.getinfo(name).file_size > LARGEST:
                raise BudgetError(f"{path}: is too large for a Trainer's arguments")
            code = archive.read(name)
        return _plain_items(code)
    except (OSError, ValueError, StopIteration, IndexError, KeyError, zipfile.BadZipFile) as error:
        if isinstance(error, BudgetError):
            raise
        raise BudgetError(f"{path}: is not the training_args.bin of a transformers Trainer ({reason(error)})") from None


def _plain_items(code: bytes) -> dict[str, Any]:
    """Keys and values that a pickle sets in dictionaries, of those values that are plain."""
    stack: list[Any] = []
    memo: dict[int, Any] = {}
    found: dict[str, Any] = {}
    for operation, argument, _ in pickletools.genops(code):
        name = operation.name
        if name in ("MARK",):
            stack.append(MARK)
        elif name in ("MEMOIZE", "PUT", "BINPUT", "LONG_BINPUT"):
            memo[len(memo) if name == "MEMOIZE" else int(str(argument))] = stack[-1]
        elif name in ("GET", "BINGET", "LONG_BINGET"):
            stack.append(memo[int(str(argument))])
        elif name in ("NEWTRUE", "NEWFALSE", "NONE"):
            stack.append({"NEWTRUE": True, "NEWFALSE": False, "NONE": None}[name])
        elif name in ("SETITEMS", "SETITEM"):
            place = len(stack) - 2
            if name == "SETITEMS":
                place = len(stack) - stack[::-1].index(MARK)
            items = stack[place:]
            del stack[place - (name == "SETITEMS") :]
            for key, value in zip(items[::2], items[1::2], strict=False):
                if isinstance(key, str) and (value is None or isinstance(value, PLAIN)):
                    found.setdefault(key, value)
        elif isinstance(argument, PLAIN) and operation.stack_after and name not in ("GLOBAL", "INST"):
            stack.append(argument)
        else:
            _step(stack, operation)
    return found


def _step(stack: list[Any], operation: pickletools.OpcodeInfo) -> None:
    """Take from the stack what an instruction takes, and push placeholders for what it makes."""
    before = list(operation.stack_before)
    if pickletools.markobject in before or pickletools.stackslice in before:
        while stack and stack.pop() is not MARK:
            pass
        before = before[: before.index(pickletools.markobject)] if pickletools.markobject in before else []
    for _ in before:
        if stack:
            stack.pop()
    stack += [UNKNOWN] * len(operation.stack_after)
