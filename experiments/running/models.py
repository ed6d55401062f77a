"""Base models: their location, metadata and content hash."""

from __future__ import annotations

import json
from hashlib import file_digest, sha256
from pathlib import Path
from typing import Any

from ..errors import ExperimentError
from .work import WORK, write_json

LARGE = 2**24
"""Bytes of a file from which on its hash is remembered."""


def local_path(model: str) -> str:
    """Local path of a model; ``name@revision`` is downloaded from the hub first."""
    name, at, revision = model.rpartition("@")
    if Path(model).is_dir():
        return model
    from huggingface_hub import snapshot_download

    return str(snapshot_download(name, revision=revision) if at else snapshot_download(model))


def describe(model: str) -> dict[str, Any]:
    """What is known of a model before it is loaded: ``model_type``, ``vocabulary`` (tokens), ``content``."""
    from transformers import AutoConfig, AutoTokenizer

    try:
        place = local_path(model)
        return {"model_type": AutoConfig.from_pretrained(place).model_type,
                "vocabulary": len(AutoTokenizer.from_pretrained(place)), "content": content(place)}  # fmt: skip
    except Exception as error:
        reason = str(error).strip().splitlines()[0]
        raise ExperimentError(f"the base model {model} cannot be loaded ({reason})") from None


def content(place: str | Path) -> str:
    """Hash of what a folder holds; of a snapshot of the hub its commit, which names its content already."""
    folder = Path(place)
    if folder.parent.name == "snapshots":
        return folder.name
    return content_hash(folder)


def content_hash(path: Path) -> str:
    """Hash of a file, or of a folder's file names and contents.

    Hashes of large files are remembered by name, size and time, since a model of 7B takes half a minute.
    """
    remembered = WORK / "hashes.json"
    try:
        known: dict[str, str] = json.loads(remembered.read_text())
    except (OSError, ValueError):
        known = {}
    digest, before = sha256(), len(known)
    files = sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]
    for file in files:
        name = str(file.relative_to(path)) if path.is_dir() else file.name
        digest.update(name.encode() + b"\0" + bytes.fromhex(_hash_of(file, known)))
    if len(known) > before:
        write_json(remembered, known)
    return digest.hexdigest()[:16]


def _hash_of(file: Path, known: dict[str, str]) -> str:
    """Hash of a file's content; of a large one it is among those that are known, or comes to them."""
    status = file.stat()
    key = f"{file.resolve()} {status.st_size} {status.st_mtime_ns}"
    if key in known:
        return known[key]
    with file.open("rb") as stream:
        found = file_digest(stream, "sha256").hexdigest()
    if status.st_size >= LARGE:
        known[key] = found
    return found
