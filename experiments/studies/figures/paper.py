"""A figure at the paper's scale: a preset with a problem set for each arm, for ``plan`` and for a cluster."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from isocompute.rollout.contract.files import write_text

from ...errors import ExperimentError
from ...settings import Preset, find
from ...settings import load as load_preset
from .figure import COMMON, Difference, Figure, merged

NESTED = {"easy-large": "easy"}
"""Sets of the tiny models that are others of the paper's, with more problems."""


def slug(text: str) -> str:
    """A name of settings, from an arm's."""
    plain = "".join(c if c.isascii() and c.isalnum() else "-" for c in text.lower())
    return "-".join(part for part in plain.split("-") if part) or "all"


def settings(figure: Figure) -> dict[str, Any]:
    """The preset as it is written.

    Arms that differ in their sampling are left out, since a preset has one.

    Raises:
        ExperimentError: An arm is trained on a set that no interval of pass rates gives.
    """
    if not figure.arms:
        raise ExperimentError(f"{figure.name} has no cells of its own; give one of {', '.join(figure.page_of)}")
    raw = find(preset="paper")[-1]
    sweeps, sets = {}, {}
    for name in figure.sets:
        for arm, own in figure.arms.items():
            if own.sampling:
                continue
            how = COMMON.every.under(figure.every).under(own)
            key = f"{name}-{slug(arm)}"
            sweeps[key] = sweep(figure, how, raw["sweep"][name])
            sets[key] = interval(figure, how, raw["difficulty"]["sets"], name)
    resources = raw["resources"]
    if any("recipe" in own["learner"] for own in sweeps.values()):
        # The recipe's head is in float32: the engine's must be, too, and so that of all arms.
        resources = merged(resources, {"engine": {"float32_head": True}})
        for each in sweeps.values():
            each["learner"] = merged(each["learner"], {"compute": {"float32_head": True}})
    difficulty = {**raw["difficulty"], "sets": sets}
    return {**raw, "sweep": sweeps, "difficulty": difficulty, "prescribe": {}, "resources": resources}


def sweep(figure: Figure, how: Difference, raw: Mapping[str, Any]) -> dict[str, Any]:
    """The sweep of an arm: its n, B_p and C times those of common.yaml, and its own settings of the learner."""
    scale, pairs = COMMON.paper, how.grid()
    learner = merged(raw["learner"], how.learner)
    if learner.get("pipeline", {}).get("mode") == "virtual":
        learner["pipeline"] = {**learner["pipeline"], "mode": "in_flight"}
    if trained := learner.get("batch", {}).get("trained_rollouts"):
        learner["batch"] = {**learner["batch"], "trained_rollouts": int(trained * scale["rollouts_per_problem"])}
    if "recipe" in learner:
        learner["optimizer"] = {k: v for k, v in learner.get("optimizer", {}).items() if k != "warmup_steps"}
    factors = {"rate_factors": list(how.rate_factors)} if how.rate_factors else {}
    return {
        "rollouts_per_problem": sorted({int(n * scale["rollouts_per_problem"]) for n, _ in pairs}),
        "problems_per_batch": sorted({int(size * scale["problems_per_batch"]) for _, size in pairs}),
        "seeds": list(figure.seeds),
        "rollouts": int((how.rollouts or 0) * scale["rollouts"]),
        "evaluate_every": int((how.evaluate_every or 0) * scale["rollouts"]),
        "learner": learner,
        "learning_rate": {
            "rule": how.rule,
            "learning_rate": scale["learning_rate"],
            "batch_rollouts": int(scale["anchor"]),
        },
        **factors,
    }


def interval(figure: Figure, how: Difference, raw: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The pass rates and the size of the set of an arm."""
    if not how.train:
        return dict(raw[name])
    if len(how.train) > 1:
        names = ", ".join(how.train)
        raise ExperimentError(
            f"{figure.name} trains on {names} together, which is no interval of pass rates: measure and cut each with "
            "`isocompute-rollout split`, join their files, and give these as `problems` of a preset"
        )
    ((trained, count),) = how.train.items()
    own = raw.get(NESTED.get(trained, trained))
    if own is None:
        made = COMMON.sets[trained].split
        own = {"lowest": made.lowest, "highest": made.highest, "validation": 300} if made else raw[name]
    return {**own, "train": int(count * COMMON.paper["problems"])}


def write(figure: Figure, folder: Path = Path()) -> tuple[Path, Preset]:
    """Write the preset of a figure, and read it as every command will."""
    name = f"{figure.name}-paper"
    path = folder / f"{name}.yaml"
    write_text(path, yaml.safe_dump({name: settings(figure)}, sort_keys=False, allow_unicode=True))
    return path, load_preset(path, preset=name)


def advice(path: Path, preset: Preset) -> Iterator[str]:
    """Say how it is run on a cluster."""
    names = ", ".join(preset.sweep)
    yield f"{path} has these cells, but for arms that differ in their sampling. To run them on a cluster, set"
    yield "RAY_ADDRESS, write in params.yaml:"
    yield f"  preset: {preset.name}\n  settings_file: {path.name}\n  problem_sets: [{names}]\n  tested_sets: []"
    yield "and start: python -m experiments repro"
