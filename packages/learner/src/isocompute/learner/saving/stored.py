"""The files of a saved model, whose tensors can be read in parts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.utils import cached_file

from .tensors import TensorFiles

WHOLE, INDEX = "model.safetensors", "model.safetensors.index.json"


def stored_tensors(model: str, policy: Any) -> TensorFiles | None:
    """The tensors of a saved model, where it has those of a policy as they are, under the same names.

    Args:
        model: A folder or a name, in the Hugging Face format.

    Returns:
        The tensors; None where they are in other files than safetensors, or converted when they are loaded.
    """
    if get_model_conversion_mapping(policy, add_legacy=False):
        return None
    names = [WHOLE]
    if (index := file_of(model, INDEX)) is not None:
        names = sorted(set(json.loads(Path(index).read_text())["weight_map"].values()))
    paths = [file_of(model, name) for name in names]
    return None if None in paths else TensorFiles([Path(path) for path in paths if path is not None])


def file_of(model: str, name: str) -> str | None:
    """A file of a saved model, or None where it has no such file."""
    found: str | None = cached_file(
        model,
        name,
        _raise_exceptions_for_gated_repo=False,
        _raise_exceptions_for_missing_entries=False,
        _raise_exceptions_for_connection_errors=False,
    )
    return found
