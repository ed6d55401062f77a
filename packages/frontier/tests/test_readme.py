import re
import shlex
import shutil
from pathlib import Path

import polars as pl
import pytest
from isocompute.frontier.cli import COMMANDS, main

pytestmark = pytest.mark.slow("every command of the tutorials")

README = Path(__file__).parents[1] / "README.md"


def test_every_command_and_example_of_the_readme_runs(
    table: pl.DataFrame, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(README.parent / "docs", tmp_path / "docs")
    monkeypatch.chdir(tmp_path)
    table.write_parquet("evals.parquet")
    problems = pl.DataFrame({"problem_id": ["p", "q"], "successes": [1, 3], "samples": 4})
    table.select("run_id", "step").join(problems, how="cross").write_parquet("pass_rates.parquet")
    commands = re.findall(r"^    (isocompute-frontier .*)$", README.read_text(), re.MULTILINE)
    names = {command.__name__.rpartition(".")[2] for command in COMMANDS}
    assert {shlex.split(c)[1] for c in commands} == names
    for command in commands:
        few = ["--bootstrap", "20"] if " predict " in command else []
        assert main([*shlex.split(command)[1:], *few]) == 0, command
    (example,) = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    exec(compile(example, str(README), "exec"), {})
