"""Reading evaluations: files of any columns, bad input as one clear error, groups of runs, and units of compute."""

import json
import warnings
from pathlib import Path
from tempfile import TemporaryDirectory

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from isocompute.frontier import Frontier, FrontierError, PaperConfig, fit_as_paper, read_evals, with_gpu_hours
from isocompute.frontier.cli import main
from isocompute.frontier.contract import tables
from isocompute.frontier.contract.errors import TableError
from isocompute.frontier.data.curves import of_setting
from isocompute.frontier.data.reading import not_read, read_curve
from isocompute.frontier.errors import InputWarning

from ..conftest import quick

COLUMNS = {"rollouts": "C", "rollouts_per_problem": "n", "problems_per_batch": "B_p", "avg_at_4": "reward"}


@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".jsonl"])
def test_a_file_with_other_names_is_read_in_its_own_unit(tmp_path: Path, table: pl.DataFrame, suffix: str) -> None:
    """Of other names, compute in thousands, and no counts of questions."""
    theirs = table.filter(pl.col("seed") == 0)
    renamed = {own: pl.col(name) / (1000 if own == "C" else 1) for name, own in COLUMNS.items()}
    frame, path = theirs.select(**renamed), tmp_path / f"mine{suffix}"
    {".csv": frame.write_csv, ".parquet": frame.write_parquet, ".jsonl": frame.write_ndjson}[suffix](path)
    mine = read_evals([path], columns=COLUMNS)
    assert (1000 * mine["rollouts"]).to_list() == pytest.approx(theirs["rollouts"].to_list())
    assert mine.select(*list(COLUMNS)[1:]).equals(theirs.select(*list(COLUMNS)[1:]))


