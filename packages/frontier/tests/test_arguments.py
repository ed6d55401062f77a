import argparse
import json
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from isocompute.frontier.cli import main
from isocompute.frontier.commands.arguments import positive

pytestmark = pytest.mark.slow("fits by commands")


@pytest.mark.parametrize(
    ("text", "value"),
    [("16M", 16e6), ("2k", 2e3), ("1.5B", 1.5e9), ("0.5K", 500.0), ("3T", 3e12), ("4e4", 4e4), ("50000", 5e4)],
)
def test_amounts_have_suffixes(text: str, value: float) -> None:
    assert positive(text) == value


@pytest.mark.parametrize("text", ["", "M", "16X", "16MM", "1,000", "-2k", "0", "0M", "nan", "inf", "infM", "two"])
def test_nonsense_is_one_sentence(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError) as error:
        positive(text)
    assert str(error.value) == f"{text!r} is not an amount above 0, such as 50000, 2k, 16M or 1.5B"


@given(st.floats(1e-6, 1e15))
def test_every_number_is_an_amount(value: float) -> None:
    assert positive(repr(value)) == value


def test_commands_take_amounts_with_suffixes(table: pl.DataFrame, tmp_path: Path) -> None:
    table.write_csv(tmp_path / "evals.csv")
    path = str(tmp_path / "evals.csv")
    where = ["--where", "rollouts_per_problem=4", "--where", "seed=0"]
    curve = ["predict", path, "--x", "rollouts", "--y", "avg_at_4", *where, "--bootstrap", "20", "--fit-max", "16k"]
    assert main([*curve, "--cuts", "12k", "16k", "--json", str(tmp_path / "b.json")]) == 0
    assert [c["cut"] for c in json.loads((tmp_path / "b.json").read_text())["cuts"]] == [12e3, 16e3]
