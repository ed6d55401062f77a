"""Records of a running cell as JSON lines: the worker appends, the driver of the sweep reads what is new."""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from isocompute.learner.records.steps import Record, from_plain, to_plain
from isocompute.rollout.contract.files import write_text


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """How far a reader is: the inode of the file that was read, and bytes read of it."""

    inode: int = 0
    read: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Spooled:
    """A record and when it was written, in ms since 1970: for charts alone, and no part of any result."""

    record: Record
    time: int


class Spool:
    """The records of one cell in one file, one line per record."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def rewind(self, rollouts: int) -> None:
        """Drop what a killed attempt wrote beyond the checkpoint at ``rollouts``."""
        if not self.path.exists():
            return
        kept = [_line(spooled) for spooled in self.timed() if spooled.record.rollouts <= rollouts]
        # A new file, by whose inode readers notice that what they have read may be gone.
        write_text(self.path, "".join(kept))

    def write(self, record: Record) -> None:
        """Append one record."""
        with self.path.open("a") as stream:
            stream.write(_line(Spooled(record=record, time=time.time_ns() // 10**6)))

    def records(self) -> list[Record]:
        """The record of every whole line."""
        return [spooled.record for spooled in self.timed()]

    def timed(self) -> list[Spooled]:
        """The record of every whole line, with its time."""
        return self.since(Position())[0]

    def since(self, position: Position) -> tuple[list[Spooled], Position]:
        """The records after a position, and the position behind them; a torn last line is left for later.

        A file that was rewound since is read from its beginning.
        """
        try:
            stream = self.path.open("rb")
        except FileNotFoundError:
            return [], Position()
        with stream:
            inode = os.fstat(stream.fileno()).st_ino
            begin = position.read if position.inode == inode else 0
            if begin:
                stream.seek(begin - 1)
                begin = begin if stream.read(1) == b"\n" else 0
            stream.seek(begin)
            whole = stream.read().rpartition(b"\n")[0]
        lines = whole.split(b"\n") if whole else []
        after = begin + (len(whole) + 1 if whole else 0)
        return [_read(json.loads(line)) for line in lines], Position(inode=inode, read=after)


def _line(spooled: Spooled) -> str:
    return json.dumps({**to_plain(spooled.record), "time": spooled.time}) + "\n"


def _read(plain: dict[str, Any]) -> Spooled:
    at = plain.pop("time")
    return Spooled(record=from_plain(plain), time=at)