def test_what_the_file_lacks_can_be_given(tmp_path: Path, table: pl.DataFrame) -> None:
    path = tmp_path / "mine.csv"
    table.filter(pl.col("seed") == 0).select("rollouts", "avg_at_4", n="rollouts_per_problem").write_csv(path)
    with pytest.raises(FrontierError, match=r"no columns rollouts_per_problem, problems_per_batch; .* --set"):
        read_evals([path])
    with pytest.raises(FrontierError, match="no column problems_per_batch"):
        read_evals([path], columns={"rollouts_per_problem": "n"})
    found = read_evals([path], columns={"rollouts_per_problem": "n"}, constants={"problems_per_batch": "32"})
    assert found["problems_per_batch"].unique().to_list() == [32]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("C,n,B_p,reward\n", "holds no row"),
        ("C,n,B_p\n1,4,8\n", "has no column reward; it has C, n, B_p"),
        ("C,n,B_p,reward\n1,4,8,1.5\n", "rewards within 0 to 1, but row 1 holds 1.5"),
        ("C,n,B_p,reward\n1,4,8,0.5\n2,4,8,\n", "row 2 holds None"),
        ("C,n,B_p,reward\n1,4,8,x\n", "must hold rewards within 0 to 1, but row 1 holds 'x'"),
        ("C,n,B_p,reward\n-1,4,8,0.5\n", "column C must hold compute from 0, but row 1 holds -1"),
        ("C,n,B_p,reward\n1,4.5,8,0.5\n", "column n must hold whole numbers from 1, but row 1 holds 4.5"),
    ],
)
def test_a_table_that_is_not_a_curve_is_one_clear_error(content: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    path.write_text(content)
    with pytest.raises(FrontierError, match=message):
        read_evals([path], columns=COLUMNS)


def test_a_table_of_a_newer_major_version_is_refused_as_external_rows_too(table: pl.DataFrame, tmp_path: Path) -> None:
    path = tmp_path / "evals.parquet"
    stated = {"isocompute.table": "evals", "isocompute.schema_version": "2.0"}
    table.drop("samples").write_parquet(path, metadata=stated)
    for columns in (None, {"tokens": "rollouts"}):
        with pytest.raises(TableError, match=r"evals\.parquet.*2\.0"):
            read_evals([path], columns=columns)


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


def fitted(source: Path, *more: str) -> int:
    return main(["fit", str(source), "--out", str(source.parent / "out"), "--method", "paper", *more])


def refused(source: Path, capsys: pytest.CaptureFixture[str], *more: str) -> str:
    assert fitted(source, *more) == 2
    (line,) = [line for line in capsys.readouterr().err.splitlines() if not line.startswith("warning: ")]
    assert line.startswith("error: ")
    assert not (source.parent / "out").exists()
    return line


@pytest.mark.parametrize("form", ["exp", "hill", "power"])
@pytest.mark.parametrize("level", [0.0, 0.4, 1.0])
def test_a_constant_reward_levels_off_where_it_is(table: pl.DataFrame, form: str, level: float) -> None:
    flat = table.with_columns(avg_at_4=pl.lit(level))
    for c in fit_as_paper(flat, PaperConfig(form=form)).curves:
        assert c.parameters is not None
        assert c.parameters(20_000.0) == pytest.approx(level, abs=0.01)


@pytest.mark.slow
@pytest.mark.parametrize("level", [0.0, 1.0])
def test_where_nothing_was_gained_nothing_is_claimed(table: pl.DataFrame, level: float) -> None:
    fitted = quick(table.with_columns(avg_at_4=pl.lit(level)))
    low, high = fitted.best(20_480).interval
    assert low - 0.03 < level < high + 0.03
    assert not fitted.decide(20_480).known


@pytest.mark.parametrize(("value", "what"), [(1.2, "is above 1"), (-0.1, "is below 0"), (float("nan"), "finite")])
def test_a_reward_that_cannot_be_names_its_row(
    table: pl.DataFrame, value: float, what: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "evals.parquet"
    table.with_row_index("row").with_columns(
        avg_at_4=pl.when(pl.col("row") == 7).then(value).otherwise("avg_at_4")
    ).drop("row").write_parquet(path)
    error = refused(path, capsys)
    assert what in error
    assert "row 8" in error
    # The same from memory, where there is no row of a file to name.
    with pytest.raises(FrontierError, match=r"avg_at_4 (lies outside 0 to 1|is not a finite number) at n = 4"):
        fit_as_paper(pl.read_parquet(path))


def test_a_row_that_is_there_twice_is_refused_in_a_table_and_counts_once_in_a_plain_file(
    table: pl.DataFrame, tmp_path: Path
) -> None:
    path = tmp_path / "evals.csv"
    doubled = pl.concat([table, table.head(3)])
    doubled.write_csv(path)
    with pytest.raises(TableError, match="repeats the key"):
        read_evals([path])
    doubled.drop("run_id", "step").write_csv(path)
    with pytest.warns(InputWarning, match="3 rows occur more than once"):
        found = read_evals([path])
    columns = ["rollouts_per_problem", "seed", "rollouts", "avg_at_4"]
    assert found.select(columns).sort(columns).equals(table.select(columns).sort(columns))


def test_mixed_units_a_unit_that_is_missing_and_an_empty_folder_are_refused(
    table: pl.DataFrame, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "evals.csv"
    table.write_csv(path)
    assert "gpu_hours" in refused(path, capsys, "--unit", "gpu_hours")
    in_thousands = pl.when(pl.col("rollouts_per_problem") == 4).then(pl.col("rollouts") // 1000).otherwise("rollouts")
    table.with_columns(rollouts=in_thousands).write_csv(path)
    assert "mix units of compute" in refused(path, capsys)
    (tmp_path / "runs").mkdir()
    assert "holds no evals.parquet" in refused(tmp_path / "runs", capsys)


@pytest.mark.parametrize(
    ("name", "content", "what"),
    [
        ("evals.parquet", b"rollouts,avg_at_4\n1,0.5\n", "parquet"),
        ("evals.csv", b"PAR1\x00\x01\xff\xfe\x00garbage\x00PAR1", "evals.csv"),
        ("evals.jsonl", b"rollouts,avg_at_4\n1,0.5\n", "jsonl"),
        ("evals.json", b"{not json", "json"),
        ("evals.xlsx", b"PK", "ends in"),
        *((f"evals.{suffix}", b"", "the file is empty") for suffix in ("csv", "json", "jsonl")),
        ("evals.csv", None, "no such file"),
    ],
)
def test_a_file_that_is_missing_empty_or_not_what_its_name_says(
    name: str, content: bytes | None, what: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    error = refused(path, capsys)
    assert what in error
    assert name in error


@pytest.mark.parametrize(
    ("settings", "what"),
    [
        ({"form": "line"}, "the form 'line' is unknown"),
        ({"points": "some"}, "points is 'some'"),
        ({"bin_width": -1.0}, "bin_width is -1.0"),
        ({"bin_width": float("nan")}, "bin_width is nan"),
        ({"window": 4}, "window is 4"),
    ],
)
def test_a_config_is_checked_when_it_is_made(settings: dict[str, object], what: str) -> None:
    with pytest.raises(FrontierError, match=what):
        PaperConfig(**settings)  # type: ignore[arg-type]


def recipes(table: pl.DataFrame) -> pl.DataFrame:
    """The runs of n = 4 under two recipes, one of them lower."""
    one = table.filter(pl.col("rollouts_per_problem") == 4).with_columns(recipe=pl.lit("plain"))
    other = one.with_columns(
        recipe=pl.lit("filtered"), avg_at_4=pl.col("avg_at_4") + 0.08, run_id=pl.col("run_id") + "-filtered"
    )
    return pl.concat([one, other])


@pytest.mark.slow
def test_runs_that_differ_in_the_column_are_settings_of_their_own_in_every_table(table: pl.DataFrame) -> None:
    fitted = quick(recipes(table), group="recipe")
    assert [c.group for c in fitted.cells] == ["recipe = filtered", "recipe = plain"]
    assert fitted.regret(20_480)["group"].to_list() == ["recipe = filtered", "recipe = plain"]
    assert "recipe = filtered" in "\n".join(fitted.answer().lines())
    paper = fit_as_paper(recipes(table), PaperConfig(group="recipe"))
    assert set(paper.frontier_table()["group"]) == {"recipe = filtered"}


def test_without_the_column_they_are_one_curve_or_refused(table: pl.DataFrame) -> None:
    assert len(fit_as_paper(recipes(table)).curves) == 1
    with pytest.raises(FrontierError, match="have one seed, 0, at n = 4"):
        Frontier(recipes(table)).fit()
    for column, said in (("colour", "no column 'colour'"), ("seed", "cannot be grouped by")):
        with pytest.raises(FrontierError, match=said):
            Frontier(table, group=column).fit()


def timings(table: pl.DataFrame) -> pl.DataFrame:
    """Every step of every run: 36 device-seconds of sampling and updating, and 1,000 of evaluation."""
    steps = table.group_by("run_id").agg(step=pl.int_range(1, pl.col("step").max() + 1)).explode("step")
    phases = pl.DataFrame({"phase": ["sample", "update", "evaluate"], "device_seconds": [30.0, 6.0, 1000.0]})
    return steps.join(phases, how="cross").with_columns(seconds=pl.col("device_seconds") / 2)


def test_gpu_hours_are_those_of_all_steps_so_far_without_evaluation(table: pl.DataFrame) -> None:
    found = with_gpu_hours(table, timings(table))
    # 36 device-seconds a step are a hundredth of an hour.
    assert found["gpu_hours"].to_list() == pytest.approx((found["step"] / 100).to_list())


def test_runs_without_timings_are_refused_by_name(table: pl.DataFrame) -> None:
    times = timings(table)
    with pytest.raises(FrontierError, match=r"n16s1 .*160 .*no timings"):
        with_gpu_hours(table, times.filter(pl.col("run_id") != "n16s1"))
    with pytest.raises(FrontierError, match=r"n4s0 .*640 .* step 9"):
        with_gpu_hours(table, times.filter((pl.col("run_id") != "n4s0") | (pl.col("step") < 10)))
    with pytest.raises(FrontierError, match="the evals lack run_id"):
        with_gpu_hours(table.drop("run_id"), times)


@pytest.mark.slow
def test_a_fit_in_gpu_hours_from_two_files_of_runs_in_groups(
    table: pl.DataFrame, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    both = recipes(table)
    both.write_parquet(tmp_path / "evals.parquet")
    timings(both).write_parquet(tmp_path / "timings.parquet")
    more = ["--unit", "gpu_hours", "--timings", str(tmp_path / "timings.parquet"), "--group", "recipe"]
    assert fitted(tmp_path / "evals.parquet", *more) == 0
    said = capsys.readouterr().out
    assert "avg_at_4 against gpu_hours" in said
    assert "recipe = filtered" in said
    assert (tmp_path / "out" / "curves.svg").exists()


def test_what_the_makers_of_a_table_did_not_read_is_repeated(table: pl.DataFrame, tmp_path: Path) -> None:
    table.write_parquet(tmp_path / "evals.parquet")
    for unread, said in (([], []), ([{"source": "a.csv", "reason": "no JSON"}], ["not read: a.csv (no JSON)"])):
        (tmp_path / "manifest.json").write_text(json.dumps({"runs": [], "unread": unread}))
        assert [line.partition(" was ")[2] for line in not_read([tmp_path])] == said
    # Nested without end, it is none of ours.
    (tmp_path / "manifest.json").write_text("[" * 100_000)
    assert not_read([tmp_path]) == []


def test_a_setting_that_nobody_ran_is_refused_with_those_that_were_run(table: pl.DataFrame) -> None:
    for size, batch, said in ((None, 7, "no run has B = 7;"), (3, None, "no run has B_p = 3;")):
        with pytest.raises(FrontierError, match=f"{said} there are B_p = 8, n = 4, B = 32; B_p = 8, n = 16, B = 128"):
            of_setting(table, problems_per_batch=size, batch_rollouts=batch)


def test_a_folder_that_lacks_settings_says_which_of_how_many_runs_and_what_makes_its_table(tmp_path: Path) -> None:
    for rows, said in (
        ("a,,8\nb,16,\nc,,4\n", "lacks world_size of 2 runs, seed of 1 run: fill"),
        ("a,1,8\n", "filled in: "),
    ):
        (tmp_path / "runs.csv").write_text(f"run,world_size,seed\n{rows}")
        with pytest.raises(
            FrontierError, match=f"runs.csv there .*{said}.*doctor LOGS --runs .*runs.csv --out {tmp_path}"
        ):
            read_evals([tmp_path])
    (tmp_path / "posterior.json").touch()
    with pytest.raises(FrontierError, match=r"it is a fit, .*name what it was made from"):
        read_evals([tmp_path])


def test_a_folder_of_tables_of_any_names_is_fitted(table: pl.DataFrame, tmp_path: Path) -> None:
    (tmp_path / "below").mkdir()
    for n, path in ((4, tmp_path / "a.csv"), (16, tmp_path / "below" / "b.parquet")):
        own = table.filter(pl.col("rollouts_per_problem") == n)
        own.write_csv(path) if path.suffix == ".csv" else own.write_parquet(path)
    # Once more, in the other format; and what is no table of evaluations.
    table.filter(pl.col("rollouts_per_problem") == 16).write_csv(tmp_path / "below" / "b.csv")
    (tmp_path / "runs.csv").write_text("run,n\nx,4\n")
    assert read_evals([tmp_path]).drop("run_id").equals(tables.check(table, "evals", where="").drop("run_id"))
    # Where one is called evals, that one counts, and the others are named.
    table.filter(pl.col("rollouts_per_problem") == 4).write_parquet(tmp_path / "evals.parquet")
    with pytest.warns(InputWarning, match=r"a\.csv"):
        assert read_evals([tmp_path])["rollouts_per_problem"].unique().to_list() == [4]


def test_of_two_rewards_at_one_compute_of_one_run_the_later_row_counts_and_is_named(
    table: pl.DataFrame, tmp_path: Path
) -> None:
    plain_rows = table.drop("step")
    again = plain_rows.filter(pl.col("run_id") == "n4s1").tail(2).with_columns(pl.col("avg_at_4") * 0.5)
    pl.concat([plain_rows, again]).write_csv(tmp_path / "mine.csv")
    rows = [plain_rows["run_id"].to_list().index("n4s1") + 20, len(table) + 1]
    with pytest.warns(InputWarning, match=rf"n4s1.* 2 values .*row {rows[0]} and mine.csv row {rows[1]}"):
        found = read_evals([tmp_path / "mine.csv"])
    assert len(found) == len(table)
    last = found.filter(pl.col("run_id") == "n4s1").sort("rollouts").tail(2)
    assert last["avg_at_4"].to_list() == pytest.approx(again["avg_at_4"].to_list())
    # Nobody knows of points without a run whose they are: both count, and are named.
    pl.concat([plain_rows, again]).drop("run_id").write_csv(tmp_path / "mine.csv")
    with pytest.warns(InputWarning, match="2 values .*both count"):
        assert len(read_evals([tmp_path / "mine.csv"])) == len(table) + 2


def test_rows_with_an_empty_cell_are_left_out_and_counted(tmp_path: Path) -> None:
    path = tmp_path / "run.csv"
    cells = ["0.25", "", "NaN", "None", "null", " N/A ", "0.5"]
    path.write_text("step,reward,note\n" + "".join(f"{k},{cell},x\n" for k, cell in enumerate(cells)))
    with pytest.warns(InputWarning, match="5 of 7 rows left out, whose reward is empty"):
        x, y = read_curve(path, "step", "reward")
    assert (x.tolist(), y.tolist()) == ([0, 6], [0.25, 0.5])
    path.write_text("step,reward\n1,\n2,NaN\n")
    with pytest.raises(FrontierError, match="every row has an empty reward"):
        read_curve(path, "step", "reward")


@given(cell=st.text(st.characters(codec="ascii", exclude_categories=["Cc"], exclude_characters='",'), min_size=1))
def test_a_cell_is_a_number_or_empty_or_is_named_with_its_row(cell: str) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "run.csv"
        path.write_text(f"step,reward\n1,0.5\n2,{cell}\n")
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always", InputWarning)
            problem = ""
            try:
                read = len(read_curve(path, "step", "reward")[0])
            except FrontierError as error:
                read, problem = 0, str(error)
    assert read + len(said) == 2 or "row 2" in problem
