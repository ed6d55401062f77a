"""The panel: its grid, its committed tables, and the page of findings, which is made of them."""

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from isocompute.rollout.contract import tables

from experiments.errors import ExperimentError
from experiments.running.cells import Design, Generation, Rates
from experiments.studies.panel import cards, claims, findings, others, questions, runs, study, whole
from experiments.studies.panel.prepare import INPUTS, RESULTS, preset_of
from experiments.studies.panel.statistics import Verdict
from experiments.studies.panel.study import UNITS, unit_of
from experiments.tests.made import origin_of


@pytest.fixture
def design() -> Design:
    unit = unit_of("hard-0")
    preset = preset_of(unit)
    origin = origin_of(problem_set="hard", base_model="chains-0", generation=Generation.of(preset))
    return Design(preset=preset, sweep=preset.sweep_of("hard"), origin=origin)


RATES = Rates(rule="sqrt", found={(8, 8): 1e-4})


def test_warm_up_covers_the_same_rollouts(design: Design) -> None:
    for cell in design.cells(RATES):
        assert cell.learner.optimizer.warmup_steps * cell.run.batch_rollouts == 1024


NAMES = [unit.name for unit in UNITS]


def test_every_unit_is_committed_with_its_inputs_and_the_commit_that_trained_it() -> None:
    assert len(set(NAMES)) == 12
    with pytest.raises(ExperimentError, match="the panel has no unit 'hard'; it has hard-0"):
        unit_of("hard")
    assert {path.parent.name for path in RESULTS.glob("*/finished.json")} == set(NAMES)
    bases = {path.parent.name for path in INPUTS.glob("*/base.json")}
    assert bases == {f"{unit.task}-{unit.base_seed}" for unit in UNITS}
    commit = json.loads((RESULTS.parent / "frozen.json").read_text())["commit"]
    assert commit in (RESULTS.parent / "README.md").read_text()


@pytest.mark.parametrize("unit", NAMES)
def test_every_run_of_the_tables_is_a_cell_and_every_cell_has_its_rows(unit: str) -> None:
    folder = RESULTS / unit
    cells = {cell["run_id"]: cell for cell in json.loads((folder / "cells.json").read_text())["cells"]}
    evals = tables.read(folder / "evals.parquet", "evals")
    trained = {run for run, cell in cells.items() if cell["purpose"] != "pilot"}
    assert set(evals["run_id"]) == trained
    for name in ("pass_rates", "training_pass_rates"):
        assert set(tables.read(folder / f"{name}.parquet", "pass_rates")["run_id"]) <= trained
    ledger = tables.read(folder / "ledger.parquet", "ledger").filter(pl.col("cohort") == "trained")
    used = dict(ledger.group_by("run_id").agg(pl.col("rollouts").sum()).iter_rows())
    for run in trained:
        cell = cells[run]
        size = cell["rollouts_per_problem"] * cell["problems_per_batch"]
        # A branch pays for its own steps only.
        assert used[run] == (cell["steps"] - cell["first_step"]) * size
        assert cell["branch_of"] is None or cell["branch_of"] in trained


ONE = {"rollouts_per_problem": 8, "probability_best": 0.93, "near": [8]}
TWO = {"rollouts_per_problem": 2, "probability_best": 0.51, "near": [2, 8]}
FOUND = {"count": 3, "together": [ONE] * 3, "alone": [TWO, ONE, ONE], "shuffled": [ONE, TWO, TWO]}
SAID = (
    "3 choices of 3: n = 8 (3), P(best) 93% to 93%; 3 alone: n = 8 (2), undecided between n = 2 and 8 (1), "
    "P(best) 51% to 93%; 3 with n shuffled, as if it had no effect: P(best) 51%, one in twenty 89%"
)


def test_answers_are_counted() -> None:
    assert others.summary(FOUND) == SAID
    document = json.loads(others.FILE.read_text())
    assert document["sentence"] == others.summary(document)


