import json
import os
import subprocess
import sys
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import polars as pl
import pytest
from isocompute.frontier import cli
from isocompute.frontier.cli import main
from isocompute.frontier.contract import command_line

pytestmark = pytest.mark.slow("fits by commands")


def test_fit_then_prescribe(table: pl.DataFrame, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table.write_csv(tmp_path / "evals.csv")
    out = tmp_path / "out"
    assert main(["fit", str(tmp_path / "evals.csv"), "--out", str(out)]) == 0
    assert main(["prescribe", str(out), "--budget", "40k", "--json", str(tmp_path / "a.json")]) == 0
    printed = capsys.readouterr().out
    assert "n = 16" in printed
    assert {"posterior.json", "draws.parquet", "runs.parquet", "report.html"} <= {p.name for p in out.iterdir()}
    document = json.loads((tmp_path / "a.json").read_text())
    assert (document["budget"], document["rollouts_per_problem"]) == (40_000, 16)


def test_the_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["--version"])
    assert end.value.code == 0
    assert capsys.readouterr().out.startswith("isocompute-frontier ")


def test_a_source_tree_that_is_not_installed_has_no_version(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def missing(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(command_line, "version", missing)
    with pytest.raises(SystemExit):
        main(["--version"])
    assert capsys.readouterr().out == "isocompute-frontier of a source tree that is not installed\n"


def test_a_negative_seed_is_one_line(table: pl.DataFrame, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own = table.filter((pl.col("rollouts_per_problem") == 4) & (pl.col("seed") == 0) & (pl.col("rollouts") > 0))
    own.write_csv(tmp_path / "curve.csv")
    path = str(tmp_path / "curve.csv")
    for command in (
        ["fit", path, "--out", str(tmp_path / "out")],
        ["predict", path, "--x", "rollouts", "--y", "avg_at_4"],
    ):
        assert main([*command, "--seed", "-1"]) == 2
        assert capsys.readouterr().err.startswith("error: the seed is -1")


def test_an_error_that_is_not_ours_is_not_hidden(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ValueError("a bug")

    monkeypatch.setattr(cli.prescribe.saved, "load", broken)
    with pytest.raises(ValueError, match="a bug"):
        main(["prescribe", str(tmp_path), "--budget", "8"])


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "no such file"), ("", "empty"), ("run_id,step\na,1\n", "has no column rollouts_per_problem")],
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


def test_a_reader_that_has_seen_enough_is_no_error() -> None:
    curve = Path(__file__).parents[1] / "docs" / "sweep.csv"
    options = "--where rollouts_per_problem=4 --where seed=1 --x rollouts --y avg_at_4 --bootstrap 20"
    command = [sys.executable, "-m", "isocompute.frontier.cli", "predict", str(curve), *options.split()]
    reading, writing = os.pipe()
    os.close(reading)
    ended = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writing)
    assert (ended.returncode, ended.stderr) == (0, "")
