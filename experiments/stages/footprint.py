"""The memory that a preset needs: a traced update of its base model, the engine, and the layout that fits a GPU."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from isocompute.budget.planning.compute import Device
from isocompute.learner import LearnerConfig, LearnerError
from isocompute.learner.memory.update import GIB, Load, UpdateMemory, update_memory
from isocompute.rollout import RolloutError, sampling_from
from isocompute.rollout.samplers.vllm.memory import estimate, size_of

from ..running.cells import Cell
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
"""From ``config.json`` of models on the hub, so that a plan needs no network."""
RANKS = (1, 2, 4, 8)
"""Numbers of learner ranks that are tried."""
KEPT_FREE = 0.1
"""Share of a GPU that is left to what is not traced: the allocator's gaps, libraries, the process."""


def base_config(preset: Preset) -> dict[str, Any] | None:
    """Return the ``config.json`` of the base model; None where it is not on this machine."""
    file = Path(preset.base_place) / "config.json"
    return json.loads(file.read_text()) if file.is_file() else PUBLISHED.get(preset.base_place)


@dataclass(frozen=True, kw_only=True)
class Footprint:
    """The memory of a cell.

    Attributes:
        preset: Whose responses are all as long as they may be.
        cell: That of the largest batch, whose micro-batches are full.
    """

    preset: Preset
    cell: Cell
    model: dict[str, Any]
    device: Device

    def update(self, config: LearnerConfig, ranks: int) -> UpdateMemory:
        """Trace an update on each of some ranks."""
        load = Load(
            prompt_tokens=self.preset.sampling.max_prompt_tokens,
            response_tokens=self.preset.sampling.max_new_tokens,
            rollouts_per_problem=self.cell.rollouts_per_problem,
            problems=max(1, self.cell.problems_per_batch // ranks),
        )
        return update_memory(self.model, config, load, ranks=ranks)

    def lines(self) -> Iterator[str]:
        """The memory of an update, of the engine on a GPU, and the smallest layout that fits."""
        config, ranks = self.cell.learner, self.preset.resources.learner_ranks
        traced = self.update(config, ranks)
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
        config, ranks = self.cell.learner, self.preset.resources.learner_ranks
        engine = self.preset.resources.resolved_engine()
        beside = (engine.memory_share or 0.0) if self.preset.resources.placement == "colocated" else 0.0
        room = (1 - KEPT_FREE - beside) * self.device.memory
        card = f"{self.device.memory / 1e9:.0f} GB of {self.device.name}"
        why = f"{room / GIB:.1f} GiB for a learner, since {KEPT_FREE:.0%} is left to what is not traced"
        why += f" and {beside:.0%} to the engine beside it" if beside else ""
        if traced.peak <= room:
            yield f"    fits the {card} ({why})"
        else:
            yield f"    does not fit the {card} ({why})"
            yield from self._smallest(config, ranks, beside)
        yield from self._engine(traced.parameters)

    def _smallest(self, config: LearnerConfig, ranks: int, beside: float) -> Iterator[str]:
        """The fewest ranks that hold an update in bfloat16 with gradient checkpointing, with GPUs of their own."""
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

    def _engine(self, parameters: int) -> Iterator[str]:
        sampling = sampling_from(self.preset.generation["sampling"])
        longest = sampling.max_prompt_tokens + sampling.max_new_tokens
        engine = self.preset.resources.resolved_engine().resolved(
            longest=longest, cuda=True, responses=self.preset.responses()
        )
        try:
            plan = estimate(
                size_of(self.model, parameters=parameters),
                engine,
                sampling,
                model=self.preset.base_models[0],
                available=engine.memory_share * self.device.memory,
            )
        except RolloutError as error:
            yield f"    {error}"
            return
        yield f"    memory of an engine, estimated: {engine.memory_share:.0%} of each GPU is its share"
        yield from (f"      {row}" for row in str(plan).splitlines())


def lines(preset: Preset, cell: Cell, device: Device) -> Iterator[str]:
    """The lines of ``plan`` about memory."""
    model = base_config(preset)
    if model is None:
        yield "    memory: not traced, since the configuration of the base model is not on this machine"
        return
    try:
        yield from Footprint(preset=preset, cell=cell, model=model, device=device).lines()
    except LearnerError as error:
        yield f"    memory: {error}"
