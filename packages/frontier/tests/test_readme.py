import re
import shlex
import shutil
from pathlib import Path

import pytest
from isocompute.frontier.cli import main

pytestmark = pytest.mark.slow("every command of the tutorials")

README = Path(__file__).parents[1] / "README.md"
DOCS = README.parent / "docs"


def test_the_examples_of_the_readme_run() -> None:
    examples = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    assert examples
    for example in examples:
        exec(compile(example, str(README), "exec"), {})


def tutorials() -> list[str]:
    """The commands of the two tutorials, in order."""
    text = README.read_text()
    begin, end = text.index("## The paper's own runs"), text.index("## Runs of other trainers")
    return re.findall(r"^    (isocompute-frontier .*)$", text[begin:end], re.MULTILINE)


def test_the_commands_of_both_tutorials_run_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(DOCS, tmp_path / "docs")
    monkeypatch.chdir(tmp_path)
    commands = tutorials()
    assert [shlex.split(c)[1] for c in commands] == ["fit", "prescribe", "next", "predict", "fit", "convert"]
    for command in commands:
        arguments = shlex.split(command)[1:]
        few = ["--bootstrap", "20"] if arguments[0] == "predict" else []
        assert main([*arguments, *few]) == 0, command
    assert (tmp_path / "trl-fitted" / "trade.svg").exists()


def test_every_figure_of_the_readme_is_there() -> None:
    for name in re.findall(r"!\[.*?\]\((.*?)\)", README.read_text()):
        assert (README.parent / name).exists(), name
