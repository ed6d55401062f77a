"""The paper's method from the command line: settings, metrics and units, on made-up tables and on committed ones."""

import json
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from isocompute.frontier import Frontier, FrontierError, PaperConfig, fit_as_paper
from isocompute.frontier.cli import main
from isocompute.frontier.data.curves import of_setting
from isocompute.frontier.fitting.point import Parameters
from scipy.optimize import brentq

from ..conftest import run

pytestmark = pytest.mark.slow("many fits")

DOCS = Path(__file__).parents[2] / "docs"
RESULTS = Path(__file__).parents[4] / "experiments/studies/panel/results/hard-0"
GRID = np.arange(1, 41) * 4096


def cell(n: int, size: int, *, asymptote: float, tau: float, end: float = 1e9, collapse: bool = False) -> pl.DataFrame:
    """One run of a known curve; best@4 and worst@4 lie above and below it by as much as n says."""
    compute = GRID[end >= GRID]
    truth = Parameters(form="exp", start=0.3, gain=asymptote - 0.3, scale=tau, shape=1.0)
    reward = np.where(collapse & (compute > 120_000), 0.1, truth(compute))
    own = run(compute, reward, rollouts_per_problem=n, problems_per_batch=size, run_id=f"{n}x{size}")
    return own.with_columns(
        tokens=pl.col("rollouts") * (10 + n),
        step=pl.col("rollouts") // (n * size),
        best_at_4=(pl.col("avg_at_4") + 0.1 - n / 1000).clip(0, 1),
        worst_at_4=pl.col("avg_at_4") * 0.8,
    )


@pytest.fixture
def sweep() -> pl.DataFrame:
    """n = 4 leads up to about 30,000 rollouts, then 16, then from about 103,000 on 64, which ends before the others."""
    return pl.concat(
        [
            cell(4, 32, asymptote=0.50, tau=1e4),
            cell(16, 32, asymptote=0.60, tau=3e4),
            cell(64, 32, asymptote=0.80, tau=1.2e5, end=150_000),
            cell(16, 8, asymptote=0.595, tau=3e4),
            cell(16, 2, asymptote=0.60, tau=3e4, collapse=True),
            cell(64, 8, asymptote=0.79, tau=1.2e5),
            cell(4, 128, asymptote=0.5, tau=1e4),
        ]
    )


def fitted(
    table: pl.DataFrame,
    folder: Path,
    *,
    problems_per_batch: int | None = None,
    batch_rollouts: int | None = None,
    **how: Any,
) -> dict[str, Any]:
    """``fits.json`` of a sweep."""
    own = of_setting(table, problems_per_batch=problems_per_batch, batch_rollouts=batch_rollouts)
    fit_as_paper(own, PaperConfig(**how)).save(folder / "out")
    return document(folder)


def document(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "out" / "fits.json").read_text())
    return found


def cells(found: dict[str, Any]) -> list[tuple[int, int]]:
    return [(s["rollouts_per_problem"], s["problems_per_batch"]) for s in found["segments"]]


