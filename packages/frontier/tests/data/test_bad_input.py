"""Bad input gives a flag or one clear error, never a traceback and never a number that means nothing."""

from pathlib import Path

import numpy as np
import polars as pl
import pytest
from isocompute.frontier import Frontier, FrontierError, PaperConfig, fit_as_paper, read_evals
from isocompute.frontier.cli import main
from isocompute.frontier.contract import tables

pytestmark = pytest.mark.slow("a million rows")


def fitted(source: Path, capsys: pytest.CaptureFixture[str], *more: str) -> tuple[int, str, str]:
    code = main(["fit", str(source), "--out", str(source.parent / "out"), "--method", "paper", *more])
    said = capsys.readouterr()
    return code, said.out, said.err


def refused(source: Path, capsys: pytest.CaptureFixture[str], *more: str) -> str:
    code, _, error = fitted(source, capsys, *more)
    assert code == 2
    lines = [line for line in error.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1
    assert "Traceback" not in error
    assert not (source.parent / "out").exists()
    return lines[0]


def test_one_point_is_a_result_with_a_reason(
    table: pl.DataFrame, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "evals.csv"
    table.head(1).write_csv(path)
    code, said, _ = fitted(path, capsys)
    assert code == 0
    assert "no fit: fewer than three evaluations" in said


def test_a_sweep_that_cannot_be_fitted_is_one_sentence_and_writes_nothing(
    table: pl.DataFrame, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table.filter(pl.col("rollouts") == 0).write_csv(tmp_path / "evals.csv")
    assert main(["fit", str(tmp_path / "evals.csv"), "--out", str(tmp_path / "out")]) == 2
    assert "none of the 4 runs can be fitted" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_one_short_curve_does_not_spoil_the_others(table: pl.DataFrame) -> None:
    short = table.filter((pl.col("rollouts_per_problem") == 16) | (pl.col("rollouts") <= 1024))
    assert [c.parameters is None for c in fit_as_paper(short).curves] == [True, False]
    fitted = Frontier(short).fit()
    assert fitted.best(20_480).cell.rollouts_per_problem == 16


@pytest.mark.parametrize("form", ["exp", "hill", "power"])
@pytest.mark.parametrize("level", [0.0, 0.4, 1.0])
def test_a_constant_reward_levels_off_where_it_is(table: pl.DataFrame, form: str, level: float) -> None:
    flat = table.with_columns(avg_at_4=pl.lit(level))
    for c in fit_as_paper(flat, PaperConfig(form=form)).curves:
        assert c.parameters is not None
        assert c.parameters(20_000.0) == pytest.approx(level, abs=0.01)


@pytest.mark.parametrize("level", [0.0, 1.0])
def test_where_nothing_was_gained_nothing_is_claimed(table: pl.DataFrame, level: float) -> None:
    fitted = Frontier(table.with_columns(avg_at_4=pl.lit(level))).fit()
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
    table: pl.DataFrame, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "evals.csv"
    doubled = pl.concat([table, table.head(3)])
    doubled.write_csv(path)
    assert "repeats the key" in refused(path, capsys)
    doubled.drop("run_id", "step").write_csv(path)
    code, _, said = fitted(path, capsys)
    assert code == 0
    assert "3 rows occur more than once and count once" in said
    both = [read_evals([tmp_path / "evals.csv"]), table.drop("run_id", "step")]
    first, second = (fit_as_paper(t) for t in both)
    assert [c.parameters for c in first.curves] == [c.parameters for c in second.curves]


def test_units_that_are_mixed_are_refused(
    table: pl.DataFrame, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "evals.csv"
    in_thousands = pl.when(pl.col("rollouts_per_problem") == 4).then(pl.col("rollouts") // 1000).otherwise("rollouts")
    table.with_columns(rollouts=in_thousands).write_csv(path)
    assert "mix units of compute" in refused(path, capsys)


def test_a_source_without_the_unit_asked_for_is_refused(
    table: pl.DataFrame, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "evals.csv"
    table.write_csv(path)
    assert "gpu_hours" in refused(path, capsys, "--unit", "gpu_hours")


def test_rows_in_any_order_give_the_same(table: pl.DataFrame, tmp_path: Path) -> None:
    for name, rows in (("a.csv", table), ("b.csv", table.reverse())):
        rows.write_csv(tmp_path / name)
    first, second = (read_evals([tmp_path / name]) for name in ("a.csv", "b.csv"))
    assert first.equals(second)


def test_a_table_in_several_chunks_is_read(table: pl.DataFrame, tmp_path: Path) -> None:
    # polars reads a longer CSV in chunks, and evaluates a literal once in each.
    chunked = pl.concat([table.head(40), table.tail(44)], rechunk=False)
    assert chunked.n_chunks() == 2
    assert tables.check(chunked, "evals", where="memory").equals(tables.check(table, "evals", where="memory"))


def test_two_hundred_thousand_rows_are_fitted() -> None:
    # 4 curves × 50 seeds × 1,000 evaluations: memory goes with distinct compute, not with rows times candidates.
    rng = np.random.default_rng(0)
    compute = np.tile(np.arange(1, 1001) * 4096, 50)
    parts = [
        pl.DataFrame(
            {
                "rollouts": compute,
                "seed": np.repeat(np.arange(50), 1000),
                "avg_at_4": 0.6 - 0.2 * np.exp(-compute / (n * 3e4)) + rng.normal(0, 0.014, len(compute)),
            }
        ).with_columns(
            rollouts_per_problem=pl.lit(n),
            problems_per_batch=pl.lit(8),
            problem_set=pl.lit("easy"),
            split=pl.lit("validation"),
            questions=pl.lit(300),
            samples=pl.lit(4),
        )
        for n in (4, 8, 16, 32)
    ]
    found = fit_as_paper(pl.concat(parts))
    assert [c.parameters.asymptote for c in found.curves if c.parameters] == pytest.approx([0.6] * 4, abs=1e-3)
    assert [c.parameters.scale for c in found.curves if c.parameters] == pytest.approx(
        [1.2e5, 2.4e5, 4.8e5, 9.6e5], rel=0.02
    )


def test_distinct_compute_beyond_what_a_grid_holds_is_joined_with_its_neighbours() -> None:
    rng = np.random.default_rng(0)
    compute = np.sort(rng.uniform(1e3, 4e6, 30_000))
    table = pl.DataFrame(
        {"rollouts": compute, "avg_at_4": 0.6 - 0.2 * np.exp(-compute / 4e5) + rng.normal(0, 0.014, len(compute))}
    ).with_columns(
        rollouts_per_problem=pl.lit(8),
        problems_per_batch=pl.lit(8),
        problem_set=pl.lit("easy"),
        split=pl.lit("validation"),
        questions=pl.lit(300),
        samples=pl.lit(4),
        seed=pl.lit(0),
    )
    (found,) = fit_as_paper(table).curves
    assert found.parameters is not None
    assert found.parameters.asymptote == pytest.approx(0.6, abs=2e-3)
    assert found.parameters.scale == pytest.approx(4e5, rel=0.03)


@pytest.mark.parametrize(
    ("name", "content", "what"),
    [
        ("evals.csv", b"", "empty"),
        ("evals.parquet", b"", "parquet"),
        ("evals.jsonl", b"", "evals.jsonl"),
        ("evals.parquet", b"rollouts,avg_at_4\n1,0.5\n", "parquet"),
        ("evals.csv", b"PAR1\x00\x01\xff\xfe\x00garbage\x00PAR1", "evals.csv"),
        ("evals.jsonl", b"rollouts,avg_at_4\n1,0.5\n", "jsonl"),
        ("evals.json", b"{not json", "json"),
        ("evals.xlsx", b"PK", "ends in"),
        ("evals.csv", b"rollouts,avg_at_4\n", "row"),
    ],
)
def test_a_file_that_is_empty_or_not_what_its_name_says(
    name: str, content: bytes, what: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    error = refused(path, capsys)
    assert what in error
    assert name in error


def test_a_folder_without_a_table_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "runs"
    folder.mkdir()
    assert "holds no evals.parquet" in refused(folder, capsys)


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
    with pytest.raises(TypeError, match="unknown"):
        PaperConfig(unknown=1)  # type: ignore[call-arg]
