"""Every curve has its own support: beyond it, it is flagged, and far beyond, refused."""

from pathlib import Path

import numpy as np
import polars as pl
import pytest
from isocompute.frontier import FitConfig, Fits, Flag, FrontierError, fit, prescribe, sensitivity
from isocompute.frontier.cli import main
from isocompute.frontier.fitting.forms import Parameters
from isocompute.frontier.show.figures import all_figures

END = {4: 50_000.0, 64: 1_000_000.0}
"""Compute that each n was measured to."""


@pytest.fixture(scope="module")
def uneven() -> Fits:
    """n = 4 rises fast and was stopped early; by its curve alone it would win at any budget."""
    rng = np.random.default_rng(0)
    parts = []
    for n, (asymptote, scale) in {4: (0.98, 20_000.0), 64: (0.80, 250_000.0)}.items():
        compute = np.linspace(END[n] / 20, END[n], 20).round()
        truth = Parameters(form="exp", start=0.3, gain=asymptote - 0.3, scale=scale, shape=1.0)
        for seed in range(2):
            parts.append(
                pl.DataFrame(
                    {"rollouts": compute.astype(np.int64), "avg_at_4": truth(compute) + rng.normal(0, 0.01, 20)}
                ).with_columns(
                    rollouts_per_problem=pl.lit(n), problems_per_batch=pl.lit(8), seed=pl.lit(seed),
                    problem_set=pl.lit("easy"), split=pl.lit("validation"), questions=pl.lit(300), samples=pl.lit(4),
                )
            )  # fmt: skip
    return fit(pl.concat(parts), FitConfig(form="exp", bootstrap=100))


def test_a_curve_far_beyond_its_own_data_does_not_compete(uneven: Fits) -> None:
    found = prescribe(uneven, budget=1_000_000)
    assert found.rollouts_per_problem == 64
    assert Flag.RIVALS_UNMEASURED in found.flags
    assert Flag.BEYOND_SUPPORT not in found.flags
    assert [(c.rollouts_per_problem, c.standing, c.reward is None) for c in found.candidates] == [
        (64, "measured", False), (4, "refused", True),
    ]  # fmt: skip
    assert "refused" in found.table()
    assert found.as_dict()["candidates"][1]["support"][1] == END[4]


def test_within_four_times_its_data_it_competes_and_is_flagged(uneven: Fits) -> None:
    found = prescribe(uneven, budget=150_000)
    assert found.rollouts_per_problem == 4
    assert Flag.BEYOND_SUPPORT in found.flags
    assert {c.rollouts_per_problem: c.standing for c in found.candidates} == {4: "extrapolated", 64: "measured"}
    assert "extrapolated" in found.table()
    assert found.supported[1] == END[4]
    inside = prescribe(uneven, budget=50_000)
    assert not {Flag.BEYOND_SUPPORT, Flag.RIVALS_UNMEASURED} & set(inside.flags)


def test_what_another_n_would_cost_is_not_said_of_one_out_of_reach(uneven: Fits, tmp_path: Path) -> None:
    table = sensitivity(uneven, compute=1_000_000)
    assert table["standing"].to_list() == ["measured", "refused"]
    assert table["regret"].to_list() == [0.0, None]
    assert tmp_path / "sensitivity.png" in all_figures(uneven, tmp_path)


def test_beyond_every_curve_nothing_is_prescribed(uneven: Fits) -> None:
    with pytest.raises(FrontierError, match=r"4\.5 times the 1,000,000 that were measured"):
        prescribe(uneven, budget=4_500_000)


def test_the_command_shows_how_far_each_was_measured(
    uneven: Fits, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    uneven.save(tmp_path)
    assert main(["prescribe", str(tmp_path), "--budget", "1000000"]) == 0
    out = capsys.readouterr().out
    assert "against 0 others" in out
    assert "50,000, refused" in out


def test_a_curve_that_ended_still_offers_its_last_reward(uneven: Fits) -> None:
    # n = 4 reached 0.92 at 50,000; n = 64 levels off at 0.80: at no larger budget is n = 64 the better choice.
    last = uneven.best_at(END[64])
    assert (last.rollouts_per_problem, last.competing) == (4, 2)
    assert last.reward == pytest.approx(uneven.envelope[0][-1]) == pytest.approx(0.92, abs=0.02)
    assert (np.diff(uneven.envelope[0]) >= 0).all()
    frontier = uneven.frontier_table()
    beyond = frontier.filter(pl.col("compute") > END[4] * 1.01)
    assert beyond["carried"].all()
    assert (beyond["n"] == 4).all()
    assert "1,000,000    4   100% of 2 n" in uneven.summary()
    assert not [x for x in uneven.crossovers if x.kind == "support_ends"]


def test_records_do_not_shorten_a_run() -> None:
    # Both runs stall from half of their compute on, so that their last record lies there.
    compute = np.arange(1, 21) * 1000
    stalled = pl.concat(
        pl.DataFrame(
            {"rollouts": compute, "avg_at_4": np.where(compute <= 10_000, top * (1 - np.exp(-compute / 3000)), 0.3)}
        ).with_columns(
            rollouts_per_problem=pl.lit(n), problems_per_batch=pl.lit(8), seed=pl.lit(0), problem_set=pl.lit("easy"),
            split=pl.lit("validation"), questions=pl.lit(300), samples=pl.lit(4),
        )
        for n, top in ((4, 0.6), (16, 0.7))
    )  # fmt: skip
    found = fit(stalled, FitConfig(form="exp", points="records", bootstrap=20))
    assert [c.curve.support for c in found.curves] == [(1000.0, 20_000.0)] * 2
