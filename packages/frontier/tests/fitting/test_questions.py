"""Which questions are asked: their luck is in the intervals, and is the same for every n."""

import numpy as np
import polars as pl
import pytest
from isocompute.frontier import FitConfig, FrontierError, fit
from isocompute.frontier.cli import main
from isocompute.frontier.data.precision import values_of

EXP = FitConfig(form="exp", bootstrap=300)
COMPUTE = np.arange(1, 21) * 2048.0


def asked(
    questions: int = 100, samples: int = 4, *, metric: str = "avg_at_4", ns: tuple[int, ...] = (4, 16), seed: int = 0
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Evaluations and pass rates: easy questions stay easy at every n, so that both n share the luck of the draw."""
    rng = np.random.default_rng(seed)
    easiness = rng.normal(0, 2.0, questions)
    rise = 1 - np.exp(-COMPUTE / 9000)
    evals, rates = [], []
    for n in ns:
        truth = 1 / (1 + np.exp(-(easiness[None, :] + 2.0 * rise[:, None])))
        successes = rng.binomial(samples, truth)
        step = (COMPUTE / (8 * n)).astype(int)
        evals.append(
            pl.DataFrame(
                {"run_id": f"n{n}", "step": step, "rollouts": COMPUTE.astype(int), "rollouts_per_problem": n,
                 "problems_per_batch": 8, "seed": 0, "problem_set": "easy", "split": "validation",
                 "questions": questions, "samples": samples,
                 metric: values_of(metric, successes, samples).mean(axis=1)}
            )
        )  # fmt: skip
        rates += [
            pl.DataFrame(
                {"run_id": f"n{n}", "step": int(s), "problem_id": [f"q{i}" for i in range(questions)],
                 "successes": row, "samples": samples}
            )
            for s, row in zip(step, successes, strict=True)
        ]  # fmt: skip
    return pl.concat(evals), pl.concat(rates)


def width(draws: np.ndarray) -> float:
    low, high = np.quantile(draws, [0.025, 0.975])
    return float(high - low)


def test_the_luck_of_the_questions_widens_levels_and_not_differences() -> None:
    evals, rates = asked()
    at = COMPUTE[-1:]
    plain, whole = fit(evals, EXP), fit(evals, EXP, pass_rates=rates)
    levels, differences = {}, {}
    for name, fits in (("plain", plain), ("whole", whole)):
        a, b = (c.draws.at(at)[:, 0] for c in fits.fitted if c.draws is not None)
        levels[name], differences[name] = width(a), width(b - a)
    # 100 questions whose pass rates have a standard deviation of about 0.3: 1.96 · 2 · 0.3 / √100 = 0.12.
    assert levels["whole"] > 0.09
    assert levels["whole"] > 2 * levels["plain"]
    assert differences["whole"] < 1.3 * differences["plain"]
    assert "which questions are asked is not in them" in plain.summary()
    assert "include the luck of which questions are asked" in whole.summary()


def test_the_mean_over_all_questions_is_held_where_these_alone_would_miss_it() -> None:
    # The truth at the end of the runs, over all questions that could be asked.
    every = np.random.default_rng(99).normal(0, 2.0, 200_000) + 2.0 * (1 - np.exp(-COMPUTE[-1] / 9000))
    truth = (1 / (1 + np.exp(-every))).mean()
    held = {"plain": 0, "whole": 0}
    for seed in range(20):
        evals, rates = asked(questions=40, ns=(4,), seed=seed)
        for name, given in (("plain", None), ("whole", rates)):
            (c,) = fit(evals, FitConfig(form="exp", bootstrap=100), pass_rates=given).fitted
            assert c.draws is not None
            low, high = np.quantile(c.draws.at(COMPUTE[-1:])[:, 0], [0.025, 0.975])
            held[name] += low <= truth <= high
    # What 90 % fall below once in a thousand is 14 of 20.
    assert held["whole"] >= 14 > held["plain"]


@pytest.mark.parametrize("metric", ["best_at_4", "worst_at_4"])
def test_best_and_worst_have_errors_of_their_own(metric: str) -> None:
    evals, rates = asked(questions=300, metric=metric)
    config = FitConfig(form="exp", bootstrap=20, metric=metric)
    bound, own = fit(evals, config).fitted[0].curve, fit(evals, config, pass_rates=rates).fitted[0].curve
    # One value a question, at most a coin's.
    last = bound.reward[-1]
    assert bound.standard_error[-1] == pytest.approx(np.sqrt(last * (1 - last) / 300), rel=0.02)
    assert (own.standard_error < bound.standard_error).all()


def test_pass_rates_of_other_evaluations_are_refused() -> None:
    evals, rates = asked()
    other = rates.with_columns(successes=pl.lit(4))
    missing = rates.filter(pl.col("run_id") != "n16")
    fewer = rates.filter(~((pl.col("run_id") == "n16") & (pl.col("problem_id") == "q3")))
    mixed = rates.with_columns(samples=pl.when(pl.col("run_id") == "n4").then(4).otherwise(8))
    for wrong, what in (
        (other, "not of the same evaluation"), (missing, "no row of run n16"), (fewer, "the same questions once"),
        (mixed, "4 to 8 samples"),
    ):  # fmt: skip
        with pytest.raises(FrontierError, match=what):
            fit(evals, EXP, pass_rates=wrong)
    named = evals.rename({"avg_at_4": "reward"})
    with pytest.raises(FrontierError, match="reward cannot be computed from pass rates"):
        fit(named, FitConfig(metric="reward"), pass_rates=rates)
    with pytest.raises(FrontierError, match="needs 8 samples"):
        fit(evals.rename({"avg_at_4": "best_at_8"}), FitConfig(metric="best_at_8"), pass_rates=rates)


def test_the_command_takes_them(tmp_path, capsys: pytest.CaptureFixture[str]) -> None:  # type: ignore[no-untyped-def]
    evals, rates = asked(questions=20)
    evals.with_columns(tokens=pl.col("rollouts") * 10).write_parquet(tmp_path / "evals.parquet")
    rates.with_columns(pl.col("successes", "samples").cast(pl.Int32)).write_parquet(tmp_path / "rates.parquet")
    arguments = ["fit", str(tmp_path / "evals.parquet"), "--out", str(tmp_path / "out"), "--bootstrap", "20"]
    assert main([*arguments, "--form", "exp", "--pass-rates", str(tmp_path / "rates.parquet")]) == 0
    assert "include the luck" in capsys.readouterr().out