def test_n_is_shuffled_among_the_runs_of_a_base_model_and_rates_stay_in_order() -> None:
    columns = ["base_model", "rollouts_per_problem", "learning_rate", "rollouts", "step", "run_id", "avg_at_4"]
    rows = [
        (base, n, n * rate, at, at // n, f"{base}-{n}-{rate}", (n + rate) / 100 + at / 1000)
        for base in ("a", "b")
        for n in (2, 8, 32)
        for rate in (0.1, 0.2)
        for at in (0, 64)
    ]
    evals, orders = pl.DataFrame(rows, schema=columns, orient="row"), set()
    for seed in range(8):
        found = others.shuffle(evals, seed)
        settings = evals.columns[:-1]
        assert found.select(settings).sort(settings).equals(evals.select(settings).sort(settings))
        was = []
        for row in found.iter_rows(named=True):
            rate = row["learning_rate"] / row["rollouts_per_problem"]
            was.append(round((row["avg_at_4"] - row["rollouts"] / 1000) * 100 - rate))
        shuffled = found.with_columns(was=pl.Series(was)).group_by("base_model", "rollouts_per_problem").agg("was")
        # All runs of an n have the same other one, and no two n.
        assert all(len(set(each)) == 1 for each in shuffled["was"])
        assert sorted(each[0] for each in shuffled["was"]) == [2, 2, 8, 8, 32, 32]
        orders.add(tuple(was))
    assert len(orders) > 4


COMMITTED = json.loads(findings.NUMBERS.read_text())
PAGE = (findings.DOCS / "findings.md").read_text()
IDS = [*range(1, 31), *(f"N{k}" for k in range(1, 9))]


@pytest.mark.slow
def test_the_committed_page_and_figures_are_made_of_the_committed_numbers(tmp_path: Path) -> None:
    for path in findings.drawn(COMMITTED, tmp_path):
        assert path.read_bytes() == (findings.DOCS / path.name).read_bytes(), path.name


@pytest.mark.slow
def test_the_readme_says_what_survives_of_the_findings() -> None:
    text = " ".join((findings.ROOT / "README.md").read_text().split())
    assert findings.front(COMMITTED["units"]) in text
    assert " ".join(findings.front(COMMITTED["units"]).split()) in " ".join(PAGE.split())


@pytest.mark.slow("starts a program")
def test_an_own_script_finds_the_numbers_of_the_page_in_the_tables() -> None:
    script = findings.DOCS / "findings_check.py"
    found = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=False)
    assert (found.returncode, found.stderr) == (0, "")
    assert "isocompute" not in script.read_text()


@pytest.mark.slow
def test_no_run_that_failed_makes_a_shift_certain() -> None:
    """Three of five n collapsed in hard-1 under the √B rule: its own interval must be wide."""
    for reading in ("as pinned", "anchor: × 2"):
        _, low, high = COMMITTED["units"]["hard-1"]["questions"]["Q1"][reading]
        assert high - low > 0.5


READS = {name: cards.card(name, COMMITTED["units"]) for name in questions.QUESTIONS}


def test_every_verdict_has_a_card_of_all_that_could_be_read_otherwise() -> None:
    for name, reads in READS.items():
        fields = {each.field for each in reads}
        assert {"", "edges"} <= fields or name == "Q14"
        assert {"units", "estimator"} & fields
        assert len({each.name for each in reads}) == len(reads) >= 6
    assert {each.field for each in READS["Q1"]} == {"", *cards.FIELDS}
    # A card of readings that agree keeps their verdict, and one that differs takes it away.
    first = READS["Q2"][0]
    assert cards.survives([first, first]) is first.verdict
    others = [replace(first, verdict=verdict) for verdict in (Verdict.CONTRADICTED, Verdict.SUPPORTED)]
    assert cards.survives(others) is Verdict.UNDECIDED
    assert cards.counted(others) == "supported in 1, contradicted in 1 of 2 readings"


def test_what_was_pinned_stays_as_it_was() -> None:
    own = questions.pinned()
    assert claims.effect(own["Q1"]) == "−0.14 octaves (−0.41 to +0.13 over 12 units)"
    assert [name for name, each in own.items() if each.adjusted is not Verdict.UNDECIDED] == ["Q1"]


@pytest.mark.slow
@pytest.mark.skipif("ISOCOMPUTE_FITS" not in os.environ, reason="fits of a unit again: python3 -m nox -s studies")
def test_the_numbers_of_a_unit_are_measured_again_as_they_are() -> None:
    """To a quarter of an interval: another processor rounds otherwise, and draws otherwise for it."""
    first = study.UNITS[0]
    committed, again = COMMITTED["units"][first.name], runs.measure(whole.read(first))
    assert again["questions"].keys() == committed["questions"].keys()
    for name, readings in committed["questions"].items():
        value, low, high = readings["as pinned"]
        apart = np.abs(np.subtract(again["questions"][name]["as pinned"], [value, low, high])).max()
        assert apart <= 0.25 * (high - low) + 1e-4, name
    assert json.loads(json.dumps(findings.rounded(again["failures"]))) == committed["failures"]
    assert list(COMMITTED["units"]) == NAMES


@pytest.mark.slow
def test_every_claim_has_one_row_with_questions_or_the_reason_why_none_answers_it() -> None:
    assert [claim.id for claim in claims.load()] == IDS
    with pytest.raises(ValueError, match="has questions or the reason why none answers it"):
        claims.Claim(id=1, says="x", where="y")
    rows = PAGE.split("## Every claim")[1].split("\n## ")[0]
    assert re.findall(r"^\| (N?\d+) \|", rows, flags=re.MULTILINE) == [str(each) for each in IDS]


def test_what_is_known_outside_the_panel_stands_on_the_page_that_is_named() -> None:
    for claim in claims.load():
        text = " ".join((findings.DOCS / claim.page).read_text().split()) if claim.quotes else ""
        assert [quote for quote in claim.quotes if quote not in text] == []
