"""Unhealthy cells in the report, and those that were too short to judge."""

from typing import Any

from experiments.report.health import caveats, section


def state(purpose: str, seed: int, *names: str, judged: bool = True) -> dict[str, Any]:
    flags = [{"name": name, "step": 30, "reason": f"<{name}> rose"} for name in names]
    return {
        "purpose": purpose, "rollouts_per_problem": 4, "problems_per_batch": 8, "seed": seed, "learning_rate": 1e-3,
        "health": flags, "judged": judged,
    }  # fmt: skip


def test_every_flag_is_shown_with_its_reason_and_healthy_cells_are_not() -> None:
    shown = section([state("sweep", 0, "mismatch", "truncation"), state("sweep", 1), state("pilot", 900, "mismatch")])
    assert shown.count("<tr>") == 1 + 3
    assert "<td>30</td><td>truncation</td><td>&lt;truncation&gt; rose</td>" in shown
    assert "No flags in 1 of 3 cells; 0 were too short to judge. Each flag is listed at the first step" in shown


def test_without_a_flag_it_is_said_how_many_cells_that_is_true_of_and_how_many_were_too_short() -> None:
    shown = section([state("sweep", 0), state("prescribe", 100), state("pilot", 900, judged=False)])
    assert "<p>No flags in 2 of 3 cells; 1 was too short to judge (most flags compare" in shown
    assert "<table" not in shown
    assert "No flags in 2 of 2 cells; 0 were too short to judge.</p>" in section([state("sweep", i) for i in range(2)])


def test_a_flag_in_a_cell_that_is_too_short_is_shown_and_the_cell_still_counts_as_too_short() -> None:
    shown = section([state("sweep", 0, "mismatch", judged=False), state("sweep", 1, judged=False)])
    assert "No flags in 0 of 2 cells; 2 were too short to judge" in shown
    assert shown.count("<tr>") == 1 + 1


def test_caveats_count_the_cells_that_are_measured() -> None:
    states = [
        state("sweep", 0, "length_explosion"), state("sweep", 1, "length_explosion", "mismatch"), state("sweep", 2),
        state("pilot", 900, "reward_collapse"),
    ]  # fmt: skip
    assert caveats(states) == [
        ("health", "length explosion in 2 of 3 cells"), ("health", "mismatch in 1 of 3 cells"),
    ]  # fmt: skip
    assert caveats([state("pilot", 900, "mismatch")]) == []
