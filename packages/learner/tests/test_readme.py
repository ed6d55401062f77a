"""Every example of the README runs."""

import re
from pathlib import Path

import pytest
from tiny_models import with_tokenizer

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
