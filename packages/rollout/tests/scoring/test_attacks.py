"""Attacks: none earns reward, none reaches anything outside; ``nox -s redteam`` puts all through every verifier."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from isocompute.rollout.scoring.sandbox.process import LAYERS, ScoringConfig
from isocompute.rollout.scoring.scorer import Item, Scorer
from scoring.attacks import ATTACKS, EXAMPLES, Attack
from scoring.outside import SECRET, Outside
from scoring.siege import MODULE, Target, besiege, program_targets, task_target, text_target

pytestmark = pytest.mark.slow("attacks, some of which take all their time")

TARGETS = program_targets()
CASES = [
    pytest.param(TARGETS[name], attack, id=f"{name}-{attack.kind}")
    for i, attack in enumerate(EXAMPLES)
    for name in [list(TARGETS)[i % len(TARGETS)]]
]
LIMITS: dict[str, Any] = {"seconds": 0.5, "wall_factor": 10.0, "memory_bytes": 2**29, "workers": 1}
NAMED = {attack.name: attack for attack in ATTACKS}
ENDS = {
    "hangs in a loop": "deadline: more than 0.5 s of processor time",
    "ignores its deadline": "deadline: ",
    "exhausts memory": "error: MemoryError",
    "holds memory in many processes": "the verifier's process ended (SIGKILL: too many processes, or too much memory",
    "writes to every pipe": "the verifier's process wrote something that is not a verdict",
    "leaves at once": "the verifier's process ended (exit code 0)",
    "uses C": "the verifier's process ended (SIGSEGV)",
    "opens sockets": "error: PermissionError",
    "reads a secret": "error: KeyError",
    "reads the engine's files": "error: PermissionError",
    "never returns": "error: RecursionError",
}
"""The column ``score_error`` of a response that a verifier executes."""


@pytest.fixture(scope="module")
def module(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    path = tmp_path_factory.mktemp("modules") / "own_verifiers.py"
    path.write_text(MODULE)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(path.parent))
        patch.chdir(path.parent)
        yield path


@pytest.fixture(scope="module")
def scorer(module: Path) -> Iterator[Scorer]:
    """One without namespaces, which would stop many of the attacks by themselves."""
    scorer = Scorer(ScoringConfig(**LIMITS, without=("network", "processes")))
    yield scorer
    scorer.close()


@pytest.fixture
def outside(module: Path) -> Iterator[Outside]:
    outside = Outside(module, memory_bytes=LIMITS["memory_bytes"], seconds=LIMITS["seconds"])
    yield outside
    outside.close()


def executed(scorer: Scorer, *texts: str) -> list[Any]:
    """The verdicts on responses that a verifier executes."""
    verifier = TARGETS["executes"].item.verifier
    return scorer.submit([Item(verifier=verifier, response=text, answer=SECRET) for text in texts]).result(timeout=900)


@pytest.mark.parametrize(("target", "attack"), CASES)
def test_an_attack_changes_no_other_verdict_and_nothing_outside(
    target: Target, attack: Attack, scorer: Scorer, outside: Outside
) -> None:
    assert besiege(scorer, target, [attack], outside) == []


@pytest.mark.parametrize("name", [r"exact|regex:^((a+)+)\s*$", "math|boxed"])
def test_no_attack_earns_reward_from_a_comparison(name: str, scorer: Scorer, outside: Outside) -> None:
    pytest.importorskip("math_verify")
    assert besiege(scorer, text_target(name, "a" if "a+" in name else "3/4"), EXAMPLES, outside) == []


# One whose scorer evaluates, and one whose scorer parses.
@pytest.mark.parametrize("task", ["binary_matrix", "puzzle24"])
def test_no_attack_earns_reward_from_a_task(task: str, scorer: Scorer, outside: Outside) -> None:
    pytest.importorskip("reasoning_gym")
    assert besiege(scorer, task_target(task), EXAMPLES, outside) == []


def test_how_a_response_ends_is_said(outside: Outside) -> None:
    before = outside.processes()
    # No load makes half a second of processor time take eight minutes.
    scorer = Scorer(ScoringConfig(**{**LIMITS, "wall_factor": 1000.0}))
    verdicts = executed(scorer, *(outside.text(NAMED[name], SECRET) for name in ENDS))
    for (name, end), verdict in zip(ENDS.items(), verdicts, strict=True):
        assert verdict.reward == 0, name
        assert str(verdict.error).startswith(end), name
    scorer.close()
    assert set(outside.processes()) <= set(before)


def test_without_any_layer_deadlines_are_kept_and_attacks_reach_what_is_outside(outside: Outside) -> None:
    scorer = Scorer(ScoringConfig(**LIMITS, without=LAYERS, allow_unisolated=True))
    rewards = {
        TARGETS["executes"].item.response: 1.0,
        "answer = '5'": 0.0,
        "while True: pass": 0.0,
        "import os; os._exit(0)": 0.0,
    }
    assert [verdict.reward for verdict in executed(scorer, *rewards)] == list(rewards.values())
    # So the attacks are real ones, and it is the layers that keep them inside.
    for name, change in (("executes a command", "made"), ("opens sockets", "TCP"), ("changes modes", "changed")):
        before = outside.state()
        executed(scorer, outside.text(NAMED[name], SECRET))
        assert change in str(outside.changes(before)), name
    assert executed(scorer, outside.text(NAMED["reads the engine's files"], SECRET))[0].reward == 1
    scorer.close()
