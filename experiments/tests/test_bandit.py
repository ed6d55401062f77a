"""The page on the bandit says what is computed."""

import subprocess
import sys
from math import log
from pathlib import Path

from isocompute.learner.bandit.law import largest_learning_rate

from experiments import bandit

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "bandit.md").read_text()


def test_the_table_of_gradients_is_what_is_computed() -> None:
    rows = list(bandit.gradients())[2:]
    assert len(rows) == len(bandit.GROUPS)
    for row in rows:
        assert row in PAGE


def test_the_largest_rates_are_what_is_computed() -> None:
    rates = [f"{largest_learning_rate(bandit.NOISY, n):.2g}" for n in bandit.GROUPS[:4]]
    assert f"{rates[0]}, {rates[1]}, {rates[2]} and {rates[3]}" in PAGE


def test_the_lines_of_small_groups_are_those_of_the_page() -> None:
    for n, plain, scaled in ((2, "2.019", "1.424"), (4, "1.342", "0.669")):
        for scale, shown in (("none", plain), ("group", scaled)):
            end = bandit.learnt(n, scale, bandit.RATE, bandit.STEPS).suboptimality[-1]
            assert f"{bandit.STEPS * end:.3f}" == shown
        assert f"| {n} | {plain} |" in PAGE
        assert f"| {scaled} |" in PAGE


def test_the_first_policy_is_right_one_time_in_four() -> None:
    assert log(3) == -bandit.START


def test_a_folder_that_cannot_be_made_is_one_line_on_stderr(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    command = [sys.executable, "-m", "experiments.bandit", "--out", str(tmp_path / "file")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
