"""A base model that is there already: where it is, and what is known of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .errors import ExperimentError


def located(model: str) -> str:
    """Where a model is on this machine; ``name@revision`` is brought from the hub first."""
    name, at, revision = model.rpartition("@")
    if not at or Path(model).is_dir():
        return model
    from huggingface_hub import snapshot_download

    return str(snapshot_download(name, revision=revision))


def describe(model: str) -> dict[str, Any]:
    """What is known of a model before it is loaded: ``model_type`` and ``vocabulary`` (tokens).

    Raises:
        ExperimentError: It cannot be found or read.
    """
    from transformers import AutoConfig, AutoTokenizer

    try:
        place = located(model)
        return {"model_type": AutoConfig.from_pretrained(place).model_type,
                "vocabulary": len(AutoTokenizer.from_pretrained(place))}  # fmt: skip
    except Exception as error:
        reason = str(error).strip().splitlines()[0]
        raise ExperimentError(f"the base model {model} cannot be loaded ({reason})") from None
