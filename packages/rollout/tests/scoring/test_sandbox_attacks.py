"""One attack of each kind through every rule: none earns reward, none reaches anything outside, and how each ends."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from isocompute.rollout.problems.reasoning_gym import candidates
from isocompute.rollout.problems.sources import ReasoningGymSource
from isocompute.rollout.scoring.config import LAYERS, ScoringConfig
from isocompute.rollout.scoring.rules import EXECUTING, REFUSED
from isocompute.rollout.scoring.scorer import Item, Scorer
from scoring.attacks import ATTACKS, EXAMPLES
from scoring.outside import SECRET, Outside
from scoring.siege import MODULE, besiege, program_targets, text_target

pytestmark = pytest.mark.slow("attacks through every task of reasoning-gym")

reasoning_gym = pytest.importorskip("reasoning_gym")
NAMED = {attack.name: attack for attack in ATTACKS}
ENDS = {
    "hangs in a loop": "deadline: more than 0.5 s of processor time",
    "ignores its deadline": "deadline: ",
    "exhausts memory": "error: MemoryError",
    "writes to every pipe": "the verifier's process wrote something that is not a verdict",
    "leaves at once": "the verifier's process ended (exit code 0)",
    "uses C": "the verifier's process ended (SIGSEGV)",
    "opens sockets": "error: PermissionError",
    "reads a secret": "error: KeyError",
    "reads the engine's files": "error: PermissionError",
    "never returns": "error: RecursionError",
}
"""What the column ``score_error`` says of a response that a verifier executes."""


@pytest.fixture(scope="module")
def module(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    path = tmp_path_factory.mktemp("modules") / "own_verifiers.py"
    path.write_text(MODULE)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(path.parent))
        yield path


@pytest.fixture(scope="module", params=[{}])
def scorer(module: Path, request: pytest.FixtureRequest) -> Iterator[Scorer]:
    limits: dict[str, Any] = {"seconds": 0.5, "wall_factor": 10.0, "memory_bytes": 2**29}
    scorer = Scorer(ScoringConfig(**limits, **request.param))
    yield scorer
    scorer.close()


@pytest.fixture
def outside(module: Path, scorer: Scorer) -> Iterator[Outside]:
    outside = Outside(module, memory_bytes=scorer.config.memory_bytes)
    yield outside
    outside.close()


@pytest.mark.parametrize("name", ["exact|regex:(?s).+", r"exact|regex:^((a+)+)\s*$", "math|boxed"])
def test_no_attack_earns_reward_from_a_comparison(name: str, scorer: Scorer, outside: Outside) -> None:
    pytest.importorskip("math_verify")
    assert besiege(scorer, text_target(name, "a" if "a+" in name else "3/4"), EXAMPLES, outside) == []


def test_no_attack_earns_reward_from_a_task(scorer: Scorer, outside: Outside) -> None:
    """Every task that may execute, and every twentieth other; ``nox -s redteam`` takes all of them."""
    others = sorted(set(reasoning_gym.factory.DATASETS) - set(REFUSED) - set(EXECUTING))
    for task in [*EXECUTING, *others[::20]]:
        problem = next(iter(candidates(ReasoningGymSource(task=task, train=1, validation=1, seed=5))))
        target = text_target(problem.verifier, problem.answer, problem.metadata)
        assert besiege(scorer, target, EXAMPLES, outside) == [], task


# No load makes half a second of processor time take eight minutes.
@pytest.mark.parametrize("scorer", [{"wall_factor": 1000.0}], indirect=True)
def test_how_a_response_ends_is_said(scorer: Scorer, outside: Outside) -> None:
    item = program_targets()["executes"].item
    texts = [outside.text(NAMED[name], SECRET) for name in ENDS]
    verdicts = scorer.submit([Item(verifier=item.verifier, response=t, answer=SECRET) for t in texts]).result()
    for (name, end), verdict in zip(ENDS.items(), verdicts, strict=True):
        assert verdict.reward == 0, name
        assert str(verdict.error).startswith(end), name
    scorer.close()
    assert not outside.processes()


@pytest.mark.parametrize("scorer", [{"without": LAYERS, "allow_unisolated": True}], indirect=True)
def test_without_any_layer_deadlines_are_kept_and_attacks_reach_what_is_outside(
    scorer: Scorer, outside: Outside
) -> None:
    item = program_targets()["executes"].item
    rewards = {item.response: 1.0, "answer = '5'": 0.0, "while True: pass": 0.0, "import os; os._exit(0)": 0.0}
    items = [Item(verifier=item.verifier, response=text, answer=SECRET) for text in rewards]
    assert [v.reward for v in scorer.submit(items).result(timeout=60)] == list(rewards.values())
    # So the attacks are real ones, and it is the layers that keep them inside.
    for name, change in (("executes a command", "made"), ("opens sockets", "TCP"), ("changes modes", "changed")):
        before = outside.state()
        attack = Item(verifier=item.verifier, response=outside.text(NAMED[name], SECRET), answer=SECRET)
        scorer.submit([attack]).result(timeout=60)
        assert change in str(outside.changes(before)), name
    read = outside.text(NAMED["reads the engine's files"], SECRET)
    assert scorer.submit([Item(verifier=item.verifier, response=read, answer=SECRET)]).result(60)[0].reward == 1
