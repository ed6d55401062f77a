"""Needle: the rates that the teacher teaches, the codes that are right, and the problems."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from isocompute.rollout import verifier
from scipy import stats

from experiments.errors import ExperimentError
from experiments.studies.tiny import needle
from experiments.studies.tiny.config import NEEDLE_CLASSES, NEEDLE_LETTERS, NeedleModelConfig, NeedleSource
from experiments.studies.tiny.lessons import END, vocabulary
from experiments.studies.tiny.problems import table_of

KEYS = [f"{a}{b}" for a in range(1, 6) for b in range(1, 6)]
RIGHT = needle.codes(0, "A", "11")
TOKENS = {token: place for place, token in enumerate(["<pad>", "<eos>", *NeedleModelConfig.characters])}


def likelihood(teacher: needle.NeedleTeacher, class_: str, key: str, response: str) -> float:
    """How likely a response is by the next tokens' probabilities, its end included."""
    targets = teacher.targets(class_, key, response.removesuffix("="))
    places = [*(TOKENS[character] for character in response), TOKENS[END]]
    return float(np.prod(targets[np.arange(len(places)), places]))


def written(rng: np.random.Generator, teacher: needle.NeedleTeacher, class_: str, key: str) -> str:
    """A response sampled token by token."""
    names, response = list(vocabulary(NeedleModelConfig.characters)), ""
    while True:
        code = response.removesuffix("=")
        # Letters that are not written yet change nothing in front of them.
        row = teacher.targets(class_, key, code if response != code else code.ljust(3, "a"))[len(response)]
        token = names[rng.choice(len(names), p=row)]
        if token == END:
            return response
        response += token


@pytest.mark.parametrize("class_", NEEDLE_CLASSES)
@pytest.mark.parametrize("key", ["11", "35", "52"])
def test_the_next_tokens_of_the_teacher_give_the_rates_exactly(class_: str, key: str) -> None:
    teacher, right = needle.NeedleTeacher(NeedleModelConfig()), needle.codes(0, class_, key)
    rate = {"A": 1 / 16, "B": 1 / 64, "C": 1 / 256}[class_]
    assert likelihood(teacher, class_, key, f"{right.common}=") == pytest.approx(rate * 7 / 8, rel=1e-12)
    assert likelihood(teacher, class_, key, f"{right.rare}=") == pytest.approx(rate / 8, rel=1e-12)
    short = {a + b for a in NEEDLE_LETTERS for b in NEEDLE_LETTERS} - {right.common}
    likely = [likelihood(teacher, class_, key, f"{code}=") for code in sorted(short)]
    assert likely == pytest.approx([(1 - rate) * 15 / 16 / 255] * 255, rel=1e-12)
    wrong = likelihood(teacher, class_, key, "ppp=" if right.rare != "ppp" else "ppo=")
    assert wrong == pytest.approx((1 - rate) / 16 / 4095, rel=1e-12)


@pytest.mark.parametrize("class_", NEEDLE_CLASSES)
def test_the_probabilities_of_all_codes_add_up_to_one(class_: str) -> None:
    short, long = needle.probabilities(class_, needle.codes(3, class_, "24"))
    assert short.sum() + long.sum() == pytest.approx(1, rel=1e-12)


@pytest.mark.slow
def test_what_is_written_token_by_token_is_right_as_often_as_it_should_be() -> None:
    teacher, rng, draws = needle.NeedleTeacher(NeedleModelConfig()), np.random.default_rng(2), 4000
    found = Counter(written(rng, teacher, "A", "11") for _ in range(draws))
    counts = [found[f"{RIGHT.common}="], found[f"{RIGHT.rare}="]]
    short = sum(count for response, count in found.items() if len(response) == 3) - counts[0]
    counts += [short, draws - short - sum(counts)]
    expected = [draws * share for share in (7 / 128, 1 / 128, 15 / 16 * 15 / 16, 15 / 16 / 16)]
    assert stats.chisquare(counts, expected).pvalue > 0.001


def test_lessons_are_along_right_and_random_codes() -> None:
    config = NeedleModelConfig()
    teacher, rng = needle.NeedleTeacher(config), np.random.default_rng(3)
    right = 0
    for _ in range(400):
        lesson = teacher.lesson(rng)
        assert lesson.targets is not None
        assert lesson.targets.shape == (len(lesson.response) + 1, len(vocabulary(config.characters)))
        assert lesson.targets.sum(1) == pytest.approx(np.ones(len(lesson.targets)))
        codes = needle.codes(0, lesson.prompt[0], lesson.prompt[1:3])
        right += lesson.response in {f"{codes.common}=", f"{codes.rare}="}
    assert 150 < right < 250


def test_codes_depend_on_seed_class_and_key_and_part_at_the_first_letter() -> None:
    every = [needle.codes(seed, class_, key) for seed in (0, 1) for class_ in NEEDLE_CLASSES for key in KEYS]
    assert all(len(one.common) == 2 and len(one.rare) == 3 and one.common[0] != one.rare[0] for one in every)
    assert len({one.rare for one in every}) > 140
    assert needle.codes(0, "A", "12") == every[1] != needle.codes(0, "A", "21")


near = st.text(alphabet=sorted({*RIGHT.common, *RIGHT.rare, "=", " ", "\n"}), max_size=6)


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(st.one_of(near, st.text(max_size=6), st.sampled_from([f"{RIGHT.common}=", f"{RIGHT.rare}="])))
def test_two_responses_are_right_and_no_other(response: str) -> None:
    right = verifier(RIGHT.verifier)(response, "=")
    assert right == (response in {f"{RIGHT.common}=", f"{RIGHT.rare}="})


WRONG = ["{c} {r}=", "{c}=x", "{c}==", "{c}", "={c}=", "{c}=\n", " {c}=", "{c}{r}=", "{r}"]


@pytest.mark.slow
@pytest.mark.parametrize("response", WRONG)
def test_more_or_less_than_a_code_is_wrong(response: str) -> None:
    assert not verifier(RIGHT.verifier)(response.format(c=RIGHT.common, r=RIGHT.rare), "=")


def test_problems_are_distinct_even_and_the_same_for_a_seed() -> None:
    table = table_of(NeedleSource())
    assert table.equals(table_of(NeedleSource()))
    assert not table.equals(table_of(NeedleSource(seed=1)))
    assert table["prompt"].n_unique() == table["problem_id"].n_unique() == len(table) == 556
    for side, size in (("train", 256), ("validation", 300)):
        prompts = [prompt for prompt, split in table.select("prompt", "split").iter_rows() if split == side]
        assert len(prompts) == size
        places = Counter(prompt[:3] for prompt in prompts)
        assert len(places) == 75
        assert max(places.values()) - min(places.values()) <= 1
        assert max(Counter(p[0] for p in prompts).values()) - min(Counter(p[0] for p in prompts).values()) <= 1
    # Seeds of problems draw others with the same codes.

    def rules(source: NeedleSource) -> set[tuple[str, str]]:
        rows = table_of(source).select("prompt", "verifier").iter_rows()
        return {(prompt[:3], rule) for prompt, rule in rows}

    assert rules(NeedleSource()) == rules(NeedleSource(seed=1)) != rules(NeedleSource(codes=1))
    assert len(rules(NeedleSource())) == 75


def test_more_problems_than_there_are_are_refused() -> None:
    with pytest.raises(ExperimentError, match="needle has 972 problems, 81 of a key"):
        table_of(NeedleSource(largest_digit=2, train=700, validation=300))
