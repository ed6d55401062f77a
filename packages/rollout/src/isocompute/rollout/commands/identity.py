"""The id of a run: a hash of all that its rows depend on, the same on every machine and after every kill."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import polars as pl

from ..scoring.code import code_of_rules
from ..scoring.rules import rule
from .settings import RunSettings

WHOLE = 256 * 2**20
"""Bytes up to which a model's file is hashed whole; of a larger one blocks are, evenly spaced."""
BLOCK, BLOCKS = 2**16, 1024
"""Bytes of a block, and blocks of a larger file."""
ARITHMETIC = ("profile", "dtype", "device")
"""Settings of an engine that change which model answers; others change how fast."""
LIMITS = ("seconds", "wall_factor", "memory_bytes", "partial")
"""Settings of scoring that change which rewards come out."""
LIBRARIES = {"math": "math-verify", "reasoning_gym": "reasoning-gym"}
"""Libraries whose version decides what some rules find right."""
PROBLEM_COLUMNS = ("problem_id", "prompt", "answer", "verifier", "metadata")


def described(settings: RunSettings, problems: pl.DataFrame, *, phase: str, prompts: str) -> dict[str, Any]:
    """Return all that a run's rows depend on, as plain values, and nothing that changes the speed only.

    The problems are those of the whole table: ``--shard`` and ``--limit`` choose from it, so that shards are one run
    and a run with a higher limit continues one with a lower. ``prompts`` is the hash of their prompts as they are
    rendered (``PromptMaker.digest``), on which versions of libraries and a tokenizer's chat template have a say.
    """
    scoring = settings.scorer.config
    verifiers = problems["verifier"].unique().to_list()
    kinds = {rule(name).base.partition(":")[0] for name in verifiers}
    libraries = {LIBRARIES[kind]: _version(LIBRARIES[kind]) for kind in kinds & {*LIBRARIES}}
    columns = [name for name in PROBLEM_COLUMNS if name in problems.columns]
    content = problems.sort("problem_id").select(columns).write_json()
    return {
        "model": settings.model,
        "content": content_of(settings.model),
        "sampler": settings.kind,
        "served_model": settings.server.get("served_model"),
        "protocol": settings.server.get("protocol"),
        "engine": {name: settings.engine[name] for name in ARITHMETIC if name in settings.engine},
        "scoring": {name: getattr(scoring, name) for name in LIMITS}
        | ({"readable": scoring.readable} if scoring.readable else {}),
        # Versions of libraries that rules use, and a hash of the code of each function of the user's own.
        "verifiers": libraries | code_of_rules(verifiers),
        "version": _version("isocompute-rollout"),
        "sampling": asdict(settings.sampling),
        "prompting": asdict(settings.prompting),
        "prompts": prompts,
        "samples": settings.samples,
        "seed": settings.seed,
        "phase": phase,
        "problems": hashlib.sha256(content.encode()).hexdigest(),
    }


def run_id(description: Mapping[str, Any]) -> str:
    """Return the id of a run that is ``described`` so: 16 hexadecimal digits."""
    text = json.dumps(description, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def content_of(model: str) -> str:
    """Return a hash of a model's files, or its commit on the hub: either may change under the same name.

    Without the hub it is the commit in the local cache, and nothing where there is none.
    """
    if Path(model).is_dir():
        return _hash_of(Path(model))
    cached: object = None
    # The library is not installed, or this is no name that the hub could know; where there is no connection, no such
    # model or no access, the engine says so itself, if it is needed at all.
    with suppress(Exception):
        from huggingface_hub import HfApi, try_to_load_from_cache

        cached = try_to_load_from_cache(model, "config.json")
        if not os.environ.get("HF_HUB_OFFLINE"):
            return str(HfApi().model_info(model, timeout=5).sha)
    return Path(cached).parent.name if isinstance(cached, str) else ""


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def _hash_of(folder: Path) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for path in sorted(path for path in folder.iterdir() if path.is_file()):
        size = path.stat().st_size
        digest.update(f"{path.name}\n{size}\n".encode())
        with path.open("rb") as stream:
            if size <= WHOLE:
                while piece := stream.read(2**20):
                    digest.update(piece)
                continue
            for number in range(BLOCKS):
                stream.seek(number * (size - BLOCK) // (BLOCKS - 1))
                digest.update(stream.read(BLOCK))
    return digest.hexdigest()
