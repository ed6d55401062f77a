"""Base models that were prepared before, and what is refused of them."""

import json
import shutil
from pathlib import Path

import pytest

from experiments.errors import ExperimentError
from experiments.running.cells import problems_hash
from experiments.running.work import PREPARED
from experiments.settings import PreparedConfig, Preset, load
from experiments.settings.model import PreparedModel
from experiments.stages import prepare
from experiments.stages.sweep import setup_of

from .made import PARAMS

INPUTS = PARAMS.parent / "experiments" / "studies" / "panel" / "inputs"


@pytest.fixture
def preset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Preset:
    """The default with two of its base models, in folders here."""
    monkeypatch.chdir(tmp_path)
    for name in ("one", "two"):
        shutil.copytree(INPUTS / f"chains-{int(name == 'two')}", name)
    models = tuple(PreparedModel(name=name, folder=name) for name in ("one", "two"))
    return load(PARAMS, "tiny").model_copy(update={"base": PreparedConfig(models=models)})


@pytest.mark.slow
def test_every_base_model_has_cells_of_its_own_problems(preset: Preset) -> None:
    prepare.run(preset)
    setup = setup_of(preset, "hard")
    assert [design.origin.base_model for design in setup.designs] == ["one", "two"]
    assert set(setup.models) == {design.origin.base for design in setup.designs}
    assert [Path(place).parts[-3:] for place in setup.models.values()] == [
        ("prepared", "one", "base"),
        ("prepared", "two", "base"),
    ]
    assert {hashed: problems_hash(table) for hashed, table in setup.problems.items()} == {
        design.origin.problems: design.origin.problems for design in setup.designs
    }
    rates = setup.designs[0].declared_rates()
    assert rates is not None
    cells = [cell for design in setup.designs for cell in design.cells(rates)]
    assert len({cell.run_id for cell in cells}) == len({cell.name for cell in cells}) == 12
    assert len({cell.start_id for cell in cells}) == 2


@pytest.mark.parametrize("name", ["base/config.json", "base.json", "hard.parquet"])
def test_a_file_that_is_missing_is_named_and_nothing_is_copied(name: str, preset: Preset) -> None:
    (Path("two") / name).unlink()
    with pytest.raises(ExperimentError, match=f"two/{name}: there is no such file of the base model two"):
        prepare.run(preset)
    assert not PREPARED.exists()


def test_a_model_of_another_shape_is_refused(preset: Preset) -> None:
    path = Path("two/base/config.json")
    path.write_text(json.dumps(json.loads(path.read_text()) | {"hidden_size": 128}))
    with pytest.raises(ExperimentError, match="differ in their weights alone"):
        prepare.run(preset)
