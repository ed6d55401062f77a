"""No response that ignores its problem is right, for any task that is allowed."""

import contextlib
from collections import Counter
from itertools import islice

import pytest
from isocompute.rollout import verifier
from isocompute.rollout.problems.reasoning_gym import candidates
from isocompute.rollout.problems.sources import ReasoningGymSource
from isocompute.rollout.scoring.judges import tasks
from isocompute.rollout.scoring.rules import REFUSED

pytestmark = pytest.mark.slow("every task of reasoning-gym")

reasoning_gym = pytest.importorskip("reasoning_gym")
CONSTANTS = ("", "0", "1", "nan", "NaN", "nan+nanj", "inf", "[]", "{}", "()", "{question}")
PROBLEMS = 6
SLOW_GENERATORS = {"codeio", "knight_swap"}


def test_no_constant_is_right_for_more_than_half_of_a_tasks_problems(monkeypatch: pytest.MonkeyPatch) -> None:
    # Scored in this process, which is faster; what they execute is what stands above.
    for module, name, value in list(tasks.guards()):
        monkeypatch.setitem(module.__dict__, name, value)
    monkeypatch.setattr(tasks, "guards", list)
    judge = tasks.TaskJudge()
    right: Counter[tuple[str, str]] = Counter()
    for task in sorted(set(reasoning_gym.factory.DATASETS) - set(REFUSED) - SLOW_GENERATORS):
        for problem in islice(candidates(ReasoningGymSource(task=task, seed=3, train=4, validation=4)), PROBLEMS):
            score = judge.prepare(problem.verifier, problem.answer, problem.metadata)
            for text in CONSTANTS:
                # What a scorer raises on is wrong.
                with contextlib.suppress(Exception):
                    full = score(text.replace("{question}", problem.prompt)) == 1
                    right[task, text] += full and text != problem.answer
    assert len({task for task, _ in right}) > 90
    assert not {pair: count for pair, count in right.items() if count > PROBLEMS // 2}


def test_numbers_are_right_where_the_conditions_of_a_task_are_met() -> None:
    flip = verifier("reasoning_gym:coin_flip")
    assert flip("0.01757812500", "0.017578125")
    assert flip("9/512", "0.017578125")
    assert not flip("0", "0.017578125")
    assert not flip("0.0176 or so", "0.017578125")
    assert not flip("0.00001", "0.00003051757812")
    entry = '{"metadata":{"result":[3,-2]}}'
    product = verifier("reasoning_gym:complex_arithmetic")
    assert product("3 - 2i", "3.0 - 2.0i", entry)
    assert not product("nan", "3.0 - 2.0i", entry)
    assert not product("INF + NaN i", "3.0 - 2.0i", entry)
    # A word that is part of an answer is no number.
    assert verifier("reasoning_gym:spell_backward")("nan", "nan")
