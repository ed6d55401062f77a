"""A figure at the paper's scale: presets with a problem set for each arm, for ``plan`` and for a cluster."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from isocompute.rollout.contract.files import write_text

from ...settings import Preset, find
from ...settings import load as load_preset
from .figure import COMMON, Difference, Figure, merged

NESTED = {"easy-large": "easy"}
"""Sets of the tiny models that are others of the paper's, with more problems."""
VALIDATION = 300
"""Validation problems of a set that the paper's preset does not have."""


def slug(text: str) -> str:
    """A name of settings, from an arm's."""
    plain = "".join(c if c.isascii() and c.isalnum() else "-" for c in text.lower())
    return "-".join(part for part in plain.split("-") if part) or "all"


def settings(figure: Figure) -> dict[str, dict[str, Any]]:
    """The presets as they are written, by name: of each sampling one, and of each mixture of problem sets one.

    Arms with a base model of their own are those of the others here: another base model is another preset.
    """
    raw = find(preset="paper")[-1]
    found: dict[tuple[str, str], dict[str, Any]] = {}
    names: list[str] = []
    for name in figure.sets:
        for arm, own in figure.arms.items():
            how = COMMON.every.under(figure.every).under(own)
            if how.base:
                continue
            sampling = merged(raw["sampling"], in_tokens(how.sampling))
            key = slug(arm) if len(how.train or ()) > 1 else "", repr(sampling)
            if key not in found:
                names.append(f"{figure.name}-paper-{slug(arm)}" if found else f"{figure.name}-paper")
                problems = [pooled(figure, arm, how)] if key[0] else raw["problems"]
                empty = {"sweep": {}, "prescribe": {}, "difficulty": {**raw["difficulty"], "sets": {}}}
                found[key] = {**raw, "problems": problems, "sampling": sampling, **empty}
            sweeps = sweeps_of(figure, how, raw["sweep"][name], f"{name}-{slug(arm)}")
            found[key]["sweep"] |= sweeps
            found[key]["difficulty"]["sets"] |= dict.fromkeys(sweeps, interval(how, raw["difficulty"]["sets"], name))
    for preset in found.values():
        if any("recipe" in own["learner"] for own in preset["sweep"].values()):
            # The recipe's head is in float32: the engine's must be, too, and so that of all arms.
            preset["resources"] = merged(preset["resources"], {"engine": {"float32_head": True}})
            for each in preset["sweep"].values():
                each["learner"] = merged(each["learner"], {"compute": {"float32_head": True}})
    return dict(zip(names, found.values(), strict=True))


def in_tokens(sampling: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of the sampler with lengths at the paper's scale; a phrase that is inserted is the sampler's own."""
    found: dict[str, Any] = {}
    for name, value in sampling.items():
        if isinstance(value, Mapping):
            found[name] = {key: each for key, each in in_tokens(value).items() if key != "phrase"}
        else:
            found[name] = round(value * COMMON.paper["tokens"]) if isinstance(value, int) else value
    return found


def sweeps_of(figure: Figure, how: Difference, raw: Mapping[str, Any], name: str) -> dict[str, dict[str, Any]]:
    """The sweeps of an arm: one, or where its n and B_p are no grid one for each pair."""
    pairs = how.grid()
    every = {(n, size) for n, _ in pairs for _, size in pairs}
    if every == set(pairs):
        return {name: sweep(figure, how, raw, pairs)}
    return {f"{name}-n{n}-bp{size}": sweep(figure, how, raw, [(n, size)]) for n, size in pairs}


def sweep(figure: Figure, how: Difference, raw: Mapping[str, Any], pairs: list[tuple[int, int]]) -> dict[str, Any]:
    """A sweep of an arm: its n, B_p and C times those of common.yaml, and its own settings of the learner."""
    scale, learner = COMMON.paper, merged(raw["learner"], how.learner)
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


def interval(how: Difference, raw: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The pass rates and the size of the set of an arm; of a mixture all of its file."""
    if not how.train:
        return dict(raw[name])
    count = int(sum(how.train.values()) * COMMON.paper["problems"])
    if len(how.train) > 1:
        return {"lowest": 0.0, "highest": 1.0, "train": count, "validation": VALIDATION}
    return {**rates_of(next(iter(how.train)), raw, name), "train": count}


def rates_of(trained: str, raw: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The pass rates of a set, as the paper's preset has them or as common.yaml does."""
    if own := raw.get(NESTED.get(trained, trained)):
        return dict(own)
    made = COMMON.sets[trained].split
    return {"lowest": made.lowest, "highest": made.highest, "validation": VALIDATION} if made else dict(raw[name])


def pooled(figure: Figure, arm: str, how: Difference) -> dict[str, Any]:
    """The file that the problems of a mixture are joined in."""
    count = int(sum((how.train or {}).values()) * COMMON.paper["problems"])
    path = f"{figure.name}-{slug(arm)}.parquet"
    return {"kind": "file", "path": path, "verifier": "math", "train": count, "validation": VALIDATION}


def write(figure: Figure, folder: Path = Path()) -> tuple[Path, list[Preset]]:
    """Write the presets of a figure, and read them as every command will."""
    path, written = folder / f"{figure.name}-paper.yaml", settings(figure)
    # What presets share is written out in each.
    write_text(path, yaml.safe_dump(json.loads(json.dumps(written)), sort_keys=False, allow_unicode=True))
    return path, [load_preset(path, preset=name) for name in written]


def advice(figure: Figure, path: Path, presets: Sequence[Preset]) -> Iterator[str]:
    """Say how they are run on a cluster, and what is to be made before."""
    for arm, own in figure.arms.items():
        how = COMMON.every.under(figure.every).under(own)
        if how.base:
            yield f"{arm!r} is not in it: another base model is another preset, with its own `base`"
        elif len(how.train or ()) > 1:
            yield from joining(figure, arm, how)
    if figure.evaluate:
        yield f"policies that are kept are to be evaluated on {', '.join(figure.evaluate)}: isocompute-rollout evaluate"
    yield f"{path} has these cells. To run them on a cluster, set RAY_ADDRESS, write in params.yaml:"
    for preset in presets:
        sets = ", ".join(preset.sweep)
        yield f"  preset: {preset.name}\n  settings_file: {path.name}\n  problem_sets: [{sets}]\n  tested_sets: []"
    yield "and start, for each preset: python -m experiments repro"


def joining(figure: Figure, arm: str, how: Difference) -> Iterator[str]:
    """How the file of a mixture is made."""
    own, total, raw = pooled(figure, arm, how), sum((how.train or {}).values()), find(preset="paper")[-1]
    size = own["train"] + VALIDATION
    yield f"{own['path']} is to hold the mixture, {size:,} problems, joined from these of measured ones:"
    for name, count in (how.train or {}).items():
        rates = rates_of(name, raw["difficulty"]["sets"], figure.sets[0])
        chosen = f"--interval {rates['lowest']} {rates['highest']} --train {round(size * count / total)} --validation 0"
        yield f"  isocompute-rollout split measured.parquet {chosen} --out {slug(name)}.parquet"
