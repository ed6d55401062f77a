"""The examples of the README and of the manual run, and name what there is."""

import re
from pathlib import Path

import pytest
from isocompute.rollout import cli

PLACES = [Path(__file__).parents[1] / "README.md", *(p / "docs" / "rollout.md" for p in Path(__file__).parents)]
PAGES = [path for path in PLACES if path.is_file()]


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_the_examples_run(page: Path) -> None:
    examples = re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
    assert examples
    for example in examples:
        exec(compile(example, str(page), "exec"), {})


def test_every_command_has_an_example_in_the_readme(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["--help"])
    commands = re.findall(r"^    ([a-z]+)", capsys.readouterr().out, re.MULTILINE)
    shown = re.findall(r"^    isocompute-rollout ([a-z]+) ", PAGES[0].read_text(), re.MULTILINE)
    assert set(shown) == set(commands)
