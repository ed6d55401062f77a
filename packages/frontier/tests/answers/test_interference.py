import re
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from isocompute.frontier import FrontierError, interference, train_validation_gap
from isocompute.frontier.answers.interference import at_equal_rollouts, comparable, dispersion
from isocompute.frontier.cli import main

RESULTS = Path(__file__).parents[4] / "experiments/studies/panel/results/hard-0"


def measured(rates: pl.DataFrame) -> pl.DataFrame:
    """Measures of runs at B_p = 8, each named by its n."""
    evals = rates.select("run_id", "step", rollouts_per_problem=pl.col("run_id").str.slice(1).cast(pl.Int64))
    rollouts = pl.col("step") * 8 * pl.col("rollouts_per_problem")
    return interference(rates, evals.unique(maintain_order=True).with_columns(rollouts=rollouts, problems_per_batch=8))


def polarised(n: int, share_at: dict[int, float]) -> pl.DataFrame:
    """A run in which, by rollouts, a share of 100 problems is always or never solved, half of them each."""
    rows = []
    for rollouts, share in share_at.items():
        extreme = round(50 * share)
        values = [8] * extreme + [0] * extreme + [4] * (100 - 2 * extreme)
        rows += [
            {"run_id": f"n{n}", "step": rollouts // (8 * n), "problem_id": f"p{i}", "successes": v, "samples": 8}
            for i, v in enumerate(values)
        ]
    return pl.DataFrame(rows)


def test_runs_are_compared_at_equal_rollouts_and_not_at_equal_steps() -> None:
    # At 4,096 rollouts n = 16 is the less polarised; at its own 32 steps n = 4 has seen 1,024 and is less so still.
    rates = pl.concat([polarised(4, {1024: 0.1, 4096: 0.8}), polarised(16, {1024: 0.0, 4096: 0.4, 16384: 0.9})])
    measures = measured(rates)
    assert measures["rollouts"].to_list() == [1024, 4096, 1024, 4096, 16384]
    matched = at_equal_rollouts(measures)
    assert matched["rollouts"].to_list() == [4096, 4096]
    assert matched["rollouts_per_problem"].to_list() == [4, 16]
    assert matched["dispersion"][1] < matched["dispersion"][0]
    assert matched["zero_fraction"].to_list() == [0.4, 0.2]
    with pytest.raises(FrontierError, match="within 10 %"):
        at_equal_rollouts(measured(pl.concat([polarised(4, {1024: 0.1}), polarised(16, {16384: 0.9})])))


def test_files_are_measured_and_drawn_and_what_cannot_be_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rates = pl.concat([polarised(n, {0: 0.0, 4096: 0.5}) for n in (4, 16)])
    evals = swept({"n4": (4, 1e-4, 0, 0.5), "n16": (16, 1e-4, 0, 0.6)})
    rates.write_csv(tmp_path / "pass_rates.csv")
    evals.with_columns(tokens=pl.col("rollouts")).write_csv(tmp_path / "evals.csv")
    out = ["--out", str(tmp_path / "out")]
    command = ["interference", str(tmp_path / "pass_rates.csv")]
    assert main([*command, "--evals", str(tmp_path / "evals.csv"), *out]) == 0
    printed = capsys.readouterr().out
    assert "100 problems, at 4,096 rollouts" in printed
    assert "n =   16: mean 0.500, never solved 25.0%" in printed
    written = {path.name for path in (tmp_path / "out").iterdir()}
    assert written == {"interference.parquet", "interference.svg", "interference.png"}
    assert main([*command, *out]) == 2
    assert "name them with --evals" in capsys.readouterr().err
    for tables, said in (
        ((rates, swept({"x": (4, 1e-4, 0, 0.5)})), "have no run in common"),
        ((rates, evals.filter(pl.col("step") < 100)), "run n4 at step 128"),
        ((pl.DataFrame(), evals), "no pass rates"),
    ):
        with pytest.raises(FrontierError, match=said):
            interference(*tables)


@pytest.mark.slow
@pytest.mark.skipif(not RESULTS.exists(), reason="the panel is in the repository and not in the package")
def test_a_folder_is_measured_on_its_training_problems(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["interference", str(RESULTS), "--out", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert "training problems, at 65,536 rollouts" in printed
    lines = [line for line in printed.splitlines() if line.startswith("n = ")]
    assert [int(line.split(":")[0].split()[2]) for line in lines] == [2, 4, 8, 16, 32]
    # One B_p, each n at its best rate, no branch and none of the four runs that failed.
    unsolved = [float(line.split("never solved ")[1].split("%")[0]) for line in lines]
    assert unsolved == pytest.approx([3.1, 0.8, 1.6, 2.0, 1.6])
    assert len(re.findall(r"\(run [0-9a-f]{16}\)", printed)) == 5
    assert len(re.findall(r"note: n = \d+, run [0-9a-f]{16} failed", printed)) == 4
    measures = pl.read_parquet(tmp_path / "interference.parquet")
    assert measures["problems"].unique().to_list() == [256]
    assert measures["run_id"].n_unique() == 5
    assert main(["interference", str(RESULTS), "--out", str(tmp_path), "--problems-per-batch", "32"]) == 0
    assert [line.split(":")[0] for line in capsys.readouterr().out.splitlines()[1:2]] == ["n =    4"]
    assert main(["interference", str(RESULTS), "--out", str(tmp_path), "--problems-per-batch", "5"]) == 2
    assert "no run has B_p = 5" in capsys.readouterr().err


def swept(runs: dict[str, tuple[int, float, int, float]]) -> pl.DataFrame:
    """Evaluations at B_p = 8 of runs with n, rate, seed and the reward that they end at."""
    rows = [
        {"run_id": run, "rollouts_per_problem": n, "learning_rate": rate, "seed": seed, "problems_per_batch": 8}
        | {"step": rollouts // (8 * n), "rollouts": rollouts, "problem_set": "easy", "split": "validation"}
        | {"questions": 300, "samples": 4, "avg_at_4": 0.1 + (end - 0.1) * rollouts / 4096}
        for run, (n, rate, seed, end) in runs.items()
        for rollouts in (0, 512, 1024, 2048, 4096)
    ]
    return pl.DataFrame(rows)


def test_runs_that_are_compared_differ_in_n_alone() -> None:
    runs = {"a": (4, 1e-4, 0, 0.6), "b": (4, 2e-4, 0, 0.9), "c": (4, 1e-4, 1, 0.5), "d": (4, 2e-4, 1, 0.1)}
    runs |= {"e": (16, 1e-4, 0, 0.4), "f": (16, 2e-4, 0, 0.7), "g": (16, 2e-4, 1, 0.6)}
    kept, notes = comparable(swept(runs))
    # d failed. At 2e-4 the seed of n = 4 that is left ended highest, and both seeds of n = 16 count.
    assert sorted(kept["run_id"].unique()) == ["b", "f", "g"]
    assert [note.partition(" failed")[0] for note in notes if "failed" in note] == ["n = 4, run d"]
    # Without rates runs of one n cannot be paired over seeds: the best of the first seed stands for it.
    kept, _ = comparable(swept(runs).drop("learning_rate"))
    assert sorted(kept["run_id"].unique()) == ["b", "f"]
    wide = swept({"w": (4, 1e-4, 0, 0.95)}).with_columns(problems_per_batch=pl.lit(32, pl.Int64))
    begun = swept({"x": (16, 1e-4, 2, 0.95)}).filter(pl.col("rollouts") > 512)
    kept, notes = comparable(pl.concat([swept(runs), wide, begun]))
    assert sorted(kept["run_id"].unique()) == ["b", "f", "g"]
    assert any(note.startswith("2 runs") for note in notes)
    with pytest.raises(FrontierError, match="no avg_at_k"):
        comparable(swept(runs).rename({"avg_at_4": "best_at_4"}))


def test_problems_that_are_always_or_never_solved_are_as_uneven_as_can_be() -> None:
    found = measured(polarised(4, {0: 0.0, 320: 1.0}))
    shown = found.select("mean", "zero_fraction", "one_fraction", "dispersion", "distance_to_start").rows()
    # Every problem moved half of the unit interval, in bins of a tenth.
    assert shown == [(0.5, 0.0, 0.0, 0.0, 0.0), (0.5, 0.5, 0.5, 1.0, pytest.approx(0.45, abs=0.06))]


def test_sampling_noise_alone_is_not_dispersion() -> None:
    rng = np.random.default_rng(0)
    samples = np.full(4000, 4.0)
    alike = rng.binomial(4, 0.3, 4000) / 4
    assert dispersion(alike, samples) < 0.02
    truth = rng.beta(0.5, 0.5, 4000)
    # Beta(a, b) has a variance of p(1-p)/(a+b+1): half of the largest here.
    assert dispersion(rng.binomial(4, truth) / 4, samples) == pytest.approx(0.5, abs=0.03)


def test_the_gap_is_train_minus_validation_at_the_same_step() -> None:
    common = {"run_id": "r", "problem_set": "easy", "rollouts_per_problem": 4, "problems_per_batch": 8, "seed": 0}
    rows = [
        {**common, "step": s, "rollouts": 32 * s, "split": side, "avg_at_4": value}
        for s, side, value in ((1, "train", 0.5), (1, "validation", 0.4), (2, "train", 0.9))
    ]
    found = train_validation_gap(pl.DataFrame(rows))
    assert found["gap"].to_list() == pytest.approx([0.1])
    with pytest.raises(FrontierError, match="evaluated on both"):
        train_validation_gap(pl.DataFrame(rows[1:]))
