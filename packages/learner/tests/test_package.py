"""The front door: names, quick imports, and the examples of the README."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import isocompute.learner
import pytest
from tiny_models import with_tokenizer


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
    assert set(isocompute.learner.__all__) <= set(dir(isocompute.learner))


def test_the_names_that_are_loaded_later_are_those_that_type_checkers_see() -> None:
    tree = ast.parse(Path(isocompute.learner.__file__).read_text())
    (block,) = (node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")
    imports = [node for node in block.body if isinstance(node, ast.ImportFrom)]
    assert len(imports) == len(block.body)
    seen = {node.module: tuple(alias.name for alias in node.names) for node in imports}
    assert seen == isocompute.learner._MODULES
    eager = {
        alias.name for node in tree.body if isinstance(node, ast.ImportFrom) and node.level == 1 for alias in node.names
    }
    lazy = {name for names in seen.values() for name in names}
    assert not lazy & eager
    assert lazy | eager == set(isocompute.learner.__all__)


def test_a_group_without_ray_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(isocompute.learner.LearnerError, match=r'pip install "isocompute-learner\[ray\]"'):
        isocompute.learner.LearnerGroup("model", isocompute.learner.LearnerConfig(learning_rate=1.0), world_size=2)


README = Path(__file__).parents[1] / "README.md"

EXAMPLES = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)

ON_THE_HUB = "Qwen/Qwen2.5-0.5B-Instruct"


@pytest.mark.slow
def test_the_examples_of_the_readme_run(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert sum(ON_THE_HUB in example for example in EXAMPLES) == 1
    model = with_tokenizer(tmp_path / "model")
    for example in EXAMPLES:
        exec(compile(example.replace(ON_THE_HUB, str(model)), str(README), "exec"), {})
        if ON_THE_HUB in example:
            assert len(re.findall(r"^step \d+: .* rollouts, reward ", capfd.readouterr().err, re.MULTILINE)) == 8
