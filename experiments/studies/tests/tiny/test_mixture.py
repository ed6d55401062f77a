"""Mixture: both rules, by an evaluation of their own, and the problems."""

import re

import numpy as np
import pytest
from isocompute.rollout import verifier

from experiments.errors import ExperimentError
from experiments.studies.tiny import chains as mixture
from experiments.studies.tiny.config import MixtureModelConfig, MixtureSource
from experiments.studies.tiny.problems import table_of


def partial_results(prompt: str) -> list[int]:
    """Every partial result by the rule of the prompt's prefix."""
    expression = prompt[1:].removesuffix("=")
    if prompt[0] == "y":
        expression = expression.translate(str.maketrans("+-", "-+"))
    terms = re.findall(r"[+-]?\d", expression)
    return [sum(int(term) for term in terms[: i + 1]) for i in range(1, len(terms))]


def test_answers_are_those_of_the_rule_of_the_prefix() -> None:
    table = table_of(MixtureSource(train=200, validation=200))
    for prompt, answer, rule in table.select("prompt", "answer", "verifier").iter_rows():
        steps = [str(step) for step in partial_results(prompt)]
        assert answer == steps[-1]
        right = verifier(rule)
        assert right("=".join(steps), answer)
        assert not right(f"{'='.join(steps)}=", answer)
        assert not right(f"{'='.join(steps)}0", answer)
        assert not right(f"{'='.join(steps[:-1])}={int(answer) + 1}", answer)


def test_a_teacher_without_errors_would_follow_the_rules() -> None:
    teacher, rng = mixture.MixtureTeacher(MixtureModelConfig()), np.random.default_rng(0)
    right = {"x": [0, 0], "y": [0, 0]}
    for _ in range(4000):
        lesson = teacher.lesson(rng)
        steps = [int(step) for step in lesson.response.split("=")]
        expected = partial_results(lesson.prompt)
        assert len(steps) == len(expected)
        right[lesson.prompt[0]][0] += steps[0] == expected[0]
        right[lesson.prompt[0]][1] += 1
    # A fact is wrong in a third of the solutions, in the mean over Beta(0.5, 1), of 50 first facts of each family.
    spread = np.sqrt(0.5 / (1.5**2 * 2.5) / 50 + 1 / 3 * 2 / 3 / 1900)
    for successes, count in right.values():
        assert abs(successes / count - 2 / 3) < 4 * spread
        assert abs(count - 2000) < 4 * np.sqrt(1000)


def test_families_have_errors_of_their_own() -> None:
    teacher = mixture.MixtureTeacher(MixtureModelConfig())
    facts = [(partial, change) for partial in range(-9, 10) for change in (-5, -3, 1, 4)]
    rates = np.array([[teacher.error_rate(family, *fact) for fact in facts] for family in (0, 1)])
    assert abs(np.corrcoef(rates)[0, 1]) < 4 / np.sqrt(len(facts))
    assert all(teacher.error_rate(1, *fact) == rate for fact, rate in zip(facts, rates[1], strict=True))


SIDES = [(0.0, 0, 0), (0.25, 64, 75), (0.5, 128, 150), (1.0, 256, 300)]


@pytest.mark.parametrize(("share", "train", "validation"), SIDES)
def test_the_share_is_that_of_either_side(share: float, train: int, validation: int) -> None:
    table = table_of(MixtureSource(share=share))
    assert table.equals(table_of(MixtureSource(share=share)))
    assert not table.equals(table_of(MixtureSource(share=share, seed=1)))
    assert table["prompt"].n_unique() == table["problem_id"].n_unique() == len(table) == 556
    for side, count in (("train", train), ("validation", validation)):
        own = table.filter(table["split"] == side)["prompt"]
        assert own.str.starts_with("y").sum() == count
        assert {len(re.findall(r"\d", prompt)) for prompt in own} == {4, 5}


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_the_teacher_writes_the_family_alone_that_the_share_leaves(share: float) -> None:
    teacher, rng = mixture.MixtureTeacher(MixtureModelConfig(share=share)), np.random.default_rng(0)
    assert {teacher.lesson(rng).prompt[0] for _ in range(50)} == {"y" if share else "x"}


def test_more_problems_than_there_are_are_refused() -> None:
    with pytest.raises(ExperimentError, match="mixture has 50 problems of a family, and 60 are asked for"):
        table_of(MixtureSource(min_terms=2, max_terms=2, train=60, validation=60))
