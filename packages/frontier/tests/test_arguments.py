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
    out, path = str(tmp_path / "out"), str(tmp_path / "evals.csv")
    assert main(["fit", path, "--out", out]) == 0
    assert main(["prescribe", out, "--budget", "40k", "--json", str(tmp_path / "a.json")]) == 0
    assert json.loads((tmp_path / "a.json").read_text())["budget"] == 40_000
    assert main(["convert", path, "--amount", "8k", "--to", "tokens", "--n", "4"]) == 0
    where = ["--where", "rollouts_per_problem=4", "--where", "seed=0"]
    curve = ["predict", path, "--x", "rollouts", "--y", "avg_at_4", *where, "--bootstrap", "20", "--fit-max", "16k"]
    assert main([*curve, "--cuts", "12k", "16k", "--json", str(tmp_path / "b.json")]) == 0
    assert [c["cut"] for c in json.loads((tmp_path / "b.json").read_text())["cuts"]] == [12e3, 16e3]


def test_n_star_is_evaluated_from_points_from_fits_and_from_printed_parameters(
    table: pl.DataFrame, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # Figure 7 of the IsoCompute Playbook, Easy: it saturates at 2^8.82.
    printed = ["--sigmoid", "6.09", "4.75", "5.84", "2.73"]
    assert main(["n-star", *printed, "--at", "100M", "690k"]) == 0
    out = capsys.readouterr().out
    assert "n*(100,000,000) = 452; the nearest power of 2 is 512" in out
    assert "n*(690,000) = 54; the nearest power of 2 is 64" in out
    points = pl.DataFrame({"C": [1e5, 2e5, 4e5, 8e5, 1.6e6], "n": [8, 8, 32, 128, 128]})
    points.write_csv(tmp_path / "points.csv")
    arguments = ["n-star", str(tmp_path / "points.csv"), "--compute", "C", "--n", "n", "--at", "1M", "16M"]
    assert main([*arguments, "--json", str(tmp_path / "n.json")]) == 0
    out = capsys.readouterr().out
    assert "n*(16,000,000) = " in out
    assert out.count("beyond what was measured, up to 1,600,000") == 1
    assert json.loads((tmp_path / "n.json").read_text())["at"]["1e+06"] == pytest.approx(120, rel=0.2)
    table.write_csv(tmp_path / "evals.csv")
    assert main(["fit", str(tmp_path / "evals.csv"), "--method", "paper", "--out", str(tmp_path / "fitted")]) == 0
    capsys.readouterr()
    for source in (tmp_path / "fitted", tmp_path / "fitted" / "fits.json"):
        assert main(["n-star", str(source), "--at", "20k"]) == 0
        assert "n*(20,000) = 16" in capsys.readouterr().out


def test_n_star_says_what_it_lacks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "fits.json").write_text("{}")
    for arguments, what in (
        (["n-star"], "name points, fits or --sigmoid"),
        (["n-star", str(tmp_path / "points.csv")], "name the columns of the points with --compute and --n"),
        (["n-star", str(tmp_path / "none")], "holds no fits.json"),
        (["n-star", str(tmp_path), "--at", "2k"], "the fits are damaged or of another version"),
    ):
        assert main(arguments) == 2
        assert what in capsys.readouterr().err
