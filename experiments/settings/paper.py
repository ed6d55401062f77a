"""Where each value of the preset ``paper`` comes from in *IsoCompute Playbook* (arXiv 2603.12151): paper.yaml."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

SECTIONS: Mapping[str, str] = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text("utf-8"))


def leaves(values: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """Every value of a preset or a cell by its dotted name; the sources of problems share one name.

    Args:
        before: Dotted path of these settings with its last dot; empty for a whole preset.
    """
    for key, value in values.items():
        name = f"{before}{key}"
        if isinstance(value, Mapping):
            yield from leaves(value, f"{name}.")
        elif isinstance(value, list) and value and isinstance(value[0], Mapping):
            for each in value:
                yield from leaves(each, f"{name}.")
        else:
            yield name, value


def section_of(name: str) -> str | None:
    """Where the paper says what a setting is, or None for a setting that is not listed."""
    parts = name.split(".")
    generic = ".".join([parts[0], "*", *parts[2:]]) if len(parts) > 2 else name
    return SECTIONS.get(name) or SECTIONS.get(generic) or SECTIONS.get(parts[0])
