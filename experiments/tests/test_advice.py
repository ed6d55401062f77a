"""The cells of ``advise`` are what budget reads in the flags that it prints, for every trainer that it names."""

import re
import shlex

import pytest
from isocompute.budget.cli import main as budget
from isocompute.frontier.answers.advice import FLAGS, Cell


@pytest.mark.parametrize("trainer", FLAGS)
def test_flags_are_read_as_the_cell_they_are_of(trainer: str, capsys: pytest.CaptureFixture[str]) -> None:
    cell = Cell(n=16, problems_per_batch=8, steps=976, learning_rate=3.54e-7)
    flags = shlex.split(cell.flags(trainer))
    devices = {"trl": ["--world-size", "1"], "verl": ["--problems", "8000"], "openrlhf": ["--problems", "8000"]}
    extra = ["trainer.nnodes=1", "trainer.n_gpus_per_node=1"] if trainer == "verl" else []
    assert budget(["convert", "--from", trainer, *devices.get(trainer, []), "--", *flags, *extra]) == 0
    said = capsys.readouterr().out
    assert "inconsistent" not in said
    read = dict(re.findall(r"^(problems per batch|rollouts per problem|update steps) +([\d,]+)", said, re.MULTILINE))
    assert read == {"problems per batch": "8", "rollouts per problem": "16", "update steps": "976"}
