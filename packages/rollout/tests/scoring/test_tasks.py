"""Judges of reasoning-gym and math-verify: nothing they read is executed, no constant is right, metadata are used.

Most scorers run in this process here, where spies can see them.
"""

import builtins
import contextlib
import json
import logging
import os
import pickle
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from isocompute.rollout import RolloutError, load_problems, source_from, verifier
from isocompute.rollout.problems.loading import candidates
from isocompute.rollout.problems.sources import Candidate, ReasoningGymSource
from isocompute.rollout.scoring import rules
from isocompute.rollout.scoring.judges import tasks
from isocompute.rollout.scoring.judges.equivalence import MathJudge
from isocompute.rollout.scoring.rules import EXECUTING, REFUSED

pytestmark = pytest.mark.slow("every task of reasoning-gym")

reasoning_gym = pytest.importorskip("reasoning_gym")
TASKS = sorted(reasoning_gym.factory.DATASETS)
ALLOWED = [task for task in TASKS if task not in REFUSED]
CALCULATING = set("0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ \t\n.+-*/^(),")
"""What a text that sympy parses may hold: no attribute, no string, no index, no name with an underscore."""


def _is_text(values: Any) -> bool:
    return any(isinstance(value, str) and not value.isdigit() for value in values)


class ReachedError(Exception):
    """A spy was called instead of what it replaces."""


class Spies:
    """Replace all that executes text but a parser of these characters: record the calls and execute nothing."""

    def __init__(self, patch: pytest.MonkeyPatch, *, parses: set[str] | None = None) -> None:
        self.reached: list[str] = []
        self.parses = parses
        import sympy
        from sympy.parsing import sympy_parser

        for name in ("eval", "exec"):
            patch.setattr(builtins, name, self.spy(name, getattr(builtins, name)))
        unsafe: Callable[..., bool] = lambda values: not (parses and set(values[0]) <= parses)  # noqa: E731
        self.everywhere(patch, sympy_parser.parse_expr, "parse_expr", unsafe)
        # sympy turns its own objects and numbers into themselves all the time; another text it would parse.
        self.everywhere(patch, sympy.sympify, "sympify", _is_text)
        for owner, name in (
            (os, "system"),
            (os, "popen"),
            (subprocess, "Popen"),
            (subprocess, "run"),
            (pickle, "loads"),
        ):
            patch.setattr(owner, name, self.spy(name, getattr(owner, name)))

    def everywhere(self, patch: pytest.MonkeyPatch, real: Any, name: str, counts: Callable[..., bool]) -> None:
        """Replace a function wherever a module refers to it, and no other function of its name."""
        for module in list(sys.modules.values()):
            for bound, value in list(getattr(module, "__dict__", {}).items()):
                if value is real:
                    patch.setattr(module, bound, self.spy(name, real, counts))

    def spy(self, name: str, real: Any, counts: Callable[..., bool] = lambda _: True) -> Callable[..., Any]:
        def called(*values: Any, **options: Any) -> Any:
            # Modules are executed when they are imported, which a scorer may do late; what sympy's parser evaluates
            # is what it was given, which is looked at there.
            caller = sys._getframe(1).f_code.co_filename
            if "importlib" in caller or (self.parses and "sympy_parser" in caller) or not counts(values):
                return real(*values, **options)
            self.reached.append(f"{name}{str(values)[:80]}")
            raise ReachedError(name)

        return called


@pytest.fixture(scope="module")
def known() -> dict[str, Candidate]:
    """A problem of every task."""
    return {task: next(drawn(task, seed=5)) for task in ALLOWED}


def drawn(task: str, **settings: Any) -> Iterator[Candidate]:
    """Problems of a task."""
    return iter(candidates(ReasoningGymSource(task=task, train=4, validation=4, **settings)))


