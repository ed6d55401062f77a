"""The page on the bandit says what is computed; ``nox -s bandit`` compares all of it, with the longest runs too."""

import subprocess
import sys
from math import log
from pathlib import Path

import pytest

from experiments.bandit import page, progress, tables

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "bandit.md").read_text()


def test_the_tables_of_the_gradient_and_of_eight_answers_are_what_is_computed() -> None:
    for table in (tables.gradients(), tables.several_answers()):
        assert "\n".join(table) in PAGE


def test_the_limits_of_small_groups_are_those_of_the_page() -> None:
    assert "\n".join(tables.limits((2, 4, 8))) in PAGE


def test_the_fits_and_rates_of_noisy_rewards_are_those_of_the_page() -> None:
    assert "\n".join(tables.noise()) in PAGE
    text = " ".join(PAGE.split())
    for piece in page.noise_statements():
        assert piece in text


def test_with_one_learning_rate_the_two_terms_of_the_law_describe_the_chain() -> None:
    lines = [progress.learnt(n, "none", progress.RATE, progress.STEPS) for n in (2, 4, 8, 16)]
    law = progress.law_of(lines)
    assert 0.9 < law.per_step < 1.05
    assert 1.9 < law.per_rollout < 2.2
    assert law.largest_error < 0.1


def test_with_learning_rates_that_noise_allows_they_do_not() -> None:
    law = progress.law_of(progress.with_noise())
    assert law.per_step < 0
    assert law.largest_error > 0.25


MADE = """Text with a rate of 0.5,
and 7 runs (arXiv 2603.12151).

| n | value |
|---|---|
| 2 | 1.25 |
"""
TABLES = [["| n | value |", "|---|---|", "| 2 | 1.25 |"]]
PIECES = ["a rate of 0.5, and 7 runs"]


def test_a_page_that_says_what_is_computed_has_no_differences() -> None:
    assert not list(page.differences(MADE, TABLES, PIECES))


@pytest.mark.parametrize(
    ("before", "after", "found"),
    [
        ("1.25 |", "1.26 |", ["its row '| 2 | 1.26 |' is not", "it lacks the row '| 2 | 1.25 |'"]),
        ("| 2 | 1.25 |\n", "", ["it lacks the row"]),
        ("| 2 |", "| 4 | 9.00 |\n| 2 |", ["its row '| 4 | 9.00 |' is not"]),
        ("7 runs", "8 runs", ["it does not say 'a rate of 0.5, and 7 runs'", "its number 0.5 is in no piece"]),
        ("Text", "Text with 3.75 more", ["its number 3.75 is in no piece"]),
    ],
)
def test_every_row_and_number_that_is_not_computed_is_a_difference(before: str, after: str, found: list[str]) -> None:
    differences = list(page.differences(MADE.replace(before, after), TABLES, PIECES))
    assert len(differences) == len(found)
    for difference, beginning in zip(differences, found, strict=True):
        assert difference.startswith(beginning)


def test_the_first_policy_is_right_one_time_in_four() -> None:
    assert log(3) == -progress.START


@pytest.mark.parametrize("arguments", [["--out", "file"], ["--page", "none.md"]])
def test_a_path_that_cannot_be_used_is_one_line_on_stderr(tmp_path: Path, arguments: list[str]) -> None:
    (tmp_path / "file").touch()
    command = [sys.executable, "-m", "experiments.bandit", arguments[0], str(tmp_path / arguments[1])]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
