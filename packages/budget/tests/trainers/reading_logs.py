"""Reading the logs of one run by way of files, for the tests of each trainer."""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from isocompute.budget.trainers import ingest

FIXTURES = Path(__file__).parents[1] / "fixtures"
QUESTIONS = {"questions": "16"}


def rollouts(trainer: str, rows: list[dict[str, Any]], config: dict[str, Any] | None, **given: str) -> list[int]:
    """Cumulative rollouts of a run's evaluations.

    Args:
        config: Its configuration, or None where there is none.
        given: What the user says.
    """
    with TemporaryDirectory() as folder:
        log, settings = Path(folder) / "log.jsonl", Path(folder) / "config.json"
        log.write_text("".join(json.dumps(row) + "\n" for row in rows))
        settings.write_text(json.dumps(config or {}))
        given_all = {**QUESTIONS, **{name.replace("__", "."): value for name, value in given.items()}}
        evals, _ = ingest(trainer, [str(log)], config=settings if config else None, constants=given_all)
        return evals["rollouts"].to_list()
