import warnings
from pathlib import Path

import polars as pl
import pytest
from isocompute.frontier import FrontierError, fit_as_paper, read_evals
from isocompute.frontier.cli import main
from isocompute.frontier.contract.errors import TableError

COLUMNS = {"rollouts": "C", "rollouts_per_problem": "n", "problems_per_batch": "B_p", "avg_at_4": "reward"}


def plain(folder: Path, table: pl.DataFrame, suffix: str = ".csv") -> Path:
    """A user's own file: other names, compute in thousands, no counts of questions."""
    frame = table.filter(pl.col("seed") == 0).select(
        C=pl.col("rollouts") / 1000, n="rollouts_per_problem", B_p="problems_per_batch", reward="avg_at_4"
    )
    path = folder / f"mine{suffix}"
    {".csv": frame.write_csv, ".parquet": frame.write_parquet, ".jsonl": frame.write_ndjson}[suffix](path)
    return path


@pytest.mark.slow
@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".jsonl"])
def test_a_file_with_other_names_is_fitted_in_its_own_unit(tmp_path: Path, table: pl.DataFrame, suffix: str) -> None:
    mine = read_evals([plain(tmp_path, table, suffix)], columns=COLUMNS)
    theirs = table.filter(pl.col("seed") == 0)
    for a, b in zip(fit_as_paper(mine).curves, fit_as_paper(theirs).curves, strict=True):
        assert a.parameters is not None
        assert b.parameters is not None
        assert a.parameters.asymptote == pytest.approx(b.parameters.asymptote, abs=0.01)
        assert 1000 * a.parameters.scale == pytest.approx(b.parameters.scale, rel=0.1)


def test_what_the_file_lacks_can_be_given(tmp_path: Path, table: pl.DataFrame) -> None:
    path = tmp_path / "mine.csv"
    table.filter(pl.col("seed") == 0).select("rollouts", "avg_at_4", n="rollouts_per_problem").write_csv(path)
    with pytest.raises(FrontierError, match="column problems_per_batch"):
        read_evals([path], columns={"rollouts_per_problem": "n"})
    found = read_evals([path], columns={"rollouts_per_problem": "n"}, constants={"problems_per_batch": "32"})
    assert found["problems_per_batch"].unique().to_list() == [32]


def test_the_same_row_twice_counts_once_and_is_said(tmp_path: Path, table: pl.DataFrame) -> None:
    path = plain(tmp_path, table)
    twice = tmp_path / "twice.csv"
    twice.write_text(path.read_text() + "".join(path.read_text().splitlines(keepends=True)[1:3]))
    with pytest.warns(UserWarning, match="2 rows occur"):
        found = read_evals([twice], columns=COLUMNS)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert found.equals(read_evals([path], columns=COLUMNS))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("C,n,B_p,reward\n", "holds no row"),
        ("C,n,B_p\n1,4,8\n", "has no column 'reward'"),
        ("C,n,B_p,reward\n1,4,8,1.5\n", "is 1.5 in row 1"),
        ("C,n,B_p,reward\n1,4,8,0.5\n2,4,8,\n", "row 2 holds None"),
        ("C,n,B_p,reward\n1,4,8,x\n", "must hold finite numbers, but row 1 holds 'x'"),
        ("C,n,B_p,reward\n-1,4,8,0.5\n", "is negative in row 1"),
        ("C,n,B_p,reward\n1,4.5,8,0.5\n", "whole numbers from 1"),
        ("C,n,B_p,reward\n1,4,8,nan\n", "row 1 holds 'nan'"),
    ],
)
def test_a_table_that_is_not_a_curve_is_one_clear_error(content: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    path.write_text(content)
    with pytest.raises(FrontierError, match=message):
        read_evals([path], columns=COLUMNS)


def test_a_file_that_is_not_what_its_name_says_is_named(tmp_path: Path) -> None:
    for name in ("a.parquet", "a.csv", "a.jsonl"):
        path = tmp_path / name
        path.write_bytes(b"\x00\xff\x00PAR")
        with pytest.raises(FrontierError, match=name):
            read_evals([path], columns=COLUMNS)
    with pytest.raises(FrontierError, match=r"ends in .csv"):
        read_evals([Path(__file__)], columns=COLUMNS)


@pytest.fixture
def newer(table: pl.DataFrame, tmp_path: Path) -> Path:
    """An ``evals`` file of schema version 2.0, which lacks a column that 1.x requires."""
    path = tmp_path / "evals.parquet"
    stated = {"isocompute.table": "evals", "isocompute.schema_version": "2.0"}
    table.drop("samples").write_parquet(path, metadata=stated)
    return path


def test_a_table_of_a_newer_major_version_is_refused_as_foreign_rows_too(newer: Path) -> None:
    for columns in (None, {"tokens": "rollouts"}):
        with pytest.raises(TableError, match=r"evals\.parquet.*2\.0"):
            read_evals([newer], columns=columns)


def test_predict_refuses_a_table_of_a_newer_major_version(newer: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", str(newer), "--x", "rollouts", "--y", "avg_at_4"]) == 2
    assert "schema version 2.0" in capsys.readouterr().err


def test_one_row_that_occurs_twice_is_said_in_the_singular(tmp_path: Path, table: pl.DataFrame) -> None:
    path = tmp_path / "rows.csv"
    pl.concat([table, table.head(1)]).write_csv(path)
    with pytest.warns(UserWarning, match="1 row occurs twice"):
        read_evals([path], constants={"split": "validation"})


def test_runs_of_other_samples_are_fitted_together(table: pl.DataFrame, tmp_path: Path) -> None:
    # E[avg@k] does not depend on k: every avg_at_k is one quantity, as precise as its samples.
    whole = table.filter(pl.col("seed") == 0)
    few = whole.filter(pl.col("rollouts_per_problem") == 4)
    many = whole.filter(pl.col("rollouts_per_problem") == 16).with_columns(samples=pl.lit(16))
    many = many.rename({"avg_at_4": "avg_at_16"})
    few.write_parquet(tmp_path / "few.parquet")
    many.write_parquet(tmp_path / "many.parquet")
    pl.concat([few, many], how="diagonal_relaxed").write_parquet(tmp_path / "both.parquet")
    for sources in ([tmp_path / "few.parquet", tmp_path / "many.parquet"], [tmp_path / "both.parquet"]):
        found = read_evals(sources)
        assert found["avg_at_4"].null_count() == 0
        assert sorted(found["samples"].unique().to_list()) == [4, 16]
    alone = read_evals([tmp_path / "many.parquet"])
    assert alone["avg_at_4"].to_list() == alone["avg_at_16"].to_list()


def test_two_tables_of_one_seed_are_not_fitted_as_one_run(table: pl.DataFrame, tmp_path: Path) -> None:
    one = table.filter(pl.col("seed") == 0, pl.col("rollouts_per_problem") == 4)
    one.with_columns(recipe=pl.lit("a")).write_parquet(tmp_path / "a.parquet")
    one.with_columns(run_id=pl.lit("other"), recipe=pl.lit("b")).write_parquet(tmp_path / "b.parquet")
    tables = [tmp_path / "a.parquet", tmp_path / "b.parquet"]
    with pytest.raises(FrontierError, match=r"seed, 0, at n = 4 and B_p"):
        read_evals(tables)
    # Told apart by a column, they are two curves.
    assert len(read_evals(tables, group="recipe")) == 2 * len(one)
