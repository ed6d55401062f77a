"""Metrics of a running cell as JSON lines: the worker appends, the driver of the sweep sends them to MLflow."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any


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
        aside.rename(self.path)

    def write(self, step: int, rollouts: int, metrics: Mapping[str, float]) -> None:
        """Append one line."""
        with self.path.open("a") as stream:
            stream.write(json.dumps({"step": step, "rollouts": rollouts, "metrics": dict(metrics)}) + "\n")

    def lines(self, after: int = 0) -> Iterator[dict[str, Any]]:
        """Yield the lines from byte ``after`` on; a torn last line is left for later."""
        if not self.path.exists():
            return
        with self.path.open() as stream:
            stream.seek(after)
            for line in stream:
                if line.endswith("\n"):
                    yield json.loads(line)
