"""Record what each stage depends on but DVC does not see: code, libraries, device and data, on every repro."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from pathlib import Path
from typing import Any

from isocompute.rollout import HubSource, LocalSource
from isocompute.rollout.scoring.code import code_of_rules

from ..errors import ExperimentError, listed
from ..running import cell_folder
from ..running.cell_folder import OUT, write_json
from ..running.cells import computing, files_of, versions_of
from ..running.identity import code_by_module, reached, versions
from ..settings import ModelConfig, PreparedConfig, Preset

FOLDER = OUT / "inputs"
CONSTRAINTS = Path("constraints.txt")
TOOLS = "# Tools"
"""Heading of the test tools in the constraints file; no result depends on these."""


def run(preset: Preset) -> None:
    """Write each stage's document if it has changed, and print the differences."""
    pinned = pins(CONSTRAINTS)
    installed = versions(pinned)
    sources = [source for source in preset.problems if isinstance(source, HubSource | LocalSource)]
    computed: dict[str, Any] = {
        "computing": computing(preset.resolved_resources()),
        "verifiers": code_of_rules(source.verifier for source in sources),
    }
    trainer: dict[str, object] | None = None
    if preset.trainer is not None:
        trainer = preset.trainer.model_dump(mode="json")
        trainer |= {"files": files_of(preset.trainer, Path.cwd()), "libraries": versions_of(preset.trainer)}
    trained = {**computed, "trainer": trainer}
    data = {f"problems[{i}]": found for i, source in enumerate(preset.problems) if (found := _content(source))}
    read: dict[str, dict[str, Any]] = {
        "prepare": {**computed, "data": data, "model": _model(preset.base)},
        "sweep": trained,
        "frontier": {},
        "prescribe": trained,
    }
    for stage, own in read.items():
        entries = entries_of(stage)
        libraries = {name: installed[name] for name in libraries_of(*entries) if name in installed}
        _write(stage, {"code": code_by_module(*entries), "libraries": libraries, **own})
    others = [name for name, there in installed.items() if there.partition("+")[0] != pinned[name]]
    if others:
        said = listed([f"{name} {installed[name]} for {pinned[name]}" for name in others])
        print(f"inputs: libraries that are not those of {CONSTRAINTS}: {said}")


def entries_of(stage: str) -> tuple[str, str]:
    """The entry points of a stage."""
    return f"experiments.stages.{stage}:run", "experiments.settings:load"


def libraries_of(*entries: str) -> list[str]:
    """Names of the installed libraries that the entry points import, with all their requirements."""
    waiting = [name for top in reached(*entries).libraries for name in _distributions().get(top, ())]
    found: set[str] = set()
    while waiting:
        name = re.sub(r"[-_.]+", "-", waiting.pop()).lower()
        if name not in found:
            found.add(name)
            with suppress(PackageNotFoundError):
                needed = [each for each in requires(name) or () if "extra ==" not in each]
                waiting += [word[0] for each in needed if (word := re.match(r"[\w.-]+", each))]
    return sorted(found)


_distributions = cache(packages_distributions)


def _write(stage: str, document: dict[str, Any]) -> None:
    path = FOLDER / f"{stage}.json"
    before = None
    with suppress(OSError, ValueError):
        before = json.loads(path.read_text())
    if document != before:
        write_json(path, document)
        if before:
            print(f"inputs: {stage} has other {listed(sorted({*_differences(before, document)}))}")


def _differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    """The differences between two documents: a part, and the entries in it."""
    for part in {*before, *now}:
        one, other = before.get(part), now.get(part)
        if isinstance(one, dict) and isinstance(other, dict):
            yield from (f"{part} of {name}" for name in {*one, *other} if one.get(name) != other.get(name))
        elif one != other:
            yield part


def pins(path: Path) -> dict[str, str]:
    """The version that a constraints file pins for each library, by name; excludes the test tools."""
    try:
        text = path.read_text()
    except OSError as error:
        raise ExperimentError(f"{path}: cannot be read ({error.strerror}); `dvc repro` runs in the checkout") from None
    return dict(re.findall(r"^([\w.-]+)==([\w.!]+)", text.partition(TOOLS)[0], re.MULTILINE))


def _content(source: object) -> str | None:
    """Hash of a data set that is a file or a folder; one on the hub is pinned in params.yaml."""
    place = source.path if isinstance(source, LocalSource) else source.dataset if isinstance(source, HubSource) else ""
    if isinstance(source, LocalSource) and not Path(place).is_file():
        raise ExperimentError(f"{place}: no such file of problems")
    return cell_folder.content_hash(Path(place)) if place and Path(place).exists() else None


def _model(base: ModelConfig | PreparedConfig) -> str | dict[str, str]:
    """Hash of a base model that is a folder, or of each one with its problem sets, or its commit."""
    if isinstance(base, PreparedConfig):
        return {model.name: _folder(model.folder) for model in base.models}
    return base.revision if base.revision and not Path(base.model).is_dir() else _folder(base.model)


def _folder(place: str) -> str:
    if not Path(place).is_dir():
        raise ExperimentError(f"{place}: no such folder of a base model")
    return cell_folder.content(place)
