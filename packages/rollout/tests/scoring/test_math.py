r"""``math`` with an extraction says what math-verify says of the same formula in its own anchor, ``\boxed{...}``."""

from functools import cache
from typing import Any

import pytest
from isocompute.rollout import verifier
from isocompute.rollout.scoring.rules import extraction, rule
from isocompute.rollout.scoring.scorer import Item, default_scorer

pytestmark = pytest.mark.slow("a process of math-verify")

math_verify = pytest.importorskip("math_verify")

GOLDS = ("-7", "0.5", r"\frac{3}{4}", r"3\sqrt{2}", "3x+2", r"\pi", r"\frac{n(n+1)}{2}", "2+3i")
RIGHT = (
    "{}",
    " {} ",
    r"\left({}\right)",
    "{{{}}}",
    "{}+0",
    r"1\cdot({})",
    r"\frac{{2({})}}{{2}}",
    "({})+1-1",
    r"-(-({}))",
    r"\displaystyle {}",
    r"\dfrac{{{}}}{{1}}",
)
WRONG = (
    "{}+1",
    "2({})",
    "({})t",
    "({})t+2",
    r"({})\sqrt{{2}}",
    "({})^{{10}}",
    r"\frac{{{}}}{{7}}",
    "-({})",
    "({})^{{-3}}",
    r"({})\cdot 10^4",
    r"({})\pi",
    r"\sqrt{{({})^2+9}}",
    r"\sin({})",
    "({})!+1",
)
WRITTEN = {
    "math|boxed": r"First 99. So \boxed{{{}}}, which was asked.",
    "math|last_line": "It was 99 and 98.\n\n{}\n",
    "math|after:####": "99 of 98 #### {}",
    "math|regex:Answer: (.+)": "Answer: 99\nAnswer: {}",
}


def verdicts(name: str, pairs: list[tuple[str, str]]) -> list[bool]:
    """What a rule says of pairs of a gold and a response."""
    items = [Item(verifier=name, response=response, answer=gold) for gold, response in pairs]
    return [verdict.reward == 1 for verdict in default_scorer().submit(items).result(timeout=120)]


def of_math_verify(gold: str, formula: str) -> bool:
    """What the library itself says of a formula in a box."""
    return bool(math_verify.verify(parsed(f"${gold}$"), parsed(f"\\boxed{{{formula}}}"), timeout_seconds=None))


@cache
def parsed(text: str) -> list[Any]:
    """What the library reads in a text."""
    return list(math_verify.parse(text, parsing_timeout=None))


def test_an_extracted_formula_is_judged_as_math_verify_judges_it() -> None:
    pairs = ([(gold, form.format(gold)) for gold in GOLDS for form in forms] for forms in (RIGHT, WRONG))
    right, wrong = ({pair: of_math_verify(*pair) for pair in of_forms} for of_forms in pairs)
    assert len(right) + len(wrong) == 8 * 25
    # The library itself reads all but a few of the right answers.
    assert sum(right.values()) > 0.95 * len(right)
    assert sum(wrong.values()) == 0
    expected = right | wrong
    # Each extraction hands over the same formula, so that each judges a quarter of the grid.
    for number, (name, written) in enumerate(WRITTEN.items()):
        extract = extraction(rule(name).words)
        for _, formula in expected:
            assert extract(written.format(formula)) in (f"\\boxed{{{formula}}}", f"${formula.strip()}$")
        own = list(expected)[number :: len(WRITTEN)]
        said = verdicts(name, [(gold, written.format(formula)) for gold, formula in own])
        assert [pair for pair, one in zip(own, said, strict=True) if one != expected[pair]] == [], name


@pytest.mark.parametrize("name", WRITTEN)
@pytest.mark.parametrize("formula", ["3x+2", r"3\sqrt2", "3^{10}", r"3\pi", "3!", "3 + 2i"])
def test_a_number_within_a_formula_is_not_its_value(name: str, formula: str) -> None:
    assert verdicts(name, [(gold, WRITTEN[name].format(formula)) for gold in ("3", formula)]) == [False, True]


@pytest.mark.parametrize(
    ("gold", "line", "right"),
    [
        ("42", "The answer is 42.", True),
        ("42", "**Answer:** 42", True),
        ("42", "**42**", True),
        ("42", "There are 42 apples.", True),
        ("42", "The total is $42", True),
        ("42", r"So $x = 42$.", True),
        ("42", r"\(42\)", True),
        ("42", r"So it is \boxed{42}", True),
        ("42", "3 + 39 = 42", True),
        ("42", "x = 42", True),
        ("1234", "1,234", True),
        ("1234", "1 234", True),
        ("0.5", "50%", True),
        ("1/2", "0.5", True),
        ("1024", "2**10", True),
        ("(1,2)", "(1, 2)", True),
        (r"\{1,2\}", "1, 2", True),
        ("5, 6", "The roots are 5 and 6", True),
        ("3x+2", "Therefore the line is 3x+2.", True),
        ("3", "Therefore the line is 3x+2.", False),
        ("5", "I think it is a 5", True),
        ("5", "5 cm", True),
        (r"\frac{1}{2}", "Final answer: \\frac{1}{2}", True),
        ("42", "Not 42 but 43", False),
        ("v_{max}", "v_{max}", True),
        ("yes", "The answer is yes.", True),
        ("no", "The answer is yes.", False),
        ("B", "So it is option (B).", True),
        ("42", "", False),
    ],
)
def test_a_last_line_may_say_more_than_a_formula(gold: str, line: str, right: bool) -> None:
    assert verifier("math|last_line")(f"We count 7.\n{line}", gold) is right


def test_several_lines_after_a_mark_are_read_as_math_verify_reads_a_response() -> None:
    right = verifier("math|after:</think>")
    assert right("9</think>We add.\n\nThe answer is **42**, as wanted", "42")
    assert right("9</think>We add.\n\nThe answer is $3x+2$.", "3x+2")
    assert not right("9</think>We add.\n\nThe answer is $3x+2$.", "3")
