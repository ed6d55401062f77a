import os
import re
import shlex
import shutil
import sys
from pathlib import Path

import pytest
from isocompute.budget.cli import main

README = Path(__file__).parents[1] / "README.md"


@pytest.mark.slow
def test_every_example_runs_and_prints_what_it_says(tmp_path, monkeypatch, capsys):
    shutil.copytree(README.parent / "docs", tmp_path / "docs")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
    blocks = re.findall(r"^```(python|console)\n(.*?)^```", README.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    assert {kind for kind, _ in blocks} == {"python", "console"}
    names: dict[str, object] = {}
    for kind, text in blocks:
        if kind == "python":
            exec(compile(text, str(README), "exec"), names)
            continue
        command, _, expected = text.partition("\n")
        program, *arguments = shlex.split(command.removeprefix("$ "))
        assert program == "isocompute-budget"
        if arguments[0] == "run" and sys.platform == "win32":
            continue
        capsys.readouterr()
        assert main(arguments) == 0
        assert capsys.readouterr().out == expected
