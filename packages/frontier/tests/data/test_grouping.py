from pathlib import Path

import polars as pl
import pytest
from isocompute.frontier import Frontier, FrontierError, PaperConfig, fit_as_paper
from isocompute.frontier.cli import main


def recipes(table: pl.DataFrame) -> pl.DataFrame:
    """The runs of n = 4 under two recipes, one of them lower."""
    one = table.filter(pl.col("rollouts_per_problem") == 4).with_columns(recipe=pl.lit("plain"))
    other = one.with_columns(
        recipe=pl.lit("filtered"), avg_at_4=pl.col("avg_at_4") + 0.08, run_id=pl.col("run_id") + "-filtered"
    )
    return pl.concat([one, other])


@pytest.mark.slow
def test_runs_that_differ_in_the_column_are_settings_of_their_own_in_every_table(table: pl.DataFrame) -> None:
    fitted = Frontier(recipes(table), group="recipe").fit()
    assert [c.group for c in fitted.cells] == ["recipe = filtered", "recipe = plain"]
    assert fitted.regret(20_480)["group"].to_list() == ["recipe = filtered", "recipe = plain"]
    assert "recipe = filtered" in "\n".join(fitted.answer().lines())
    paper = fit_as_paper(recipes(table), PaperConfig(group="recipe"))
    assert set(paper.frontier_table()["group"]) == {"recipe = filtered"}


def test_without_the_column_they_are_one_curve_or_refused(table: pl.DataFrame) -> None:
    assert len(fit_as_paper(recipes(table)).curves) == 1
    with pytest.raises(FrontierError, match="are both n = 4"):
        Frontier(recipes(table)).fit()


@pytest.mark.slow
def test_the_command_groups_a_plain_file(
    table: pl.DataFrame, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "mine.csv"
    recipes(table).drop("run_id", "step").write_csv(path)
    arguments = ["fit", str(path), "--out", str(tmp_path / "out"), "--method", "paper"]
    assert main([*arguments, "--group", "recipe"]) == 0
    assert "recipe = filtered" in capsys.readouterr().out
    assert (tmp_path / "out" / "curves.svg").exists()
    assert main([*arguments, "--group", "colour"]) == 2
    assert "there is no column 'colour' to group by" in capsys.readouterr().err
    with pytest.raises(FrontierError, match="no column 'colour'"):
        Frontier(table, group="colour").fit()


@pytest.mark.parametrize("column", ["seed", "rollouts", "rollouts_per_problem"])
def test_columns_that_tell_runs_apart_already_are_no_groups(
    column: str, table: pl.DataFrame, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table.write_csv(tmp_path / "evals.csv")
    assert main(["fit", str(tmp_path / "evals.csv"), "--out", str(tmp_path / "out"), "--group", column]) == 2
    assert f"error: curves cannot be grouped by {column!r}" in capsys.readouterr().err
    with pytest.raises(FrontierError, match="cannot be grouped by"):
        Frontier(table, group=column).fit()
