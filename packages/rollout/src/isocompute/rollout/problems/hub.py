"""Problems from a Hugging Face dataset, at a pinned revision."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import RolloutError
from . import rows
from .named import SetSource
from .sources import HubSource


def of_hub(source: HubSource) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield each row with its number, in shuffled order.

    Raises:
        RolloutError: ``datasets`` is not installed, the revision is missing, the dataset cannot be loaded,
            or it lacks a column.
    """
    try:
        import datasets
    except ImportError:
        raise RolloutError('these problems need datasets: pip install "isocompute-rollout[hub]"') from None
    local = Path(source.dataset).is_dir()
    if not local and not source.revision:
        raise RolloutError(
            f"the dataset {source.dataset} has no revision: pin a commit, so that the problems stay the same"
        )
    try:
        data: Any = datasets.load_dataset(
            source.dataset,
            revision=None if local else source.revision,
            # By the split's name: a file that is given alone would become the split train.
            data_files={source.split: source.files} if source.files else None,
            split=source.split,
        )
    except Exception as error:
        lines = str(error).strip().splitlines()
        reason = lines[0] if lines else type(error).__name__
        raise RolloutError(f"the dataset {source.dataset} cannot be loaded ({reason}){_help(source)}") from None
    used = rows.used_columns(source, data.column_names, where=source.name)
    order = np.random.default_rng(source.seed).permutation(len(data))
    held = data.select(order).select_columns(used)
    yield from ((int(number) + 1, row) for number, row in zip(order, held, strict=True))


def _help(source: HubSource) -> str:
    """Return advice for somebody without the hub."""
    if not isinstance(source, SetSource) or source.origin:
        return ""
    return f": where the hub cannot be reached, give a copy with --folder (it needs {source.files})"
