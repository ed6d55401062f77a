"""Base models: their location, metadata and content hash."""

from __future__ import annotations

import json
from hashlib import file_digest, sha256
from pathlib import Path
from typing import Any

from ..errors import ExperimentError
from .work import WORK, write_json


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
    known = HashCache(WORK / "hashes.json")
    digest = sha256()
    files = sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]
    for file in files:
        name = str(file.relative_to(path)) if path.is_dir() else file.name
        digest.update(name.encode() + b"\0" + bytes.fromhex(known.of(file)))
    known.save()
    return digest.hexdigest()[:16]


class HashCache:
    """Hashes of files of some size, kept until the file changes."""

    LARGE = 2**24

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._document: dict[str, str] = json.loads(path.read_text())
        except (OSError, ValueError):
            self._document = {}
        self._changed = False

    def of(self, file: Path) -> str:
        """Hash of a file's content."""
        status = file.stat()
        key = f"{file.resolve()} {status.st_size} {status.st_mtime_ns}"
        if status.st_size >= self.LARGE and key in self._document:
            return self._document[key]
        with file.open("rb") as stream:
            found = file_digest(stream, "sha256").hexdigest()
        if status.st_size >= self.LARGE:
            self._document[key], self._changed = found, True
        return found

    def save(self) -> None:
        """Write down what was hashed anew."""
        if self._changed:
            write_json(self._path, self._document)
