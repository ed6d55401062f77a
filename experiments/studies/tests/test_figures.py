"""Figures of the papers: their files, paired statistics, what is drawn of tables, and one trained from nothing."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import yaml
from scipy import stats

from experiments.errors import ExperimentError
from experiments.running.cell_folder import content
from experiments.settings import find
from experiments.studies.figures import cells, page, paper, reading
from experiments.studies.figures.figure import HERE, Comparison, Figure, Side, figure_of, load, names
from experiments.studies.panel.study import Unit
from experiments.tests.made import ROOT

EVERY = [figure_of(name) for name in names()]
PLAN = (HERE / "plan.md").read_text()


def written(path: Path, **changes: Any) -> Path:
    """A figure of two arms as a file."""
    plain = {
        "title": "made",
        "shows": "something",
        "every": {"rollouts": 4096},
        "arms": {"small": {"problems_per_batch": [4]}, "large": {"problems_per_batch": [16]}},
        "compare": [{"says": "small less large", "of": {"arm": "small"}, "less": {"arm": "large"}, "paper": "above"}],
    }
    path.write_text(yaml.safe_dump({**plain, **changes}, sort_keys=False))
    return path


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"every": {"rolouts": 4096}}, "every has no setting 'rolouts' (did you mean 'rollouts'?)"),
        ({"draw": "lines"}, "draw is 'lines'"),
        ({"every": {"rollouts": 5000}}, "rollouts is 5000, which is no evaluated end of batches of 32"),
        ({"every": {"evaluate_every": 48}}, "arm 'small': evaluate_every is 48 rollouts"),
        (
            {"compare": [{"says": "x", "of": {"arm": "smal"}, "paper": "above"}]},
            "no arm 'smal' (did you mean 'small'?)",
        ),
        ({"compare": [{"says": "x", "of": {"arm": "small", "of": "hard"}, "paper": "above"}]}, "evaluate lacks 'hard'"),
        ({"arms": {"small": {"base": "5M"}}, "compare": []}, "base is '5M'; common.yaml has 0.4M, "),
        ({"arms": {"small": {"base": "gpt2"}}, "compare": [], "evaluate": ["hard"]}, "no problem sets for train"),
    ],
)
def test_a_file_that_says_what_no_cell_can_have_is_refused_with_what_was_meant(
    changes: dict[str, Any], said: str, tmp_path: Path
) -> None:
    load(written(tmp_path / "made-1.yaml"))
    with pytest.raises(ExperimentError) as refused:
        load(written(tmp_path / "made-1.yaml", **changes))
    assert said in str(refused.value)
    assert "made-1.yaml" in str(refused.value)


def test_a_figure_is_found_by_each_of_its_numbers_and_a_near_name_is_offered() -> None:
    assert figure_of("playbook-19").name == "playbook-9"
    with pytest.raises(ExperimentError, match="did you mean 'playbook-13'"):
        figure_of("playbok-13")


@pytest.mark.parametrize("figure", EVERY, ids=lambda figure: figure.name)
def test_every_cell_of_a_figure_can_be_made_of_committed_inputs(figure: Figure) -> None:
    inputs: dict[Any, cells.Inputs] = {}
    for planned in figure.cells:
        if (planned.unit.base_seed, planned.seed) != (figure.base_seeds[0], figure.seeds[0]) or planned.how.base:
            continue
        key = planned.unit, repr(planned.how.sampling)
        inputs[key] = inputs.get(key) or cells.Inputs.of(*(planned.unit, planned.how.sampling))
        # Sets that are made for figures are measured when they are needed.
        cell, problems = inputs[key].cell(replace(planned, how=planned.how.model_copy(update={"train": None})))
        cell.run.check(cell.learner)
        assert cell.rollouts == planned.rollouts
        assert cell.learner.learning_rate == planned.learning_rate
        assert problems.group_by("split").len().sort("split")["len"].to_list() == [256, 300]


def test_all_figures_fit_ten_cpu_hours_and_those_that_decide_have_their_resolution_in_the_plan() -> None:
    rows, hours = page.costs()
    assert hours <= 10
    assert f"**{hours:.1f} CPU-hours**" in PLAN
    deciding = [figure for figure in EVERY if figure.decides]
    assert len(deciding) == 6
    for figure in deciding:
        assert len({(cell.unit, cell.seed) for cell in figure.cells}) >= 8
        cost = next(row for row in rows if row[0] == figure.name)
        assert f"| {figure.name} | {cost[2]} | {cost[4]} |" in PLAN
    for row in page.resolvables():
        assert f"| {' | '.join(row)} |" in PLAN


def rows_of(end: Callable[[str, int, int, int], float], pairs: int = 4) -> pl.DataFrame:
    """Finished cells with two evaluations: of arm, n, base model and seed."""
    rows = [
        {
            "definition": f"{arm}{n}{base}",
            "arm": arm,
            "set": "easy",
            "base": "",
            "base_seed": base,
            "seed": 7200,
            "rollouts_per_problem": n,
            "problems_per_batch": 8,
            "rate_factor": 1.0,
            "budget": 4096,
            "problem_set": "",
            "rollouts": at,
            "questions": 300,
            "samples": 4,
            "avg_at_4": 0.1 if at == 0 else end(arm, n, base, at),
        }
        for arm in ("a", "b")
        for n in (2, 8, 32)
        for base in range(pairs)
        for at in (0, 1024, 2048, 4096)
    ]
    return pl.DataFrame(rows)


def comparison(paper: str = "above", **changes: Any) -> Comparison:
    plain = {"says": "a less b", "of": Side(arm="a"), "less": Side(arm="b"), "paper": paper}
    return Comparison.model_validate({**plain, **changes})


def test_the_interval_is_that_of_a_paired_t_test_and_only_whole_pairs_count() -> None:
    rng = np.random.default_rng(0)
    own = {(arm, n, base): rng.normal(0.5, 0.1) for arm in "ab" for n in (2, 8, 32) for base in range(5)}
    rows = rows_of(lambda arm, n, base, at: own[arm, n, base], pairs=5).filter(
        (pl.col("arm") == "a") | (pl.col("base_seed") < 4)
    )
    found = reading.compared(comparison(of=Side(arm="a", rollouts_per_problem=8), less=Side(arm="b")), rows)
    assert found is not None
    ones = [own["a", 8, base] for base in range(4)]
    others = [np.mean([own["b", n, base] for n in (2, 8, 32)]) for base in range(4)]
    known = stats.ttest_rel(ones, others).confidence_interval(0.95)
    assert found.estimate.interval == pytest.approx((known.low, known.high))
    assert (found.estimate.units, found.bases) == (4, 4)
    assert reading.compared(comparison(sets=("hard",)), rows) is None


@pytest.mark.parametrize(
    ("values", "above", "equal"),
    [
        ([0.05, 0.06, 0.055], "same direction", "opposite"),
        ([-0.05, -0.06, -0.055], "opposite", "opposite"),
        ([0.001, -0.001, 0.0], "not resolved", "same direction"),
        ([0.2, -0.2, 0.1], "not resolved", "not resolved"),
    ],
)
def test_a_verdict_is_by_where_the_interval_lies(values: list[float], above: str, equal: str) -> None:
    estimate = reading.paired(values)
    assert reading.word_of(comparison("above"), estimate) == above
    assert reading.word_of(comparison("equal"), estimate) == equal
    mirrored = reading.paired([-value for value in values])
    assert reading.word_of(comparison("below"), mirrored) == above


def test_measures_read_what_was_put_in() -> None:
    def end(arm: str, n: int, base: int, at: int) -> float:
        octaves = n.bit_length() - 1
        return 0.5 + (0.02 * octaves if arm == "a" else -0.01 * (octaves - 3) ** 2) + (0.0 if at > 1024 else 0.1)

    rows = rows_of(end)

    def of(measure: str, arm: str, **side: Any) -> float:
        (value,) = set(np.round(list(reading.of_side(measure, rows, Side(arm=arm, **side)).values()), 9))
        return float(value)

    assert of("slope", "a") == pytest.approx(0.02)
    assert of("spread", "a") == pytest.approx(0.08)
    assert of("spread", "a", over="problems_per_batch") == 0
    assert of("top", "b") == pytest.approx(3)
    assert of("end", "a", rollouts_per_problem=8) == pytest.approx(0.56)
    # At half of C the end is the mean of the first two evaluations, of which one is 0.1 above the other.
    assert of("end", "a", rollouts_per_problem=8, upto=0.5) == pytest.approx(0.61)
    assert of("area", "a", rollouts_per_problem=8) == pytest.approx(0.56 + 0.1 / 3)


def test_the_smallest_effect_is_resolved_in_four_studies_of_five() -> None:
    effect, pairs = reading.resolvable(8), 8
    drawn = effect + np.random.default_rng(0).standard_normal((40_000, pairs))
    low = drawn.mean(axis=1) - stats.t.ppf(0.975, pairs - 1) * drawn.std(axis=1, ddof=1) / np.sqrt(pairs)
    assert (low > 0).mean() == pytest.approx(0.8, abs=0.01)


def test_the_gallery_is_made_of_the_committed_tables_and_the_index_leads_to_every_figure() -> None:
    assert page.text() == page.PAGE.read_text()
    index = (ROOT / "docs" / "papers.md").read_text()
    for figure in EVERY:
        for name in (figure.name, *figure.also):
            assert f'<a id="{name}"></a>' in page.PAGE.read_text()
            assert f"(figures.md#{name})" in index, name
        if figure.runnable:
            assert f"`{page.COMMAND} {figure.name}`" in index


def test_a_figure_has_a_preset_at_the_papers_scale(tmp_path: Path) -> None:
    path, (preset,) = paper.write(figure_of("playbook-13"), tmp_path)
    assert set(find(path, preset=preset.name)[-1]) >= {"sweep", "difficulty", "base"}
    sizes = {name: (own.rollouts_per_problem, own.rollouts) for name, own in preset.sweep.items()}
    assert set(sizes.values()) == {((32, 256), 4_194_304)}
    assert preset.difficulty is not None
    assert [own.train for own in preset.difficulty.sets.values()] == [128, 512, 2048, 8192]


@pytest.mark.parametrize("figure", EVERY, ids=lambda figure: figure.name)
def test_presets_at_the_papers_scale_load_and_have_every_cell_but_those_of_other_base_models(
    figure: Figure, tmp_path: Path
) -> None:
    for part in page.parts_of(figure):
        path, presets = paper.write(part, tmp_path)
        own = [cell for cell in part.cells if cell.unit.base_seed == part.base_seeds[0] and not cell.how.base]
        grids = [sweep for preset in presets for sweep in preset.sweep.values()]
        assert sum(len(each.grid()) * len(each.seeds) * len(each.rate_factors) for each in grids) == len(own)
        said = list(paper.advice(part, path, presets))
        assert [line for line in said if line.startswith("  preset: ")]
    assert figure.page_of or len(presets) == len({preset.name for preset in presets})


def test_mixtures_and_samplings_are_presets_of_their_own_at_the_papers_scale(tmp_path: Path) -> None:
    path, (alone, two, three) = paper.write(figure_of("playbook-14"), tmp_path)
    assert list(alone.sweep) == ["easy-easy", "easy-hard"]
    assert [source.path for source in (two.problems[0], three.problems[0]) if hasattr(source, "path")] == [
        "playbook-14-easy-hard.parquet",
        "playbook-14-easy-hard-very-easy.parquet",
    ]
    said = list(paper.advice(figure_of("playbook-14"), path, [alone, two, three]))
    assert "--interval 0.3 0.6 --train 406 " in said[1]
    _, (short, long) = paper.write(figure_of("scalerl-9"), tmp_path)
    assert (short.sampling.max_new_tokens, long.sampling.max_new_tokens) == (8192, 16384)


def test_cells_of_another_base_model_are_others_and_pool_to_a_pair_for_each(tmp_path: Path) -> None:
    arms = {"own": {}, "larger": {"base": "0.4M"}, "other": {"base": "gpt2"}}
    pooled = {"says": "x", "of": {}, "less": {"upto": 0.25}, "paper": "above"}
    figure = load(written(tmp_path / "made-1.yaml", base_seeds=[0], arms=arms, compare=[pooled]))
    assert len({cell.definition for cell in figure.cells}) == 3
    end = {"": 0.5, "0.4M": 0.6, "gpt2": 0.8}
    rows = pl.concat(
        rows_of(lambda arm, n, base, at, own=own: end[own] if at > 1024 else 0.4, pairs=1).with_columns(  # type: ignore[misc]
            base=pl.lit(own), definition=pl.col("definition") + own
        )
        for own in end
    )
    found = reading.compared(figure.compare[0], rows.filter(pl.col("arm") == "a"))
    assert found is not None
    assert (found.estimate.units, found.bases) == (3, 3)
    assert found.estimate.value == pytest.approx(np.mean([0.1, 0.2, 0.4]))


@pytest.mark.slow("trains")
def test_a_base_model_is_made_once_and_the_same_elsewhere(tmp_path: Path) -> None:
    unit = Unit(task="chains", problem_set="easy", base_seed=0)
    folders = [cells.made("gpt2", unit, tmp_path / where, measured=False) / "chains-0" for where in ("a", "a", "b")]
    assert len({content(folder / "base") for folder in folders}) == 1
    assert "GPT2LMHeadModel" in (folders[0] / "base" / "config.json").read_text()
    assert not list(folders[0].glob(".*"))
    inputs = cells.Inputs.of(unit, {}, folders[0].parent)
    assert list(inputs.models) == [content(folders[0] / "base")]


@pytest.mark.slow("trains")
def test_a_figure_is_made_from_nothing_and_again_without_training(tmp_path: Path) -> None:
    figure = figure_of("playbook-11").micro()
    results, work = tmp_path / "results", tmp_path / "work"
    # A command that ends early has kept its first cell.
    first = next(cells.train(figure, work, results))
    assert "min left" in first
    lines = list(cells.train(figure, work, results))
    assert len(lines) == len(figure.cells) - 1
    assert list(cells.train(figure, work, results)) == []
    rows = cells.read(results)
    assert rows["definition"].n_unique() == rows["run_id"].n_unique() == len(figure.cells)
    assert rows.filter(pl.col("problem_set") == "train")["samples"].unique().to_list() == [16]
    assert "2 pairs, 1 base models" in reading.paragraph(figure, rows, reading.came_out(figure, rows))
    for name in ("one", "other"):
        page.draw(figure, tmp_path / name, rows)
    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "other.svg").read_bytes()
