"""The front door: names and quick imports."""

import ast
import subprocess
import sys
from pathlib import Path

import isocompute.learner
import pytest


@pytest.mark.slow
def test_importing_the_package_loads_none_of_the_heavy_libraries() -> None:
    code = (
        "import sys, isocompute.learner, isocompute.learner.cli\n"
        "print({'torch', 'ray', 'transformers', 'polars', 'numpy', 'mlflow'} & set(sys.modules))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "set()"


def test_every_name_of_the_front_door_is_there() -> None:
    assert isocompute.learner.__all__ == sorted(isocompute.learner.__all__)
    for name in isocompute.learner.__all__:
        assert getattr(isocompute.learner, name).__name__ == name


def test_the_names_that_are_loaded_later_are_those_that_type_checkers_see() -> None:
    tree = ast.parse(Path(isocompute.learner.__file__).read_text())
    (block,) = (node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")
    seen = {node.module: tuple(alias.name for alias in node.names) for node in block.body}
    assert seen == isocompute.learner._MODULES


def test_a_group_without_ray_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(isocompute.learner.LearnerError, match=r'pip install "isocompute-learner\[ray\]"'):
        isocompute.learner.LearnerGroup("model", isocompute.learner.LearnerConfig(learning_rate=1.0), world_size=2)