def test_at_fixed_problems_per_batch_n_star_grows_along_the_envelope(
    sweep: pl.DataFrame, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sweep.write_parquet(tmp_path / "evals.parquet")
    options = ["--method", "paper", "--problems-per-batch", "32", "--budget", "1M", "--out", str(tmp_path / "out")]
    assert main(["fit", str(tmp_path / "evals.parquet"), *options]) == 0
    found = document(tmp_path)
    assert cells(found) == [(4, 32), (16, 32), (64, 32)]
    truths = [(0.2, 1e4), (0.3, 3e4), (0.5, 1.2e5)]
    crossings = [
        brentq(lambda c, a=a, b=b: b[0] * np.expm1(-c / b[1]) - a[0] * np.expm1(-c / a[1]), 1e4, 1e6)
        for a, b in pairwise(truths)
    ]
    # To within a step of the grid.
    assert [s["compute"] for s in found["segments"][1:]] == pytest.approx(crossings, rel=0.04)
    named = {c["rollouts_per_problem"]: c["params"] for c in found["curves"]}
    assert named[64] == pytest.approx({"A": 0.8, "D": 0.5, "tau": 1.2e5}, rel=1e-3)
    frontier = pl.read_parquet(tmp_path / "out" / "frontier.parquet")
    # n = 64 ends at 150,000 and still attains the envelope at 163,840, which never falls.
    assert (frontier["rollouts_per_problem"][-1], frontier["carried"][-1]) == (64, True)
    assert (np.diff(frontier["reward"].to_numpy()) >= 0).all()
    assert not {"reward_low", "probability"} & set(frontier.columns)
    printed = capsys.readouterr().out
    assert "no intervals" in printed
    assert re.search(r"n\*\(1,000,000\) = \d+ \(beyond", printed)
    assert "95 %" not in printed
    assert {p.stem for p in (tmp_path / "out").glob("*.svg")} == {"curves", "frontier", "n_star"}


def test_at_fixed_batch_n_is_traded_for_problems(sweep: pl.DataFrame, tmp_path: Path) -> None:
    found = fitted(sweep, tmp_path, batch_rollouts=512)
    assert cells(found) == [(16, 32), (64, 8)] or cells(found) == [(4, 128), (16, 32), (64, 8)]
    steps = pl.read_parquet(tmp_path / "out" / "frontier.parquet")
    assert np.allclose(steps["update_steps"], steps["compute"] / 512)


def test_all_cells_at_once_say_the_smallest_stable_problems_per_batch(sweep: pl.DataFrame) -> None:
    found = fit_as_paper(sweep)
    # Of n = 16, B_p = 2 collapses and 8 is 0.005 below 32; of n = 64, 8 is within 0.01 of 32.
    assert found.smallest_stable() == {4: 32, 16: 8, 64: 8}
    assert "smallest stable B_p at n = 16: 8" in found.summary()


def test_other_metrics_and_units_are_fitted_alike(sweep: pl.DataFrame, tmp_path: Path) -> None:
    best, worst = (fitted(sweep, tmp_path, problems_per_batch=32, metric=f"{kind}_at_4") for kind in ("best", "worst"))
    assert worst["curves"][0]["params"]["A"] == pytest.approx(0.4, abs=1e-3)
    # best@4 is lowered with n here, so that a larger n takes over later.
    assert best["segments"][1]["compute"] > worst["segments"][1]["compute"]
    tokens = fitted(sweep, tmp_path, problems_per_batch=32, unit="tokens")
    assert tokens["unit"] == "tokens"
    # 16 spends 26 tokens a rollout and 4 spends 14: in tokens 16 takes over later still.
    assert tokens["segments"][1]["compute"] > 14 * worst["segments"][1]["compute"]


def test_records_are_the_first_to_reach_a_bin_and_do_not_shorten_a_run(sweep: pl.DataFrame, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    noisy = sweep.with_columns(avg_at_4=(pl.col("avg_at_4") + rng.normal(0, 0.02, len(sweep))).clip(0, 1))
    everything = fitted(noisy, tmp_path, problems_per_batch=32)
    records = fitted(noisy, tmp_path, problems_per_batch=32, points="records")
    for a, b in zip(everything["curves"], records["curves"], strict=True):
        assert a["support"] == b["support"]
        assert a["records_gap"] == b["records_gap"] > 0.005


def test_the_paper_s_method_has_nothing_to_prescribe_from(
    sweep: pl.DataFrame, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fitted(sweep, tmp_path, problems_per_batch=32)
    with pytest.raises(FrontierError, match=r"out: .*no intervals"):
        Frontier.load(tmp_path / "out")
    arguments = ["--method", "paper", "--pass-rates", "x.parquet", "--out", str(tmp_path / "out")]
    assert main(["fit", str(DOCS / "sweep.csv"), *arguments]) == 2
    assert "leave out --pass-rates" in capsys.readouterr().err


def test_a_curve_of_two_evaluations_has_a_reason(sweep: pl.DataFrame, tmp_path: Path) -> None:
    found = fitted(sweep.filter(pl.col("rollouts") <= 8192), tmp_path)
    assert all(c["params"] is None and c["reason"] for c in found["curves"])
    assert found["segments"] == []
