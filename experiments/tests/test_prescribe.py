"""What the test of a prescription says: differences by base model and seed, and what diverged apart."""

from typing import Any

import polars as pl

from experiments.stages.prescribe import sentence


def runs(ends: dict[tuple[int, str, int], float]) -> tuple[pl.DataFrame, list[dict[str, Any]]]:
    """Runs by (n, base model, seed), each with its score at 128 rollouts; all were at 0.9 before."""
    rows = [
        {
            "run_id": f"{n} {base} {seed}",
            "rollouts": at,
            "rollouts_per_problem": n,
            "base_model": base,
            "seed": seed,
            "avg_at_4": score,
        }
        for (n, base, seed), end in ends.items()
        for at, score in ((32, 0.9), (128, end))
    ]
    states = [{"run_id": f"{n} {b} {s}", "rollouts_per_problem": n, "status": "finished"} for n, b, s in ends]
    return pl.DataFrame(rows), states


def said(evals: pl.DataFrame, states: list[dict[str, Any]]) -> str:
    return sentence(evals, states, "avg_at_4", chosen=2, rollouts=128)


def test_runs_are_paired_by_base_model_and_seed() -> None:
    evals, states = runs(
        {(2, "a", 0): 0.5, (2, "a", 1): 0.7, (2, "b", 0): 0.2, (4, "a", 0): 0.4, (4, "a", 1): 0.5, (4, "b", 0): 0.1}
    )
    # Differences of 0.1, 0.2 and 0.1: 4.303 · 0.0577 / √3 = 0.143.
    assert said(evals, states) == (
        "trained at 128 rollouts with fresh seeds, n = 2 against n = 4: +0.133 (95 %: -0.010 to +0.277, 3 pairs)"
    )


def test_what_diverged_is_counted_apart_and_its_pair_is_left_out() -> None:
    evals, states = runs({(2, "a", 0): 0.5, (2, "a", 1): 0.7, (4, "a", 0): 0.4, (4, "a", 1): 0.0})
    states[-1]["status"] = "diverged"
    assert said(evals, states).endswith("n = 4: +0.100 (95 %: -inf to +inf, 1 pairs); 1 of 4 runs diverged")
    states[-2]["status"] = "diverged"
    assert said(evals, states).endswith("n = 4: no pair was trained to the end; 2 of 4 runs diverged")


def test_the_prescription_may_be_the_only_n() -> None:
    assert said(*runs({(2, "a", 0): 0.5})).endswith("n = 2 against no other")
