"""The id of a run: a hash of everything its rows depend on, the same on every machine and after every kill."""

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
"""Size (bytes) up to which a model file is hashed whole; of larger files evenly spaced blocks are hashed."""
BLOCK, BLOCKS = 2**16, 1024
"""Bytes of a block, and number of blocks of a larger file."""
ARITHMETIC = ("profile", "dtype", "device")
"""Engine settings that change which model answers; the others change only the speed."""
LIMITS = ("seconds", "wall_factor", "memory_bytes", "partial")
"""Scoring settings that change rewards."""
LIBRARIES = {"math": "math-verify", "reasoning_gym": "reasoning-gym"}
"""Libraries whose version decides what some rules accept."""
PROBLEM_COLUMNS = ("problem_id", "prompt", "answer", "verifier", "metadata")


def described(settings: RunSettings, problems: pl.DataFrame, *, phase: str, prompts: str) -> dict[str, Any]:
    """Return everything a run's rows depend on, as plain values, and nothing that changes only the speed.

    The problems are those of the whole table; ``--shard`` and ``--limit`` select from it. So all shards are one run,
    and a run with a higher limit continues one with a lower. ``prompts`` is the hash of the rendered prompts
    (``PromptMaker.digest``), which depend on library versions and on the tokenizer's chat template.
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
        # Versions of the rules' libraries, and a hash of the code of each user function.
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
    """Hash a description from ``described`` into a run id: 16 hexadecimal digits."""
    text = json.dumps(description, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def content_of(model: str) -> str:
    """Return a hash of a model's files, or its commit on the hub; either may change under the same name.

    Without the hub, it is the commit in the local cache, or nothing if there is none.
    """
    if Path(model).is_dir():
        return _hash_of(Path(model))
    cached: object = None
    # The library is not installed, or the hub cannot have this name. If there is no connection, model or access, the
    # engine reports that itself if it is needed at all.
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
