from pathlib import Path

import polars as pl
import pytest
from isocompute.frontier import FrontierError, PaperConfig, convert, fit_as_paper, with_gpu_hours
from isocompute.frontier.cli import main
from isocompute.frontier.data.reading import counted


def timings(table: pl.DataFrame) -> pl.DataFrame:
    """Every step of every run: 36 device-seconds of sampling and updating, and 1,000 of evaluation."""
    parts = []
    for (run,), own in table.group_by("run_id", maintain_order=True):
        steps = range(1, int(own["step"].max() or 0) + 1)
        for phase, seconds in (("sample", 30.0), ("update", 6.0), ("evaluate", 1000.0)):
            parts.append(
                pl.DataFrame({"run_id": [run] * len(steps), "step": list(steps)}).with_columns(
                    phase=pl.lit(phase), seconds=pl.lit(seconds / 2), device_seconds=pl.lit(seconds)
                )
            )
    return pl.concat(parts)


def test_gpu_hours_are_those_of_all_steps_so_far_without_evaluation(table: pl.DataFrame) -> None:
    found = with_gpu_hours(table, timings(table))
    # 36 device-seconds a step are a hundredth of an hour.
    assert found["gpu_hours"].to_list() == pytest.approx((found["step"] / 100).to_list())
    every = with_gpu_hours(table, timings(table), without=())
    assert every["gpu_hours"].max() > 20 * (found["gpu_hours"].max() or 0)


def test_runs_without_timings_are_refused_by_name(table: pl.DataFrame) -> None:
    times = timings(table)
    with pytest.raises(FrontierError, match=r"n16s1 .*160 .*no timings"):
        with_gpu_hours(table, times.filter(pl.col("run_id") != "n16s1"))
    with pytest.raises(FrontierError, match=r"n4s0 .*640 .* step 9"):
        with_gpu_hours(table, times.filter((pl.col("run_id") != "n4s0") | (pl.col("step") < 10)))
    with pytest.raises(FrontierError, match="the evals lack run_id"):
        with_gpu_hours(table.drop("run_id"), times)


@pytest.mark.slow
def test_a_fit_in_gpu_hours_from_two_files(
    table: pl.DataFrame, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table.write_parquet(tmp_path / "evals.parquet")
    timings(table).write_parquet(tmp_path / "timings.parquet")
    arguments = ["--unit", "gpu_hours", "--method", "paper", "--out", str(tmp_path / "out")]
    source = str(tmp_path / "evals.parquet")
    assert main(["fit", source, *arguments, "--timings", str(tmp_path / "timings.parquet")]) == 0
    assert "avg_at_4 against gpu_hours" in capsys.readouterr().out
    for c in fit_as_paper(with_gpu_hours(table, timings(table)), PaperConfig(unit="gpu_hours")).fitted:
        assert c.parameters is not None
        # τ of 3,000 and 9,000 rollouts, at 32 and 128 rollouts a step and a hundredth of an hour a step.
        rate = 100 * 8 * c.curve.rollouts_per_problem
        assert c.parameters.scale * rate == pytest.approx({4: 3000, 16: 9000}[c.curve.rollouts_per_problem], rel=0.2)


def growing() -> pl.DataFrame:
    """Responses of 10 tokens up to 1,000 rollouts, of 30 after."""
    rollouts = [0, 500, 1000, 1500, 2000]
    return pl.DataFrame({"rollouts": rollouts, "tokens": [0, 5000, 10_000, 25_000, 40_000]}).with_columns(
        rollouts_per_problem=pl.lit(4), problems_per_batch=pl.lit(8)
    )


@pytest.mark.parametrize(
    ("amount", "to", "value", "length", "measured"),
    [
        (800, "tokens", 8000, 10, True),
        (1800, "tokens", 34_000, 30, True),
        (3000, "tokens", 70_000, 30, False),
        (34_000, "rollouts", 1800, 30, True),
        (70_000, "rollouts", 3000, 30, False),
    ],
)
def test_rollouts_and_tokens_are_converted_along_the_runs(
    amount: float, to: str, value: float, length: float, measured: bool
) -> None:
    found = convert(growing(), amount, to=to, rollouts_per_problem=4)
    assert (found.value, found.tokens_per_rollout, found.measured) == (value, length, measured)


def test_one_of_a_thing_is_singular() -> None:
    assert [counted(k, "run") for k in (0, 1, 2, 2048)] == ["0 runs", "1 run", "2 runs", "2,048 runs"]


def test_what_cannot_be_converted_is_refused() -> None:
    with pytest.raises(FrontierError, match="no run of n = 16"):
        convert(growing(), 100, to="tokens", rollouts_per_problem=16)
    with pytest.raises(FrontierError, match="has counted tokens"):
        convert(growing().with_columns(tokens=pl.lit(0)), 100, to="tokens", rollouts_per_problem=4)
    with pytest.raises(FrontierError, match="not to 'steps'"):
        convert(growing(), 100, to="steps", rollouts_per_problem=4)
    with pytest.raises(FrontierError, match="above 0"):
        convert(growing(), -1, to="tokens", rollouts_per_problem=4)