def payloads(answer: str, target: Path) -> list[str]:
    """Attacks, bare and in the shapes that scorers look for."""
    bare = f'__import__("os").system("touch {target}")'
    tokens = answer.split() or [""]
    shaped = [
        bare,
        f"[{bare}]",
        f"({bare},)",
        f'{{"a": {bare}}}',
        json.dumps(bare),
        json.dumps({"a": bare}),
        f"1+{bare}",
        f"x={bare}",
        f"{answer}\n{bare}",
        f"{answer} + 0*{bare}",
        f"[{answer}][0*len(str({bare}))]",
        f"\\boxed{{{bare}}}",
        f"Matrix([[{bare}]])",
        f"lambda: {bare}",
    ]
    for place in sorted({0, len(tokens) // 2, len(tokens) - 1}):
        shaped.append(" ".join([*tokens[:place], bare, *tokens[place + 1 :]]))
    return shaped


def poisoned(value: Any, payload: str, path: tuple[str, ...] = (), seen: Any = None) -> Iterator[tuple[Any, Any]]:
    """Values with one leaf replaced, one for each kind of leaf; items of a list are of one kind."""
    seen = set() if seen is None else seen
    if isinstance(value, dict):
        for key, inner in value.items():
            for other, kind in poisoned(inner, payload, (*path, key), seen):
                yield {**value, key: other}, kind
    elif isinstance(value, list):
        for i, inner in enumerate(value):
            for other, kind in poisoned(inner, payload, (*path, "*"), seen):
                yield [*value[:i], other, *value[i + 1 :]], kind
    elif (path, type(value)) not in seen:
        seen.add((path, type(value)))
        yield payload, path


Score = Callable[[str, str, str, str], object]
"""Of a task, a response, an answer and metadata."""


def attack(score: Score, task: str, problem: Candidate, target: Path) -> None:
    """Score a problem's own answer, then attack through the response, the answer and the metadata."""
    answer, held = problem.answer, problem.metadata
    score(task, answer, answer, held)
    for payload in payloads(answer, target):
        score(task, payload, answer, held)
        score(task, answer, payload, held)
        score(task, payload, payload, held)
    for payload in payloads(answer, target)[:2]:
        for other, _ in poisoned(json.loads(held) if held else {"metadata": ""}, payload):
            text = json.dumps(other)
            score(task, answer, answer, text)
            score(task, "[" + answer + "]", answer, text)
            score(task, payload, answer, text)


@pytest.fixture
def judged(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Score]:
    """Make the function that scores a task in this process, with or without the evaluators that only calculate."""

    def made(*, guarded: bool) -> Score:
        guards = list(tasks.guards()) if guarded else []
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(tasks, "guards", list)
            judge = tasks.TaskJudge()
        for module, name, value in guards:
            monkeypatch.setitem(module.__dict__, name, value)

        def score(task: str, response: str, answer: str, metadata: str) -> object:
            # What a table holds may be refused, and a scorer may raise on what it cannot read.
            with contextlib.suppress(Exception):
                return judge.prepare(f"reasoning_gym:{task}", answer, metadata)(response)
            return None

        return score

    return made


def warmed(score: Score, known: dict[str, Candidate]) -> None:
    """Have scorers import and compile what they do the first time, before spies are there."""
    # Texts of its own, parsed when it is imported.
    import sympy.physics.units  # noqa: F401

    for task in ALLOWED:
        score(task, known[task].answer, known[task].answer, known[task].metadata)


def test_no_task_executes_what_a_policy_or_a_table_writes(
    known: dict[str, Candidate], judged: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    warmed(judged(guarded=True), known)
    strict = Spies(monkeypatch)
    score = judged(guarded=False)
    for task in sorted(set(ALLOWED) - set(EXECUTING)):
        attack(score, task, known[task], tmp_path / "made")
        assert not strict.reached, task
    monkeypatch.undo()
    parsing = Spies(monkeypatch, parses=CALCULATING)
    score = judged(guarded=True)
    for task in sorted(EXECUTING):
        assert score(task, known[task].answer, known[task].answer, known[task].metadata) == 1.0
        attack(score, task, known[task], tmp_path / "made")
        assert not parsing.reached, task
    assert not (tmp_path / "made").exists()


def test_no_task_executes_its_settings(
    known: dict[str, Candidate], judged: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    bare = f'__import__("os").system("touch {tmp_path / "made"}")'
    score = judged(guarded=True)
    warmed(score, known)
    spies = Spies(monkeypatch, parses=CALCULATING)
    for task in ALLOWED:
        for name, value in vars(reasoning_gym.factory.DATASETS[task][1]()).items():
            if isinstance(value, str | list | tuple) and name not in {"seed", "size"}:
                poison: Any = bare if isinstance(value, str) else [bare]
                text = rules.encode_metadata({"settings": {name: poison}, "question": "", "metadata": {}})
                score(task, "1", "1", text)
        assert not spies.reached, task


def test_refused_tasks_are_refused_by_name_wherever_they_come_from(tmp_path: Path) -> None:
    assert set(REFUSED) < set(TASKS)
    pl.DataFrame({"prompt": ["a", "b"], "answer": ["1", "2"]}).write_ndjson(tmp_path / "own.jsonl")
    for task, reason in REFUSED.items():
        message = f"reasoning-gym's task {task} is refused: {reason}$"
        own = {"kind": "file", "path": str(tmp_path / "own.jsonl"), "verifier": f"reasoning_gym:{task}"}
        with pytest.raises(RolloutError, match=message):
            verifier(f"reasoning_gym:{task}")
        for source in ({"kind": "reasoning_gym", "task": task}, {**own, "train": 1, "validation": 1}):
            with pytest.raises(RolloutError, match=message):
                load_problems(source_from(source))


@pytest.mark.parametrize("task", sorted(set(EXECUTING) - {"codeio"})[::3])
def test_without_these_evaluators_a_task_would_execute(
    task: str, known: dict[str, Candidate], judged: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    score = judged(guarded=False)
    spies = Spies(monkeypatch)
    attack(score, task, known[task], tmp_path / "made")
    assert spies.reached
    assert not (tmp_path / "made").exists()


def test_a_task_whose_scorer_takes_wrong_responses_is_checked_again(known: dict[str, Candidate]) -> None:
    right = verifier("reasoning_gym:puzzle24")
    puzzle = known["puzzle24"]
    others = "4*6*1*1"
    assert right(puzzle.answer, puzzle.answer, puzzle.metadata)
    assert not right(others, puzzle.answer, puzzle.metadata)
    assert reasoning_gym.create_dataset("puzzle24", size=1).score_answer(others, json.loads(puzzle.metadata)) == 1


def test_math_verify_parses_only_digits_and_signs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("math_verify")
    judge = MathJudge()
    # The judge silences its process, which this one is not.
    logging.disable(logging.NOTSET)

    def equivalent(response: str, answer: str) -> bool:
        try:
            return judge.equivalent(response, answer)
        except Exception:
            return False

    assert equivalent("3/4", "0.75")
    assert equivalent("so \\boxed{\\frac{1}{2}}", "0.5")
    assert not equivalent("so \\boxed{2}", "0.5")
    spies, target = Spies(monkeypatch, parses=set("0123456789 \t\n.+-*/^()×÷")), tmp_path / "made"
    for answer in ("3/4", "1, 2", "\\text{yes}"):
        for payload in payloads(answer, target):
            for wrapped in (
                payload,
                f"${payload}$",
                f"\\boxed{{{payload}}}",
                f"final answer is {payload}. I hope",
                f"answer: 1+{payload}",
                f"(1+1){payload}",
                f"1/2 {payload}",
            ):
                equivalent(wrapped, answer)
        for payload in payloads(answer, target)[:4]:
            equivalent(answer, payload)
    assert not spies.reached
    assert not target.exists()


CONSTANTS = ("", "0", "1", "nan", "NaN", "nan+nanj", "inf", "[]", "{}", "()", "{question}")
PROBLEMS = 4
SLOW_GENERATORS = {"codeio", "knight_swap"}


def test_no_constant_is_right_for_more_than_half_of_a_tasks_problems(judged: Any) -> None:
    score = judged(guarded=True)
    right: Counter[tuple[str, str]] = Counter()
    for task in sorted(set(ALLOWED) - SLOW_GENERATORS):
        for problem in islice(drawn(task, seed=3), PROBLEMS):
            for text in CONSTANTS:
                full = score(task, text.replace("{question}", problem.prompt), problem.answer, problem.metadata) == 1
                right[task, text] += full and text != problem.answer
    assert len({task for task, _ in right}) > 90
    assert not {pair: count for pair, count in right.items() if count > PROBLEMS // 2}


def test_numbers_are_right_where_the_conditions_of_a_task_are_met() -> None:
    flip = verifier("reasoning_gym:coin_flip")
    assert flip("0.01757812500", "0.017578125")
    assert flip("9/512", "0.017578125")
    for wrong in ("0", "0.0176 or so"):
        assert not flip(wrong, "0.017578125")
    assert not flip("0.00001", "0.00003051757812")
    entry = '{"metadata":{"result":[3,-2]}}'
    product = verifier("reasoning_gym:complex_arithmetic")
    assert product("3 - 2i", "3.0 - 2.0i", entry)
    for wrong in ("nan", "INF + NaN i"):
        assert not product(wrong, "3.0 - 2.0i", entry)
    # A word that is part of an answer is no number.
    assert verifier("reasoning_gym:spell_backward")("nan", "nan")


def test_the_scorer_has_the_tasks_own_settings_and_each_entry_its_own_metadata() -> None:
    right = verifier("reasoning_gym:decimal_arithmetic")
    # The tolerance is one unit in the last place that the settings allow.
    for places, expected in ((3, True), (8, False)):
        problem = next(drawn("decimal_arithmetic", settings={"max_num_decimal_places": places}))
        assert right("1.0005", "1", problem.metadata) == expected
    one, two = islice(drawn("sudoku"), 2)
    assert not verifier(one.verifier)(one.answer, two.answer, two.metadata)
