"""What an update of a preset needs of memory, predicted from the shape of its base model."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from isocompute.learner import LearnerError
from isocompute.learner.cost.memory import Load, predict
from isocompute.learner.cost.shape import ModelShape, shape_of

from ..running.cells import Cell
from ..settings import ModelConfig, PreparedConfig, Preset
from ..tiny.lessons import vocabulary

PUBLISHED: dict[str, dict[str, Any]] = {
    "Qwen/Qwen2.5-7B-Instruct": {
        "hidden_size": 3584, "intermediate_size": 18944, "num_hidden_layers": 28, "num_attention_heads": 28,
        "num_key_value_heads": 4, "vocab_size": 152064, "tie_word_embeddings": False,
    },
}  # fmt: skip
"""From ``config.json`` of models on the hub, so that a prediction needs no network."""


def shape(preset: Preset) -> ModelShape | None:
    """Return the base model's shape; None where it is known nowhere on this machine, or of another kind."""
    base = preset.base
    if not isinstance(base, ModelConfig | PreparedConfig):
        wide = {"hidden_size": base.hidden, "intermediate_size": 3 * base.hidden, "num_hidden_layers": base.layers}
        tokens = len(vocabulary(base.characters))
        return shape_of({**wide, "num_attention_heads": base.hidden // 32, "vocab_size": tokens})
    place = base.model if isinstance(base, ModelConfig) else f"{base.models[0].folder}/base"
    file = Path(place) / "config.json"
    config = json.loads(file.read_text()) if file.is_file() else PUBLISHED.get(place)
    try:
        return None if config is None else shape_of(config)
    except LearnerError:
        return None


def lines(preset: Preset, cell: Cell) -> list[str]:
    """Return the prediction for a cell whose responses are all as long as they may be, and for lower settings."""
    found = shape(preset)
    if found is None:
        return ["    memory of an update: not predicted, since the shape of the base model is not known here"]
    prompt, response = preset.sampling.max_prompt_tokens, preset.sampling.max_new_tokens
    compute, ranks = cell.learner.compute, preset.resources.learner_ranks
    load = Load.of(
        prompt_tokens=prompt, response_tokens=response, rollouts_per_problem=cell.rollouts_per_problem,
        problems=max(1, cell.problems_per_batch // ranks), micro_batch_tokens=compute.micro_batch_tokens,
        packed=compute.layout != "padded",
    )  # fmt: skip
    plan = predict(found, cell.learner, load)
    place = "the learner" if ranks == 1 else f"each of {ranks} ranks"
    name, many = ("billion", 1e9) if plan.parameters >= 1e9 else ("million", 1e6)
    header = f"    memory of an update on {place}, predicted: {plan.parameters / many:.3g} {name} parameters in "
    header += f"{compute.precision}, responses of {response:,} tokens to prompts of {prompt:,}"
    given = [header, *(f"      {row}" for row in str(plan).splitlines())]
    lower = replace(compute, precision="bfloat16", gradient_checkpointing=True)
    least = predict(found, replace(cell.learner, compute=lower), load)
    note, (name, unit) = "with precision bfloat16 and gradient_checkpointing", plan.unit
    return [*given, f"      {note:<60}{least.peak / unit:>9.2f} {name}"] if lower != compute else given
