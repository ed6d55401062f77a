"""One attack of each kind through a verifier that executes responses; ``nox -s redteam`` runs all through all."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from isocompute.rollout.scoring.config import ScoringConfig
from isocompute.rollout.scoring.scorer import Scorer
from scoring.attacks import ATTACKS, EXAMPLES, KINDS, Attack
from scoring.outside import Outside
from scoring.siege import MODULE, Target, besiege, program_targets

pytestmark = pytest.mark.slow("attacks, some of which take all their time")

TARGETS = program_targets()
EVERYWHERE = {"frames", "files", "sockets"}
"""Kinds that are put through every verifier; the others go through one each, in turn."""
CASES = [
    pytest.param(target, attack, id=f"{name}-{attack.kind}")
    for i, attack in enumerate(EXAMPLES)
    for j, (name, target) in enumerate(TARGETS.items())
    if attack.kind in EVERYWHERE or i % len(TARGETS) == j
]
LIMITS = {"seconds": 1.0, "wall_factor": 10.0, "memory_bytes": 2**29, "workers": 1}


@pytest.fixture(scope="module")
def modules(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("modules")
    (folder / "own_verifiers.py").write_text(MODULE)
    return folder


@pytest.fixture(scope="module")
def scorer(modules: Path) -> Iterator[Scorer]:
    """One without namespaces, which would stop many of the attacks by themselves."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(modules))
        scorer = Scorer(ScoringConfig(**LIMITS, without=("network", "processes")))
        yield scorer
        scorer.close()


@pytest.fixture
def outside(modules: Path) -> Iterator[Outside]:
    outside = Outside(modules / "own_verifiers.py", memory_bytes=LIMITS["memory_bytes"])
    yield outside
    outside.close()


def test_attacks_have_names_of_their_own_and_every_kind_has_one() -> None:
    assert len({attack.name for attack in ATTACKS}) == len(ATTACKS)
    assert {attack.kind for attack in EXAMPLES} == set(KINDS)


@pytest.mark.parametrize(("target", "attack"), CASES)
def test_an_attack_changes_no_other_verdict_and_nothing_outside(
    target: Target, attack: Attack, scorer: Scorer, outside: Outside
) -> None:
    assert besiege(scorer, target, [attack], outside) == []
