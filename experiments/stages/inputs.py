"""Write down what results depend on and DVC sees neither in params.yaml nor in the code: every ``dvc repro`` looks."""

from __future__ import annotations

import re
from pathlib import Path

from isocompute.rollout import HubSource, LocalSource

from ..errors import ExperimentError, listed
from ..running import cell_folder
from ..running.cell_folder import OUT, write_json
from ..running.cells import code_of_rules, computing, files_of, versions, versions_of
from ..settings import ModelConfig, PreparedConfig, Preset

FILE = OUT / "inputs.json"
CONSTRAINTS = Path("constraints.txt")
TOOLS = "# Tools"
"""The heading of the tests' tools in the constraints, on which no result depends."""


def run(preset: Preset) -> None:
    """Hash the data, the model and the verifiers, and note the libraries, the device and the sampler."""
    pinned = pins(CONSTRAINTS)
    libraries = dict.fromkeys(pinned) | versions(pinned)
    sources = [source for source in preset.problems if isinstance(source, HubSource | LocalSource)]
    document = {
        "computing": computing(preset.resolved_resources()),
        "data": {f"problems[{i}]": found for i, source in enumerate(preset.problems) if (found := _content(source))},
        "libraries": libraries,
        "model": _model(preset.base),
        "trainer": _trainer(preset),
        "verifiers": code_of_rules(source.verifier for source in sources),
    }
    write_json(FILE, document)
    others = [name for name, there in libraries.items() if there and there.partition("+")[0] != pinned[name]]
    if others:
        said = listed([f"{name} {libraries[name]} for {pinned[name]}" for name in others])
        print(f"inputs: libraries that are not those of {CONSTRAINTS}: {said}")


def pins(path: Path) -> dict[str, str]:
    """The version that a constraints file pins of each library, by name; without the tools of the tests."""
    try:
        text = path.read_text()
    except OSError as error:
        raise ExperimentError(f"{path}: cannot be read ({error.strerror}); `dvc repro` runs in the checkout") from None
    return dict(re.findall(r"^([\w.-]+)==([\w.!]+)", text.partition(TOOLS)[0], re.MULTILINE))


def _trainer(preset: Preset) -> dict[str, object] | None:
    """The command that trains, the hashes of its files and the versions of its libraries; None for our learner."""
    trainer = preset.trainer
    if trainer is None:
        return None
    return {
        **trainer.model_dump(mode="json"),
        "files": files_of(trainer, Path.cwd()),
        "libraries": versions_of(trainer),
    }


def _content(source: object) -> str | None:
    """Hash of a data set that is a file or a folder; one of the hub is pinned in params.yaml."""
    place = source.path if isinstance(source, LocalSource) else source.dataset if isinstance(source, HubSource) else ""
    if isinstance(source, LocalSource) and not Path(place).is_file():
        raise ExperimentError(f"{place}: no such file of problems")
    return cell_folder.content_hash(Path(place)) if place and Path(place).exists() else None


def _model(base: ModelConfig | PreparedConfig) -> str | dict[str, str]:
    """Hash of a base model that is a folder, of each with its problem sets, or its commit."""
    if isinstance(base, PreparedConfig):
        return {model.name: _folder(model.folder) for model in base.models}
    return base.revision if base.revision and not Path(base.model).is_dir() else _folder(base.model)


def _folder(place: str) -> str:
    if not Path(place).is_dir():
        raise ExperimentError(f"{place}: no such folder of a base model")
    return cell_folder.content(place)
