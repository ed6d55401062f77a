"""Unhealthy cells in the report."""

from typing import Any

from experiments.report.health import caveats, section


def state(purpose: str, seed: int, *names: str) -> dict[str, Any]:
    flags = [{"name": name, "step": 30, "reason": f"<{name}> rose"} for name in names]
    return {
        "purpose": purpose, "rollouts_per_problem": 4, "problems_per_batch": 8, "seed": seed, "learning_rate": 1e-3,
        "health": flags,
    }  # fmt: skip


def test_every_flag_is_shown_with_its_reason_and_healthy_cells_are_not() -> None:
    shown = section([state("sweep", 0, "mismatch", "truncation"), state("sweep", 1), state("pilot", 900, "mismatch")])
    assert shown.count("<tr>") == 1 + 3
    assert "<td>30</td><td>truncation</td><td>&lt;truncation&gt; rose</td>" in shown
    assert section([state("sweep", 0), state("prescribe", 100)]) == ""


def test_caveats_count_the_cells_that_are_measured() -> None:
    states = [
        state("sweep", 0, "length_explosion"), state("sweep", 1, "length_explosion", "mismatch"), state("sweep", 2),
        state("pilot", 900, "reward_collapse"),
    ]  # fmt: skip
    assert caveats(states) == [
        ("health", "length explosion in 2 of 3 cells"), ("health", "mismatch in 1 of 3 cells"),
    ]  # fmt: skip
    assert caveats([state("pilot", 900, "mismatch")]) == []
