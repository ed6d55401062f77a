"""Faults of replicas, at random by seed: killed or hanging in a batch or in a sync, or slow; none may show in a table.

ISOCOMPUTE_REPLICA_FAULTS says how many.
"""

import os
import random
import signal
from collections.abc import Callable, Iterator
from typing import Any

import hashed
import polars as pl
import pytest

pytestmark = [pytest.mark.slow("Ray"), pytest.mark.xdist_group("ray")]

FAULTS = int(os.environ.get("ISOCOMPUTE_REPLICA_FAULTS", "3"))
KINDS = (
    "killed in a batch",
    "slow",
    "hanging in a sync",
    "killed in a sync",
    "hanging in a batch",
    "killed in both",
    "killed twice",
    "killed after a batch",
)
SIGNALS = {"killed": signal.SIGKILL, "hanging": signal.SIGSTOP}
PROBLEMS = 24


class Played:
    """Replicas, and the same sampler alone, which says what they should answer."""

    def __init__(self, pool: Any) -> None:
        self.pool, self.alone, self.folder = pool, pool.alone, pool.folder
        self.problems = hashed.problems(PROBLEMS)
        self.count = len(pool.driver.members)

    def process(self, index: int) -> Any:
        """The process of a replica; None where it is not up."""
        return getattr(self.pool.driver.members[index].opened, "process", None)

    def strike(self, index: int, how: str) -> int:
        """Kill or stop a replica; returns its process."""
        process: int = self.process(index)
        os.kill(process, SIGNALS[how])
        return process

    def sync(self, version: int, seed: int, struck: tuple[int, str] | None, source: random.Random) -> list[int]:
        """Sync other weights; one replica may be struck before one of the tensors."""
        whole, ended = hashed.weights(seed), []
        moment = source.randrange(len(whole))

        def arriving() -> Iterator[tuple[str, Any]]:
            for number, item in enumerate(whole.items()):
                if struck is not None and number == moment:
                    ended.append(self.strike(*struck))
                yield item

        self.pool.sync(arriving(), version)
        self.alone.sync(whole, version)
        return ended

    def sample(self, step: int) -> None:
        """Compare a table with the one that the sampler gives alone."""
        self._compare(step, list(self.pool.stream(self.problems, **self._asked(step))))

    def sample_slowly(self, step: int, slow: int) -> None:
        """Sample with one replica that answers nothing until the others have answered most, and compare."""
        gate = self.folder / f"wait-{self.process(slow)}"
        gate.touch()
        members = self.pool.driver.members
        before, groups = [member.answered for member in members], []
        for group in self.pool.stream(self.problems, **self._asked(step)):
            groups.append(group)
            if len(groups) == PROBLEMS * 2 // 3:
                gate.unlink()
        shares = [member.answered - old for member, old in zip(members, before, strict=True)]
        assert sum(shares) == PROBLEMS
        assert shares[slow] < PROBLEMS / len(members)
        self._compare(step, groups)

    def sample_struck(self, step: int, victim: int, how: str, source: random.Random) -> int:
        """Sample while a replica is struck that has answered none or one of its groups, and compare.

        Returns:
            The process that was struck.
        """
        paced, moment = source.random() < 0.5, source.randint(1, PROBLEMS // 2)
        member = self.pool.driver.members[victim]
        (self.folder / f"{'pace' if paced else 'wait'}-{self.process(victim)}").touch()
        before, groups, ended = member.answered, [], 0
        for group in self.pool.stream(self.problems, **self._asked(step)):
            groups.append(group)
            if not ended and (member.answered > before if paced else len(groups) == moment):
                ended = self.strike(victim, how)
        assert self.pool.driver.last_lost.startswith(f"replica {victim}: it di")
        assert "answer the group" in self.pool.driver.last_lost
        self._compare(step, groups)
        return ended

    def _asked(self, step: int) -> dict[str, Any]:
        return {"samples": 3, "seed": 7, "step": step, "run_id": "r"}

    def _compare(self, step: int, groups: list[Any]) -> None:
        found = pl.concat([pl.DataFrame(pl.from_arrow(group)) for group in groups]).sort("problem_id", "sample")
        assert found.equals(self.alone.sample(self.problems, **self._asked(step)))


@pytest.fixture(scope="module")
def played(pair: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[int], Played]]:
    """Two replicas that need not wait for the next sync after a death (0), and three that must (1)."""
    three: list[Any] = []

    def made(which: int) -> Played:
        if which and not three:
            three.append(hashed.replicas(tmp_path_factory.mktemp("three"), 3))
        return Played(three[0] if which else pair)

    pair._sender._keep = True
    yield made
    pair._sender._keep = False
    for pool in three:
        pool.close()


@pytest.mark.parametrize("number", range(FAULTS))
def test_a_fault_of_a_replica_shows_in_no_table(number: int, played: Callable[[int], Played]) -> None:
    # A short run needs one of the pools.
    fault, one = KINDS[number % len(KINDS)], played(number // len(KINDS) % 2)
    source = random.Random(number)
    victim, other = source.sample(range(one.count), 2)
    how, where = fault.partition(" ")[0], fault.partition(" ")[2]
    one.pool.settle()
    version = one.pool.weights_version + 1
    ended = one.sync(version, number + 1, (victim, how) if where in ("in a sync", "in both") else None, source)
    assert one.pool.weights_version == version
    if fault == "slow":
        one.sample_slowly(number, victim)
    elif where in ("in a batch", "twice"):
        ended.append(one.sample_struck(number, victim, how, source))
    elif where == "in both":
        ended.append(one.sample_struck(number, other, how, source))
    else:
        one.sample(number)
    if where == "twice":
        # The process that has taken the place of the one that was killed, in the same place.
        one.pool.settle()
        one.sync(version + 1, number + 1000, None, source)
        ended.append(one.sample_struck(number, victim, how, source))
    if where == "after a batch":
        ended.append(one.strike(victim, how))
    one.sync(one.pool.weights_version + 1, number + 2000, None, source)
    one.sample(number)
    assert len(ended) == (0 if fault == "slow" else 1 + (where in ("in both", "twice")))
    assert not [process for process in ended if process in map(one.process, range(one.count))]
