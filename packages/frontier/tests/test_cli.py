"""The console script: what every command shares, and what it needs of the machine."""

import argparse
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from isocompute.frontier import cli
from isocompute.frontier.cli import main
from isocompute.frontier.commands import fit
from isocompute.frontier.commands.arguments import positive
from isocompute.frontier.data.reading import short

slow = pytest.mark.slow("fits, or an interpreter that is started")


@pytest.mark.parametrize(
    "text", ["", "M", "16X", "16MM", "1,00", "1,0000", "-2k", "0", "0M", "nan", "inf", "infM", "two"]
)
def test_nonsense_is_one_sentence(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError) as error:
        positive(text)
    assert str(error.value).startswith(f"{text!r} is not an amount")


@pytest.mark.parametrize(("text", "value"), [("2,000,000", 2e6), ("2_000_000", 2e6), ("1,500.5K", 1_500_500)])
def test_thousands_may_be_separated(text: str, value: float) -> None:
    assert positive(text) == value


@given(st.floats(1.0, 9e17))
def test_an_amount_is_printed_as_it_is_read_to_three_digits(value: float) -> None:
    assert positive(short(value)) == pytest.approx(value, rel=0.005)


def test_a_fit_leaves_no_figure_of_an_older_one_and_nothing_else_goes(tmp_path: Path) -> None:
    for name in ("trade.svg", "trade.png", "curves.png", "interference.png", "runs.csv"):
        (tmp_path / name).write_text("old")
    with fit._at_once(tmp_path) as folder:
        (folder / "curves.png").write_text("new")
    assert {file.name for file in tmp_path.iterdir()} == {"curves.png", "interference.png", "runs.csv"}
    assert (tmp_path / "curves.png").read_text() == "new"


@slow
@pytest.mark.usefixtures("short_chains")
def test_a_fit_that_is_ended_leaves_the_one_before_whole(
    table: pl.DataFrame, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    table.write_csv(tmp_path / "evals.csv")
    command = ["fit", str(tmp_path / "evals.csv"), "--out", str(out)]
    assert main(command) == 0
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    table.filter(pl.col("rollouts_per_problem") == 4).write_csv(tmp_path / "evals.csv")

    def ended(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("isocompute.frontier.notebook.write_report", ended)
    assert main(command) == 130
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before
    assert main([*command[:-1], str(tmp_path / "new")]) == 130
    assert {path.name for path in tmp_path.iterdir()} == {"evals.csv", "out"}


@slow
@pytest.mark.usefixtures("short_chains")
def test_the_gap_is_measured_and_drawn_where_runs_were_evaluated_on_both_splits(
    table: pl.DataFrame, tmp_path: Path
) -> None:
    train = table.with_columns(split=pl.lit("train"), avg_at_4=(pl.col("avg_at_4") + 0.05).clip(0, 1))
    pl.concat([table, train]).write_parquet(tmp_path / "evals.parquet")
    out = tmp_path / "out"
    assert main(["fit", str(tmp_path / "evals.parquet"), "--unit", "tokens", "--out", str(out)]) == 0
    written = {"posterior.json", "draws.parquet", "runs.parquet", "report.html", "gap.svg"}
    assert written <= {p.name for p in out.iterdir()}
    assert pl.read_parquet(out / "gap.parquet")["gap"].mean() == pytest.approx(0.05, abs=1e-6)


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("fit PATH --out out --seed -1", "the seed is -1"),
        ("predict PATH --x rollouts --y avg_at_4 --seed -1", "the seed is -1"),
        ("fit PATH --out PATH", "--out PATH"),
    ],
)
def test_what_no_fit_can_do_is_one_line_before_it(
    command: str, said: str, table: pl.DataFrame, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(tmp_path / "evals.csv")
    table.filter(pl.col("run_id") == "n4s0", pl.col("rollouts") > 0).write_csv(path)
    assert main(command.replace("PATH", path).split()) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith(f"error: {said.replace('PATH', path)}")


@pytest.mark.parametrize(
    "command",
    ["advise --budget 1M --pass-rate 0.3", "fit evals.csv --out out", "next fitted", "prescribe fitted --budget 1M"],
)
def test_a_folder_that_is_not_there_is_not_made_for_a_file_and_this_is_said_before_it(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    try:
        status = main([*command.split(), "--json", "nodir/answer.json"])
    except SystemExit as end:
        status = end.code  # type: ignore[assignment]
    printed = capsys.readouterr()
    assert (status, printed.out, list(tmp_path.iterdir())) == (2, "", [])
    assert "--json" in printed.err
    assert "nodir" in printed.err


@pytest.mark.parametrize(("name", "what"), [("nothing", "not there"), ("file", "no folder"), ("empty", "posterior")])
def test_what_is_no_fit_is_said_to_be_none_with_the_command_that_makes_one(
    name: str, what: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "empty").mkdir()
    for command in (["prescribe", "--budget", "1M"], ["next"]):
        assert main([*command, str(tmp_path / name)]) == 2
        said = capsys.readouterr().err
        assert all(part in said for part in (str(tmp_path / name), what, "isocompute-frontier fit"))


def test_an_error_that_is_not_ours_is_not_hidden(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ValueError("a bug")

    monkeypatch.setattr(cli.prescribe, "load_fitted", broken)
    with pytest.raises(ValueError, match="a bug"):
        main(["prescribe", str(tmp_path), "--budget", "8"])


WITHOUT_POSIX = """
import os, sys
sys.modules["fcntl"] = sys.modules["resource"] = None
if hasattr(os, "fchmod"):
    del os.fchmod
import polars as pl
import isocompute.frontier
from isocompute.frontier.contract import tables, tracking
from isocompute.frontier.cli import main
print([name for name in ("torch", "ray", "mlflow", "matplotlib") if name in sys.modules])
row = {"run_id": "r", "step": 1, "rollouts": 32, "tokens": 320, "rollouts_per_problem": 4, "problems_per_batch": 8,
       "seed": 0, "problem_set": "easy", "split": "validation", "questions": 300, "samples": 4, "avg_at_4": 0.3}
tables.write(pl.DataFrame([row]), "evals", "evals.parquet")
assert tables.read("evals.parquet", "evals").height == 1
assert callable(main)
"""


@slow
def test_tables_are_read_and_written_without_posix_and_nothing_heavy_is_imported(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_POSIX], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "[]\n"), done.stderr
