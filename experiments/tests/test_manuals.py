"""The commands and examples of the packages' manuals in docs/."""

import re
import shlex
from pathlib import Path

import pytest
from isocompute.frontier.cli import main

pytestmark = pytest.mark.slow("fits and training")

ROOT = Path(__file__).parents[2]


def manual(name: str) -> str:
    return (ROOT / "docs" / f"{name}.md").read_text()


def test_the_tutorials_of_the_frontier_run_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "packages").symlink_to(ROOT / "packages")
    monkeypatch.chdir(tmp_path)
    text = manual("frontier")
    tutorials = text[: text.index("## Runs of other trainers")]
    commands = re.findall(r"^    (isocompute-frontier .*)$", tutorials, re.MULTILINE)
    assert [shlex.split(c)[1] for c in commands] == ["fit", "prescribe", "next", "predict", "fit"]
    for command in commands:
        few = ["--bootstrap", "20"] if " predict " in command else []
        assert main([*shlex.split(command)[1:], *few]) == 0, command
    assert (tmp_path / "trl-fitted" / "trade.svg").exists()


def test_the_examples_of_the_learner_run() -> None:
    examples = re.findall(r"```python\n(.*?)```", manual("learner"), re.DOTALL)
    assert examples
    for example in examples:
        exec(compile(example, "docs/learner.md", "exec"), {})
