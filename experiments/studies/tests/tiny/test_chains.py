"""The teacher of chains: what it wrote before there were other tasks, and how often it errs."""

from hashlib import sha256

import numpy as np

from experiments.studies.tiny.chains import ChainTeacher
from experiments.studies.tiny.config import ChainsModelConfig


def test_solutions_are_those_that_the_default_has_always_been_taught() -> None:
    teacher, rng = ChainTeacher(ChainsModelConfig()), np.random.default_rng(0)
    lessons = [teacher.lesson(rng) for _ in range(2000)]
    assert all(lesson.targets is None for lesson in lessons)
    written = "\n".join(lesson.prompt + lesson.response for lesson in lessons)
    assert sha256(written.encode()).hexdigest()[:16] == "f4860477f2321c4f"


def test_a_fact_is_wrong_as_often_as_its_rate_says() -> None:
    teacher, rng = ChainTeacher(ChainsModelConfig()), np.random.default_rng(1)
    draws = 4000
    for change in (-5, -1, 2, 4):
        rate = teacher.error_rate(3, change)
        wrong = sum(teacher.worked(rng, [3, change]) != str(3 + change) for _ in range(draws))
        assert abs(wrong / draws - rate) <= 4 * np.sqrt(rate * (1 - rate) / draws)
