import json
from pathlib import Path

import polars as pl
import pytest
from isocompute.frontier.cli import main


def test_fit_then_prescribe(table: pl.DataFrame, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table.write_csv(tmp_path / "evals.csv")
    out = tmp_path / "out"
    assert main(["fit", str(tmp_path / "evals.csv"), "--out", str(out), "--bootstrap", "40"]) == 0
    assert main(["prescribe", str(out), "--budget", "4e4", "--json", str(tmp_path / "a.json")]) == 0
    printed = capsys.readouterr().out
    assert "n = 16" in printed
    fits = json.loads((out / "fits.json").read_text())
    assert {"unit", "metric", "curves", "crossovers", "n_star"} <= fits.keys()
    assert json.loads((tmp_path / "a.json").read_text())["rollouts_per_problem"] == 16


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "no such file"),
        ("", "empty"),
        ("run_id,step\na,1\n", "has no column rollouts_per_problem"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    content: str | None, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "evals.csv"
    if content is not None:
        path.write_text(content)
    assert main(["fit", str(path), "--out", str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert message in error
    assert not (tmp_path / "out").exists()


def test_a_figure_that_cannot_be_written_is_one_line_and_exit_code_2(
    table: pl.DataFrame, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = table.filter((pl.col("rollouts_per_problem") == 4) & (pl.col("seed") == 0))
    own.write_csv(tmp_path / "curve.csv")
    (tmp_path / "file").touch()
    arguments = ["--x", "rollouts", "--y", "avg_at_4", "--bootstrap", "20", "--figure", str(tmp_path / "file" / "f")]
    assert main(["predict", str(tmp_path / "curve.csv"), *arguments]) == 2
    assert capsys.readouterr().err.startswith(f"error: {tmp_path / 'file' / 'f.svg'}: cannot be written (")
