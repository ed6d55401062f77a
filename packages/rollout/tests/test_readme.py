import re
from pathlib import Path

from isocompute.rollout.scoring.refused import REFUSED

README = Path(__file__).parents[1] / "README.md"


def test_the_examples_of_the_readme_run() -> None:
    examples = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    assert examples
    for example in examples:
        exec(compile(example, str(README), "exec"), {})


def test_the_readme_lists_the_refused_tasks_and_why() -> None:
    text = README.read_text()
    for task, reason in REFUSED.items():
        assert f"| `{task}` | {reason} |" in text
