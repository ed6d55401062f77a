"""The memory that a preset needs: a traced update of its base model, the engine, and the layout that fits a GPU."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from isocompute.budget.planning.compute import Device
from isocompute.learner import LearnerConfig
from isocompute.learner.memory.update import GIB, Load, UpdateMemory, update_memory
from isocompute.rollout import RolloutError
from isocompute.rollout.contract.errors import FileError
from isocompute.rollout.contract.files import write_text
from isocompute.rollout.samplers.sampling import Engine
from isocompute.rollout.samplers.vllm.memory import MemoryPlan, ModelSize, estimate, size_of
from isocompute.rollout.scoring.code import digest
from pydantic import TypeAdapter, ValidationError

from ..running.cells import Cell
from ..running.identity import code_of, versions
from ..settings import Preset

PUBLISHED: dict[str, dict[str, Any]] = {
    "Qwen/Qwen2.5-7B-Instruct": {
        "model_type": "qwen2",
        "hidden_size": 3584,
        "intermediate_size": 18944,
        "num_hidden_layers": 28,
        "num_attention_heads": 28,
        "num_key_value_heads": 4,
        "vocab_size": 152064,
        "tie_word_embeddings": False,
        "max_position_embeddings": 32768,
        "dtype": "bfloat16",
    }
}
"""Excerpts from ``config.json`` of models on the hub, so that a plan needs no network."""
RANKS = (1, 2, 4, 8)
"""Numbers of learner ranks to try."""
KEPT_FREE = 0.1
"""Share of a GPU reserved for what is not traced: the allocator's gaps, libraries, the process."""


def base_config(preset: Preset) -> dict[str, Any] | None:
    """Return the base model's ``config.json``; None if it is not on this machine."""
    file = Path(preset.base_place) / "config.json"
    return json.loads(file.read_text()) if file.is_file() else PUBLISHED.get(preset.base_place)


KEPT = TypeAdapter(UpdateMemory)


def traced(model: dict[str, Any], config: LearnerConfig, load: Load, *, ranks: int) -> UpdateMemory:
    """Trace an update, or read an earlier trace of the same update with the same code and libraries.

    Traces are stored in the user's cache, ``$XDG_CACHE_HOME/isocompute/traces``, if it is writable.
    """
    of: dict[str, Any] = {"model": model, "config": asdict(config), "load": asdict(load), "ranks": ranks}
    code = code_of(f"{update_memory.__module__}:{update_memory.__name__}")
    key = digest({**of, "code": code, "versions": versions()})
    file = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "isocompute" / "traces" / f"{key}.json"
    with suppress(OSError, ValidationError):
        return KEPT.validate_json(file.read_bytes(), strict=True)
    found = update_memory(model, config, load, ranks=ranks)
    with suppress(FileError):
        write_text(file, json.dumps(asdict(found)))
    return found


