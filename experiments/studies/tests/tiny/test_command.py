"""``python -m experiments.studies.tiny``, as docs/problem-sets.md has it."""

import re
from pathlib import Path

import pytest
from isocompute.rollout.contract import tables
from transformers import AutoModelForCausalLM

from experiments.studies.tiny.__main__ import main
from experiments.tests.made import ROOT


def test_the_command_of_the_page_makes_a_base_model_and_problems(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    page = (ROOT / "docs" / "problem-sets.md").read_text()
    (words,) = re.findall(r"^    python -m experiments\.studies\.tiny (.*)$", page, re.MULTILINE)
    assert main(words.split()) == 0
    out = Path(words.split()[-1])
    assert AutoModelForCausalLM.from_pretrained(out / "base").config.hidden_size == 64
    problems = tables.read(out / "problems.parquet", "problems")
    assert dict(problems["split"].value_counts().iter_rows()) == {"train": 256, "validation": 300}
    assert main(words.split()) == 2
    assert str(out) in capsys.readouterr().err
