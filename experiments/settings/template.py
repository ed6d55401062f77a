"""A preset of one's own as a file: every setting with its value, under a comment that says what it means."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from textwrap import wrap
from typing import Any

import yaml

from .learner import LearnerSettings, learner_config
from .model import Preset
from .schema import choices, preset_schema, resolved
from .strict import checked_name
from .sweep import kind_of
from .trainer import CommandTrainer

WIDTH = 118


def text(name: str, like: Preset, raw: Mapping[str, Any]) -> str:
    """A file with one preset.

    Args:
        raw: That preset as it is written, which names the kinds of its parts.
    """
    checked_name(name)
    head = [
        f"# Every setting of the preset {name}, with the values of {like.name} to begin with. In params.yaml:",
        f"#   settings_file: {name}.yaml",
        f"#   preset: {name}",
        f"#   problem_sets: [{', '.join(like.sweep)}]",
        f"#   tested_sets: [{', '.join(like.prescribe)}]",
    ]
    lines = _lines(_plain(like, raw), preset_schema(), indent=2)
    return "\n".join([*head, "", f"{name}:", *lines]) + "\n"


def _plain(preset: Preset, raw: Mapping[str, Any]) -> dict[str, Any]:
    """All values of a preset as params.yaml would have them."""
    without_learner = {"sweep": {name: {"learner"} for name in preset.sweep}}
    plain: dict[str, Any] = preset.model_dump(mode="json", exclude={"name": True, **without_learner})
    plain["problems"] = [{"kind": r["kind"], **p} for r, p in zip(raw["problems"], plain["problems"], strict=True)]
    plain["base"] = {"kind": raw["base"]["kind"], **plain["base"]}
    plain["trainer"] = {"kind": raw.get("trainer", {}).get("kind", "learner"), **plain["trainer"]}
    for entry in (plain["difficulty"] or {"sets": {}})["sets"].values():
        del entry["name"]
    for name, sweep in preset.sweep.items():
        plain["sweep"][name]["learner"] = {}
        if isinstance(preset.trainer, CommandTrainer):
            continue
        every = asdict(learner_config(sweep.learner, preset.sampling, learning_rate=1.0))
        learner = {key: value for key, value in every.items() if key not in LearnerSettings.ELSEWHERE}
        if sweep.warmup_rollouts is not None:
            # It stands in place of a number of steps.
            learner["optimizer"] = {k: v for k, v in learner["optimizer"].items() if k != "warmup_steps"}
        plain["sweep"][name]["learner"] = learner
    return plain


def _lines(values: Mapping[str, Any], schema: Mapping[str, Any], *, indent: int) -> Iterator[str]:
    space, root = " " * indent, preset_schema()
    for key, value in values.items():
        own = schema.get("properties", {}).get(key) or schema["additionalProperties"]
        part = _part(own, value, root)
        described = own.get("description") or part.get("description", "")
        yield from (f"{space}# {line}" for line in wrap(described, WIDTH - indent))
        if isinstance(value, Mapping) and value and _has_parts(part):
            yield f"{space}{key}:"
            yield from _lines(value, part, indent=indent + 2)
        elif isinstance(value, list) and value and isinstance(value[0], Mapping):
            yield f"{space}{key}:"
            for item in value:
                yield f"{space}  -"
                yield from _lines(item, _part(part["items"], item, root), indent=indent + 4)
        else:
            written = yaml.safe_dump(value, default_flow_style=True, width=10**6).removesuffix("...\n").strip()
            yield f"{space}{key}: {written}"


def _has_parts(schema: Mapping[str, Any]) -> bool:
    """Whether the settings of a mapping are described one by one."""
    return "properties" in schema or isinstance(schema.get("additionalProperties"), dict)


def _part(schema: Mapping[str, Any], value: Any, root: Mapping[str, Any]) -> dict[str, Any]:
    """The schema that a value is of, where there are several."""
    found = resolved(dict(schema), root)
    if "oneOf" in found and isinstance(value, Mapping):
        tag = value["kind"] if "kind" in value else kind_of(value)
        return resolved(choices(found)[str(tag)], root)
    if "anyOf" in found and isinstance(value, Mapping):
        return next(each for each in (resolved(s, root) for s in found["anyOf"]) if each.get("type") == "object")
    return found