@dataclass(frozen=True, kw_only=True)
class Footprint:
    """The memory of a cell.

    Attributes:
        preset: All its responses are assumed to have the maximum length.
        cell: The one with the largest batch, whose micro-batches are full.
    """

    preset: Preset
    cell: Cell
    model: dict[str, Any]
    device: Device

    def update(self, config: LearnerConfig, ranks: int) -> UpdateMemory:
        """Trace an update on each of this many ranks."""
        load = Load(
            prompt_tokens=self.preset.sampling.max_prompt_tokens,
            response_tokens=self.preset.sampling.max_new_tokens,
            rollouts_per_problem=self.cell.run.rollouts_per_problem,
            problems=max(1, self.cell.run.problems_per_batch // ranks),
        )
        return traced(self.model, config, load, ranks=ranks)

    @cached_property
    def own(self) -> UpdateMemory:
        """The cell's update on each of its ranks."""
        return self.update(self.cell.learner, self.preset.resources.learner_ranks)

    @cached_property
    def size(self) -> ModelSize:
        """The numbers of the model that determine its memory and its arithmetic."""
        return size_of(self.model, parameters=self.own.parameters)

    @property
    def engine_beside(self) -> float:
        """Share of a rank's GPU that an engine takes while the rank learns."""
        engine = self.preset.resources.resolved_engine()
        stays = self.preset.resources.placement == "colocated" and not engine.sleep
        return (engine.memory_share or 0.0) if stays else 0.0

    def engine(self, memory_share: float | None = None) -> tuple[Engine, MemoryPlan]:
        """The preset's engine, and its share of a GPU.

        Args:
            memory_share: Share for an engine with a GPU to itself, instead of the preset's value.

        Raises:
            RolloutError: It does not fit.
        """
        sampling = self.preset.sampling
        engine = self.preset.resources.resolved_engine().resolved(
            longest=sampling.max_prompt_tokens + sampling.max_new_tokens, cuda=True, responses=self.preset.responses()
        )
        if memory_share is not None:
            engine = replace(engine, memory_share=memory_share, tensor_parallel=1)
        available, name = engine.memory_share * self.device.memory, self.preset.base_models[0]
        return engine, estimate(self.size, engine, sampling, model=name, available=available)

    def lines(self) -> Iterator[str]:
        """The memory of an update, of the engine on a GPU, and the smallest layout that fits."""
        config, ranks, traced = self.cell.learner, self.preset.resources.learner_ranks, self.own
        place = "the learner" if ranks == 1 else f"each of {ranks} ranks"
        name, many = ("billion", 1e9) if traced.parameters >= 1e9 else ("million", 1e6)
        sampling = self.preset.sampling
        yield (
            f"    memory of an update on {place}, traced: {traced.parameters / many:.3g} {name} parameters in "
            f"{config.compute.precision}, responses of {sampling.max_new_tokens:,} tokens to prompts of "
            f"{sampling.max_prompt_tokens:,}"
        )
        yield from (f"      {row}" for row in str(traced).splitlines())
        if config.adapter is not None:
            whole = self.update(replace(config, adapter=None), ranks).peak
            yield (
                f"    an adapter of rank {config.adapter.rank} is learnt; an update of all weights would take "
                f"{whole / GIB:.3g} GiB, {whole / traced.peak:.1f} times as much"
            )
        if self.preset.resources.device == "cuda":
            yield from self._on_gpus(traced)

    def _on_gpus(self, traced: UpdateMemory) -> Iterator[str]:
        config, ranks, beside = self.cell.learner, self.preset.resources.learner_ranks, self.engine_beside
        room = (1 - KEPT_FREE - beside) * self.device.memory
        card = f"{self.device.memory / 1e9:.0f} GB of {self.device.name}"
        why = f"{room / GIB:.1f} GiB for a learner, since {KEPT_FREE:.0%} is left to what is not traced"
        why += f" and {beside:.0%} to the engine beside it" if beside else ""
        if traced.peak <= room:
            yield f"    fits the {card} ({why})"
        else:
            yield f"    does not fit the {card} ({why})"
            yield from self._smallest(config, ranks, beside)
        try:
            engine, taken = self.engine()
        except RolloutError as error:
            yield f"    {error}"
            return
        yield f"    memory of an engine, estimated: {engine.memory_share:.0%} of each GPU is its share"
        yield from (f"      {row}" for row in str(taken).splitlines())

    def _smallest(self, config: LearnerConfig, ranks: int, beside: float) -> Iterator[str]:
        """The fewest ranks, with their own GPUs, that hold an update in bfloat16 with gradient checkpointing."""
        lower = replace(config, compute=replace(config.compute, precision="bfloat16", gradient_checkpointing=True))
        room = (1 - KEPT_FREE) * self.device.memory
        for fewer in RANKS:
            if (lower, fewer, beside) == (config, ranks, 0.0):
                continue
            peak = self.update(lower, fewer).peak
            verdict = "fits" if peak <= room else "does not fit"
            yield (
                f"    with compute: {{precision: bfloat16, gradient_checkpointing: true}}, placement: separate and "
                f"learner_ranks: {fewer}: {peak / GIB:.1f} GiB per rank, {verdict}"
            )
            if peak <= room:
                return
        yield f"    no number of ranks up to {RANKS[-1]} holds it"
