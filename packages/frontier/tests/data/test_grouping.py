import json
from pathlib import Path

import polars as pl
import pytest
from isocompute.frontier import FitConfig, FrontierError, fit, prescribe
from isocompute.frontier.cli import main


def recipes(table: pl.DataFrame) -> pl.DataFrame:
    """The runs of n = 4 under two recipes, one of them lower."""
    one = table.filter(pl.col("rollouts_per_problem") == 4).with_columns(recipe=pl.lit("plain"))
    other = one.with_columns(
        recipe=pl.lit("filtered"), avg_at_4=pl.col("avg_at_4") + 0.08, run_id=pl.col("run_id") + "-filtered"
    )
    return pl.concat([one, other])


def test_runs_that_differ_in_the_column_are_curves_of_their_own(table: pl.DataFrame, tmp_path: Path) -> None:
    found = fit(recipes(table), FitConfig(form="exp", bootstrap=40, group="recipe"))
    assert [c.curve.group for c in found.curves] == ["recipe = filtered", "recipe = plain"]
    assert all(len(c.curve.compute) == 42 for c in found.curves)
    assert set(found.frontier_table()["group"]) == {"recipe = filtered"}
    found.save(tmp_path)
    document = json.loads((tmp_path / "fits.json").read_text())
    assert [c["group"] for c in document["curves"]] == ["recipe = filtered", "recipe = plain"]
    # From disk each curve has the refits that are its own.
    kept, own = (prescribe(source, budget=20_000) for source in (tmp_path, found))
    for a, b in zip(kept.candidates, own.candidates, strict=True):
        assert (a.probability, a.reward_low) == (b.probability, pytest.approx(b.reward_low))


def test_without_the_column_they_are_one_curve(table: pl.DataFrame) -> None:
    assert len(fit(recipes(table), FitConfig(form="exp", bootstrap=20)).curves) == 1


def test_crossovers_name_the_group(table: pl.DataFrame) -> None:
    named = table.with_columns(recipe=pl.col("rollouts_per_problem").replace_strict({4: "a", 16: "b"}))
    same_n = named.with_columns(rollouts_per_problem=pl.lit(4))
    (crossing,) = fit(same_n, FitConfig(form="exp", bootstrap=40, group="recipe")).crossovers
    assert (crossing.before_name, crossing.after_name) == ("n = 4, recipe = a", "n = 4, recipe = b")
    assert crossing.as_dict()["from"] == crossing.as_dict()["to"] == 4


def test_the_command_groups_a_plain_file(
    table: pl.DataFrame, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "mine.csv"
    recipes(table).drop("run_id", "step").write_csv(path)
    arguments = ["fit", str(path), "--out", str(tmp_path / "out"), "--form", "exp", "--bootstrap", "20"]
    assert main([*arguments, "--group", "recipe"]) == 0
    assert "recipe = filtered" in capsys.readouterr().out
    assert (tmp_path / "out" / "curves.svg").exists()
    assert main([*arguments, "--group", "colour"]) == 2
    assert "there is no column 'colour' to group by" in capsys.readouterr().err
    with pytest.raises(FrontierError, match="no column 'colour'"):
        fit(table, FitConfig(group="colour"))


@pytest.mark.parametrize("column", ["seed", "rollouts", "rollouts_per_problem"])
def test_columns_that_tell_runs_apart_already_are_no_groups(
    column: str, table: pl.DataFrame, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table.write_csv(tmp_path / "evals.csv")
    assert main(["fit", str(tmp_path / "evals.csv"), "--out", str(tmp_path / "out"), "--group", column]) == 2
    assert f"error: curves cannot be grouped by {column!r}" in capsys.readouterr().err
    with pytest.raises(FrontierError, match="cannot be grouped by"):
        fit(table, FitConfig(group=column))
