import os
import re
import shlex
import shutil
import sys
from pathlib import Path

import pytest
from isocompute.budget.cli import main

README = Path(__file__).parents[1] / "README.md"
REPOSITORY = README.parents[2]
MANUALS = [
    path for name in ("accounting", "trainers", "stopping") if (path := REPOSITORY / "docs" / f"{name}.md").exists()
]


@pytest.mark.slow("examples that follow a command")
@pytest.mark.parametrize("document", [README, *MANUALS], ids=lambda path: path.stem)
def test_every_example_runs_and_prints_what_it_says(document, tmp_path, monkeypatch, capsys):
    (tmp_path / "packages").mkdir()
    shutil.copytree(README.parent / "docs", tmp_path / "packages" / "budget" / "docs")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
    blocks = re.findall(r"^```(python|console|text)\n(.*?)^```", document.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    assert "console" in {kind for kind, _ in blocks}
    names = {}
    for kind, text in blocks:
        if kind == "python":
            exec(compile(text, str(document), "exec"), names)
            continue
        if kind == "text":
            assert text in (README.parent / "docs" / "verl.log").read_text("utf-8")
            continue
        command, _, expected = text.partition("\n")
        program, *arguments = shlex.split(command.removeprefix("$ "))
        assert program == "isocompute-budget"
        if arguments[0] == "run" and sys.platform == "win32":
            continue
        capsys.readouterr()
        assert main(arguments) == 0
        assert capsys.readouterr().out == expected
