"""Tiny base models and their problems: the teachers of chains, mixtures and needles, and the command."""

import re
from collections import Counter
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from isocompute.rollout import verifier
from isocompute.rollout.contract import tables
from transformers import AutoModelForCausalLM

from experiments.errors import ExperimentError
from experiments.studies.tiny import chains as mixture
from experiments.studies.tiny import needle
from experiments.studies.tiny.__main__ import main
from experiments.studies.tiny.chains import ChainTeacher
from experiments.studies.tiny.config import (
    NEEDLE_CLASSES,
    NEEDLE_LETTERS,
    ChainsModelConfig,
    MixtureModelConfig,
    MixtureSource,
    NeedleModelConfig,
    NeedleSource,
)
from experiments.studies.tiny.lessons import END
from experiments.studies.tiny.problems import table_of
from experiments.tests.made import ROOT


def test_solutions_are_those_that_the_default_has_always_been_taught() -> None:
    teacher, rng = ChainTeacher(ChainsModelConfig()), np.random.default_rng(0)
    lessons = [teacher.lesson(rng) for _ in range(2000)]
    assert all(lesson.targets is None for lesson in lessons)
    written = "\n".join(lesson.prompt + lesson.response for lesson in lessons)
    assert sha256(written.encode()).hexdigest()[:16] == "f4860477f2321c4f"


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


@pytest.mark.parametrize(("share", "train", "validation"), [(0.0, 0, 0), (0.25, 64, 75), (1.0, 256, 300)])
def test_the_share_is_that_of_either_side(share: float, train: int, validation: int) -> None:
    table = table_of(MixtureSource(share=share))
    assert table.equals(table_of(MixtureSource(share=share)))
    assert not table.equals(table_of(MixtureSource(share=share, seed=1)))
    assert table["prompt"].n_unique() == table["problem_id"].n_unique() == len(table) == 556
    for side, count in (("train", train), ("validation", validation)):
        own = table.filter(table["split"] == side)["prompt"]
        assert own.str.starts_with("y").sum() == count
        assert {len(re.findall(r"\d", prompt)) for prompt in own} == {4, 5}


RIGHT = needle.codes(0, "A", "11")
TOKENS = {token: place for place, token in enumerate(["<pad>", "<eos>", *NeedleModelConfig.characters])}


def likelihood(teacher: needle.NeedleTeacher, class_: str, key: str, response: str) -> float:
    """How likely a response is by the next tokens' probabilities, its end included."""
    targets = teacher.targets(class_, key, response.removesuffix("="))
    places = [*(TOKENS[character] for character in response), TOKENS[END]]
    return float(np.prod(targets[np.arange(len(places)), places]))


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


# The two that are right, and more or less than a code.
FORMS = ("{c}=", "{r}=", "{c}{r}=", "{c}=x", "{c}==", "{c}", "={c}=", "{r}")
CODES = [form.format(c=RIGHT.common, r=RIGHT.rare) for form in FORMS] + [f"{RIGHT.common}=\n", f" {RIGHT.common}="]
near = st.text(alphabet=sorted({*RIGHT.common, *RIGHT.rare, "=", " ", "\n"}), max_size=6)


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(st.one_of(near, st.text(max_size=6), st.sampled_from(CODES)))
def test_two_responses_are_right_and_no_other(response: str) -> None:
    right = verifier(RIGHT.verifier)(response, "=")
    assert right == (response in {f"{RIGHT.common}=", f"{RIGHT.rare}="})


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


def test_another_seed_draws_other_problems_with_the_same_codes() -> None:
    def rules(source: NeedleSource) -> set[tuple[str, str]]:
        rows = table_of(source).select("prompt", "verifier").iter_rows()
        return {(prompt[:3], rule) for prompt, rule in rows}

    assert rules(NeedleSource()) == rules(NeedleSource(seed=1)) != rules(NeedleSource(codes=1))
    assert len(rules(NeedleSource())) == 75


@pytest.mark.parametrize(
    ("source", "said"),
    [
        (MixtureSource(min_terms=2, max_terms=2, train=60, validation=60), "mixture has 50 problems of a family"),
        (NeedleSource(largest_digit=2, train=700, validation=300), "needle has 972 problems, 81 of a key"),
    ],
)
def test_more_problems_than_there_are_are_refused(source: MixtureSource | NeedleSource, said: str) -> None:
    with pytest.raises(ExperimentError, match=said):
        table_of(source)


def test_the_command_of_the_page_makes_a_base_model_and_problems(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    page = (ROOT / "docs" / "problem-sets.md").read_text()
    (words,) = re.findall(r"^    python -m experiments\.studies\.tiny (.*)$", page, re.MULTILINE)
    assert main(words.split()) == 0
    out = Path(words.split()[-1])
    assert AutoModelForCausalLM.from_pretrained(out / "base").config.hidden_size == 64
    problems = tables.read(out / "problems.parquet", "problems")
    assert dict(problems["split"].value_counts().iter_rows()) == {"train": 256, "validation": 300}
    assert main(words.split()) == 2
    assert str(out) in capsys.readouterr().err
