"""Published recipes as settings that can be named; docs/recipes/ says where each of their values comes from."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

from .errors import LearnerError

_ISOCOMPUTE: dict[str, Any] = {
    "objective": {"algorithm": "grpo", "updates_per_batch": 1, "epochs": 1},
    "importance": {"level": "token", "cap": 2.0},
    "batch": {"filter_zero_variance": False},
    "optimizer": {"weight_decay": 0.01, "warmup_steps": 10, "decay": "constant"},
}
RECIPES: dict[str, dict[str, Any]] = {
    "isocompute-easy": {
        **_ISOCOMPUTE,
        "kl": {"coefficient": 0.001, "estimator": "k3", "place": "loss", "mask_zero_variance": False},
        "entropy": {"coefficient": 0.001, "mask_zero_variance": False},
    },
    "isocompute-hard": {**_ISOCOMPUTE, "kl": {"coefficient": 0.0}, "entropy": {"coefficient": 0.0}},
    "scalerl": {
        "objective": {"algorithm": "cispo", "updates_per_batch": 1, "epochs": 1},
        "kl": {"coefficient": 0.0},
        "entropy": {"coefficient": 0.0},
        "importance": {"level": "token", "cap": 5.0},
        "batch": {"filter_zero_variance": True, "drop_above": 0.9},
        "optimizer": {"epsilon": 1e-15, "weight_decay": 0.01, "warmup_steps": 100, "decay": "constant"},
        "compute": {"float32_head": True},
        "pipeline": {"lag": 8},
    },
}
"""Settings by the name of their recipe, in the groups of ``LearnerConfig``. They hold neither the learning rate, which
belongs to a model and a batch size, nor the temperature, which is the sampler's."""


def with_recipe(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Put a recipe's values under the settings that name it.

    ``{"recipe": "isocompute-easy", "kl": {"coefficient": 0.01}}`` is the recipe with another weight of the KL: a
    setting that is given wins over the recipe's, within a group as well, and whatever neither gives is
    ``LearnerConfig``'s own. The argument and ``RECIPES`` are left as they are.
    """
    given = {name: value for name, value in settings.items() if name != "recipe"}
    if "recipe" not in settings:
        return deepcopy(given)
    name = settings["recipe"]
    if not isinstance(name, str) or name not in RECIPES:
        raise LearnerError(f"recipe is {name!r}; it must be one of {', '.join(RECIPES)}")
    return _merged(RECIPES[name], given)


def _merged(base: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Both, where ``above`` wins; mappings in both are merged in turn."""
    merged = deepcopy(dict(base))
    for name, value in above.items():
        both = isinstance(value, Mapping) and isinstance(merged.get(name), Mapping)
        merged[name] = _merged(merged[name], value) if both else deepcopy(value)
    return merged
