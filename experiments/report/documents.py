"""Reading what the other stages wrote."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ..errors import ExperimentError


def document(path: Path) -> Any:
    """A document that an earlier stage wrote.

    Raises:
        ExperimentError: It is not there.
    """
    if not path.exists():
        raise ExperimentError(f"{path}: an earlier stage has not run: `dvc repro report` runs what is missing")
    return json.loads(path.read_text())
