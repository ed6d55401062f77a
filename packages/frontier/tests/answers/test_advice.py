"""What is advised: its limits, its sources, what it refuses to say, and the flags that it prints."""

import json
import re
from dataclasses import replace
from math import sqrt
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from isocompute.frontier import FrontierError
from isocompute.frontier.answers.advice import WIDEST, Question, advise, lines
from isocompute.frontier.answers.signal import of_mean
from isocompute.frontier.cli import main
from isocompute.frontier.data.sweeps import FILE, read_sweeps

SWEEPS = read_sweeps()


def question(budget: float = 4e5, **other: Any) -> Question:
    return Question(budget=budget, spread=of_mean(0.3), **other)


@given(
    st.floats(3e3, 1e7),
    st.one_of(st.none(), st.integers(16, 4096)),
    st.one_of(st.none(), st.integers(8, 20_000)),
    st.sampled_from(["avg", "best"]),
    st.sampled_from([None, (3e-6, 256.0)]),
)
def test_every_run_that_is_named_fits_the_budget_the_batch_the_problems_and_the_least_updates(
    budget: float, limit: int | None, problems: int | None, metric: str, anchor: tuple[float, float] | None
) -> None:
    asked = question(budget, max_batch=limit, problems=problems, metric=metric, anchor=anchor)
    found, (rate, at) = advise(asked, SWEEPS), anchor or (1e-6, 1024)
    for run in (*([found.start] if found.start else []), *found.pilots):
        assert run.rollouts <= budget
        assert run.n & (run.n - 1) == 0
        assert 8 <= run.problems_per_batch <= min(32, problems or 32)
        assert run.n * run.problems_per_batch <= (limit or 1e9)
        assert run.steps >= 64
        assert run.learning_rate == pytest.approx(rate * sqrt(run.n * run.problems_per_batch / at))
    assert sum(run.rollouts for run in found.pilots) <= 1.5 * budget
    assert (found.start is None) == bool(found.cannot)
    assert (min(found.interval[2], found.forbidden) > WIDEST * found.interval[0]) == (found.start is None)
    low, middle, high = found.interval
    assert 2 <= low <= middle <= high
    assert 1 <= found.ratio_after <= max(found.ratio, 4)


def test_a_budget_far_from_all_sources_is_to_be_measured() -> None:
    said = list(lines(advise(question(1e8), SWEEPS), "trl"))
    assert said[0].startswith("Cannot say: measure n = ")
    assert "4 times beyond" in said[0]


def test_best_and_worst_are_less_sure_than_the_mean() -> None:
    mean, best = (advise(question(metric=metric), SWEEPS).interval for metric in ("avg", "best"))
    assert best[1] == pytest.approx(mean[1], rel=1e-2)
    assert best[2] / best[0] > mean[2] / mean[0]


def test_sources_that_agree_say_more_than_sources_that_do_not() -> None:
    agree = [replace(s, log2_n=4.0, deviation=0.5) for s in SWEEPS]
    assert advise(question(), agree).ratio < advise(question(), SWEEPS).ratio
    apart = [replace(s, log2_n=2.0 if s.source == "panel" else 9.0) for s in agree]
    assert advise(question(), apart).cannot


def test_each_source_is_cited_and_left_out_and_nothing_is_called_best() -> None:
    said = list(lines(advise(question(problems=8000, max_batch=512), SWEEPS), "verl", cost=4000.0))
    text = "\n".join(said)
    for sweep in SWEEPS:
        assert f"[{sweep.citation}]" in text
        assert f"without {sweep.source} " in text
    assert "GPU-hours" in text
    assert "P(best)" not in text


ROW = FILE.read_text().splitlines()[1]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("7e9", "seven"), "row 1: parameters is 'seven'; it must be a number above 0"),
        (("0.45", "1.45"), "row 1: pass_rate is 1.45; it must be between 0 and 1"),
        (("8:0.0000", "8=0"), "row 1: lost holds '8=0', which is not like 8:0.012"),
        (("Playbook,Easy", "Playbook,"), "row 1: source and problem_set must be named"),
    ],
)
def test_a_row_that_is_wrong_is_named(change: tuple[str, str], said: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    path.write_text(f"{FILE.read_text().splitlines()[0]}\n{ROW.replace(*change)}\n")
    with pytest.raises(FrontierError, match=re.escape(said)):
        read_sweeps(path)


def test_all_columns_that_sweeps_lack_are_named_at_once(tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    path.write_text(FILE.read_text().replace("pass_rate,", "rate,", 1).replace(",lost,", ",loss,", 1))
    with pytest.raises(FrontierError, match="no columns pass_rate, lost;"):
        read_sweeps(path)


def test_a_row_of_ones_own_is_a_source(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, written = tmp_path / "mine.csv", tmp_path / "advice.json"
    path.write_text(f"{FILE.read_text().splitlines()[0]}\n{ROW.replace('Playbook,Easy', 'mine,sums')}\n")
    asked = ["advise", "--budget", "400k", "--pass-rate", "0.3", "--also", str(path), "--json", str(written)]
    assert main(asked) == 0
    assert "  mine, sums, " in capsys.readouterr().out
    document = json.loads(written.read_text())
    assert "mine" in document["left_out"]
    assert document["start"]["rollouts_per_problem"] >= 2


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("--pass-rate 1.2", "'1.2' is neither a pass rate between 0 and 1"),
        ("--pass-rate 0:5,1", "nor a histogram RATE:PROBLEMS"),
        ("--pass-rate 0:5,0:3", "nor a histogram RATE:PROBLEMS"),
        ("", "--pass-rate --pass-rates is required"),
        ("--pass-rate .3 --unit tokens", "needs --tokens-per-rollout"),
        ("--pass-rate .3 --unit gpu_hours", "needs --rollouts-per-gpu-hour"),
        ("--pass-rate .3 --max-batch 8", "accumulate gradients"),
        ("--pass-rate .3 --anchor 1e-6", "--anchor and --anchor-batch together"),
        ("--pass-rate .3 --metric pass@4", "'pass@4' is not avg, best@k or worst@k"),
        ("--pass-rate .3 --also missing.csv", "missing.csv: is no CSV file"),
        ("--pass-rates missing.parquet", "missing.parquet"),
    ],
)
def test_what_cannot_be_answered_is_one_sentence(arguments: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        status = main(["advise", "--budget", "1M", *arguments.split()])
    except SystemExit as end:
        status = int(end.code or 0)
    assert status == 2
    assert said in (error := capsys.readouterr().err)
    assert error.count("\n") == 1


def test_tokens_and_gpu_hours_are_budgets_in_rollouts(capsys: pytest.CaptureFixture[str]) -> None:
    said = []
    for budget in (
        "400k",
        "400M --unit tokens --tokens-per-rollout 1k",
        "100 --unit gpu_hours --rollouts-per-gpu-hour 4k",
    ):
        assert main(["advise", "--pass-rate", "0:2,0.5:6", *f"--budget {budget}".split()]) == 0
        said.append(capsys.readouterr().out.splitlines()[0])
    assert len({*said}) == 1
