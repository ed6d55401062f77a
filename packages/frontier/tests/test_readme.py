"""The README and the notebook in docs/, as they stand."""

import argparse
import json
import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from isocompute.frontier.cli import COMMANDS, main

pytestmark = pytest.mark.slow("every command of the tutorials")

README = Path(__file__).parents[1] / "README.md"


@pytest.mark.usefixtures("short_chains")
def test_every_command_and_example_of_the_readme_runs(
    table: pl.DataFrame, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(README.parent / "docs", tmp_path / "docs")
    monkeypatch.chdir(tmp_path)
    table.write_parquet("evals.parquet")
    problems = pl.DataFrame({"problem_id": ["p", "q"], "successes": [1, 3], "samples": 4})
    table.select("run_id", "step").join(problems, how="cross").write_parquet("pass_rates.parquet")
    commands = re.findall(r"^    (isocompute-frontier .*)$", README.read_text(), re.MULTILINE)
    parsers = argparse.ArgumentParser().add_subparsers()
    for command in COMMANDS:
        command.add(parsers)
    assert {shlex.split(c)[1] for c in commands} == {*parsers.choices}
    for line in commands:
        assert main(shlex.split(line)[1:]) == 0, line
    assert main(["prescribe", "fitted", "--budget", "1M", "--json", "a.json"]) == 0
    document = json.loads((tmp_path / "a.json").read_text())
    assert (document["budget"], 32 < document["rollouts_per_problem"] <= 256) == (1_000_000, True)
    (example,) = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    exec(compile(example, str(README), "exec"), {})


@pytest.mark.usefixtures("short_chains")
def test_the_notebook_runs_from_top_to_bottom(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(README.parent / "docs")
    cells = json.loads((README.parent / "docs" / "frontier.ipynb").read_text())["cells"]
    names: dict[str, Any] = {}
    for cell in cells:
        if cell["cell_type"] == "code":
            exec(compile("".join(cell["source"]), "frontier.ipynb", "exec"), names)
    fit = names["fit"]
    # Small n at little compute, large n at much: section 4.1 of the Playbook.
    chosen = [fit.best(budget).cell.rollouts_per_problem for budget in (2e5, 1e6, 4e6)]
    assert chosen[0] <= 32 < chosen[1] <= 256 <= chosen[2]
    assert "one seed" in fit.answer().lines()[-1]
    assert len(repr(fit)) < 120
    assert fit._repr_html_().count("<p>") >= 5
