"""Metrics of a running cell as JSON lines: the worker appends, the driver of the sweep reads what is new."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """How far a reader is: bytes read of the file with some inode."""

    inode: int = 0
    read: int = 0


class Spool:
    """The metrics file of one cell."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def rewind(self, rollouts: int) -> None:
        """Drop what a killed attempt wrote beyond the checkpoint at ``rollouts``."""
        if not self.path.exists():
            return
        kept = [json.dumps(line) for line in self.lines() if line["rollouts"] <= rollouts]
        aside = self.path.with_suffix(".writing")
        aside.write_text("".join(line + "\n" for line in kept))
        # A new file, by whose inode readers notice that what they have read may be gone.
        aside.rename(self.path)

    def write(self, step: int, rollouts: int, metrics: Mapping[str, float]) -> None:
        """Append one line."""
        with self.path.open("a") as stream:
            stream.write(json.dumps({"step": step, "rollouts": rollouts, "metrics": dict(metrics)}) + "\n")

    def lines(self) -> list[dict[str, Any]]:
        """Every whole line."""
        return self.since(Position())[0]

    def since(self, position: Position) -> tuple[list[dict[str, Any]], Position]:
        """The whole lines after a position, and the position behind them; a torn last line is left for later.

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
        return [json.loads(line) for line in lines], Position(inode=inode, read=after)
