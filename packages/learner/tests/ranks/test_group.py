"""Ranks as Ray actors: the same as one learner (see the parity chain in ``sync``), and every wait has a timeout."""

import os
import re
import signal
import socket
import sys
from collections.abc import Iterator
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from time import sleep
from typing import Any

import polars as pl
import pytest
import ray
import torch
from isocompute.learner.config import AdapterConfig, LearnerConfig
from isocompute.learner.errors import DivergenceError, LearnerError, RankError, SyncError
from isocompute.learner.ranks.group import LearnerGroup, RankActor
from isocompute.learner.saving.checkpoint import Checkpoints
from isocompute.learner.training.run import through_deaths
from isocompute.learner.updates.learner import Learner
from ray.util.placement_group import placement_group, remove_placement_group
from small_run import Steps, distance, run, weights

pytestmark = [pytest.mark.slow("Ray"), pytest.mark.usefixtures("cluster")]

# Ranks have what they need of this file without what it imports.
ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])


class Light:
    """A rank without a learner, whose process starts in a tenth of the time; the second one hangs in an update."""

    def __init__(self, rank: int, *_: object) -> None:
        self.rank = rank

    def host(self) -> tuple[str, int]:
        return "", 0

    def join(self, *_: object) -> None: ...

    def load(self, model: str, _: object) -> str:
        if "nothing" in model:
            raise LearnerError(f"{model} cannot be loaded")
        return "base"

    def call(self, *_: object, advance: bool) -> None:
        if self.rank:
            sleep(3600)
        raise LearnerError("a prompt has token 99, and the vocabulary of 12 ends before it")


@pytest.fixture
def light(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("isocompute.learner.ranks.group.RankActor", Light)


def process(rank: Any) -> int:
    return int(ray.get(rank.__ray_call__.remote(lambda actor: os.getpid())))


# The first one, since no other ranks have the processors yet.
def test_a_rank_that_fails_alone_ends_the_group_after_its_grace_and_a_reset_starts_it_anew(
    light: None, model: Path, config: LearnerConfig, rollouts: pl.DataFrame, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other one waits for it, as in a collective, for half an hour."""
    pair = LearnerGroup(model, config, world_size=2, update_patience=60, grace=1)
    ended = [process(rank) for rank in pair._ranks]
    patience, wait = [], ray.wait

    def waited(calls: Any, *, timeout: float) -> Any:
        patience.append(timeout)
        return wait(calls, timeout=timeout)

    monkeypatch.setattr(ray, "wait", waited)
    with pytest.raises(LearnerError, match="vocabulary of 12"):
        pair.update(rollouts)
    # An update's, and once one rank had failed the grace.
    assert patience[0] > 1 >= patience[-1]
    assert pair.broken
    with pytest.raises(RankError, match="to start new ones"):
        pair.update(rollouts)
    pair.reset(config)
    assert not pair.broken
    assert not set(ended) & {process(rank) for rank in pair._ranks}
    pair.close()


@pytest.fixture(scope="module")
def group(cluster: None, model: Path) -> Iterator[LearnerGroup]:
    ranks = LearnerGroup(model, LearnerConfig(learning_rate=1.0), world_size=2, update_patience=60, grace=1)
    yield ranks
    ranks.close()


@pytest.fixture
def two(group: LearnerGroup, config: LearnerConfig) -> LearnerGroup:
    group.reset(config)
    return group


def test_two_ranks_take_the_update_of_one_and_hand_over_the_weights_with_the_adapter_and_the_state_without_the_model(
    two: LearnerGroup, model: Path, rollouts: pl.DataFrame, config: LearnerConfig
) -> None:
    config = replace(config, adapter=AdapterConfig(rank=4))
    alone = Learner(model, config)
    two.reset(config)
    expected, found = alone.update(rollouts), two.update(rollouts)
    assert found.metrics() == pytest.approx(expected.metrics(), rel=1e-5, abs=1e-6)
    for mine, theirs in ((alone.weights(), two.weights()), (alone.state()[0].items(), two.state()[0].items())):
        whole, gathered = dict(mine), dict(theirs)
        assert gathered.keys() == whole.keys()
        assert distance(*(torch.cat([each[name].flatten() for name in whole]) for each in (gathered, whole))) < 1e-5
    tensors, values = two.state()
    kept = dict(tensors)
    two.reset(config)
    two.load_state(kept, values)
    assert distance(weights(two), weights(alone)) < 1e-5


def test_a_function_on_the_ranks_sees_every_whole_tensor_and_its_results_come_by_rank(
    two: LearnerGroup, learner: Learner
) -> None:
    def sums(rank: int, tensors: Iterator[tuple[str, torch.Tensor]]) -> tuple[int, dict[str, float]]:
        return rank, {name: float(tensor.double().sum()) for name, tensor in tensors}

    expected = {name: pytest.approx(float(tensor.double().sum())) for name, tensor in learner.weights()}
    assert two.weights().on_ranks(sums) == [(0, expected), (1, expected)]


@pytest.mark.parametrize("seen", [True, False])
def test_a_group_continues_from_its_checkpoint_bit_for_bit(
    two: LearnerGroup, replay: Any, config: LearnerConfig, tmp_path: Path, seen: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether its ranks write and read their parts, or are on machines that do not see the folder."""
    if not seen:
        monkeypatch.setattr(two, "_see", lambda _: False)
    whole = run(two, replay, tmp_path / "whole", steps=4)
    straight = two.state()
    two.reset(config)
    assert two.version == 0
    run(two, replay, tmp_path / "cut", steps=3)
    two.reset(config)
    assert run(two, replay, tmp_path / "cut", steps=4) == whole
    again = two.state()
    assert [len([*folder.glob("tensors-*")]) for folder in (tmp_path / "cut").iterdir()] == [2 if seen else 1] * 2
    assert again[1] == straight[1]
    assert straight[1]["version"] == 4
    assert all(torch.equal(tensor, again[0][name]) for name, tensor in straight[0].items())


def test_an_error_of_all_ranks_is_the_error_of_one_learner_and_they_take_the_next_update(
    two: LearnerGroup, rollouts: pl.DataFrame
) -> None:
    """Also where the fault is in the share of one."""
    last, before = pl.int_range(pl.len()) == pl.len() - 1, weights(two)
    stale = rollouts.with_columns(weights_version=pl.lit(7, dtype=pl.Int64))
    with pytest.raises(SyncError, match=r"step 1 .*version \[7\]") as caught:
        two.update(stale)
    assert "Traceback" not in str(caught.value)
    with pytest.raises(DivergenceError, match="step 1 has a gradient"):
        two.update(rollouts.with_columns(advantage=pl.when(last).then(1e300).otherwise("advantage")))
    assert not two.broken
    assert torch.equal(before, weights(two))
    two.update(rollouts)
    assert two.version == 1


def test_ranks_for_which_there_is_no_room_in_the_cluster_or_in_its_bundles_are_an_error(
    two: LearnerGroup, config: LearnerConfig
) -> None:
    """At once where there never will be; else the error says for how long something was waited for."""
    for settings, message in (
        ({"world_size": 3}, r"3 CPUs, .*2 in all"),
        ({"world_size": 1, "device": "cuda"}, r"1 GPUs, .*0 in all"),
        ({"world_size": 1}, r"in 1 s .*no room"),
    ):
        with pytest.raises(LearnerError, match=message):
            LearnerGroup(two.model, config, **{"patience": 1, **settings})


def test_a_run_goes_on_by_itself_when_a_rank_dies_while_it_writes_a_checkpoint(
    two: LearnerGroup, replay: Any, config: LearnerConfig, tmp_path: Path
) -> None:
    every = {"every_steps": 2}
    whole = run(two, replay, tmp_path / "whole", steps=6, every=every)
    expected = dict(two.weights())
    ended, said, left = [], [], []

    def hang(_: Any) -> None:
        group: Any = import_module("isocompute.learner.ranks.group")
        group.write_tensors = lambda *_, **__: sleep(3600)

    class Deadly(Steps):
        def admit(self, *, step: int, rollouts: int) -> bool:
            if step == 4 and not ended:
                ray.get(two._ranks[1].__ray_call__.remote(hang))
            # One step was taken meanwhile.
            if step == 6 and not ended:
                ended.append(process(two._ranks[1]))
                os.kill(ended[0], signal.SIGKILL)
            return super().admit(step=step, rollouts=rollouts)

    def attempt() -> Any:
        two.reset(config)
        try:
            return run(two, replay, tmp_path / "cut", steps=6, meter=Deadly(6), every=every)
        except RankError as error:
            assert two.broken
            said.append(str(error))
            left.extend(path.name for path in (tmp_path / "cut").glob("step-*"))
            raise

    assert through_deaths(attempt, checkpoints=Checkpoints(tmp_path / "cut")) == whole
    assert [re.match(r"rank 1 of 2 died before it", each) is not None for each in said] == [True]
    assert max(left) == "step-000000002"
    assert ended[0] not in {process(rank) for rank in two._ranks}
    assert all(torch.equal(tensor, expected[name]) for name, tensor in two.weights())


def test_the_store_is_reached_at_the_address_of_its_machine_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray.util, "get_node_ip_address", lambda: "127.0.0.1")
    rank = RankActor(0, 1, "cpu", 5.0, False)
    machine, port = rank.host()
    socket.create_connection((machine, port), timeout=5).close()
    # Another address of this machine, on which a store that listens everywhere would answer.
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", port), timeout=5)


# The last one, since it leaves no ranks to the next.
def test_ranks_of_which_one_does_not_answer_are_named_by_what_was_waited_for_and_leave_room_for_others(
    light: None,
    two: LearnerGroup,
    config: LearnerConfig,
    rollouts: pl.DataFrame,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(two, "_update_patience", 2.0)
    os.kill(process(two._ranks[1]), signal.SIGSTOP)
    with pytest.raises(RankError, match=r"2 of 2 ranks .* in 2 s"):
        two.update(rollouts)
    assert two.broken
    with pytest.raises(LearnerError, match="cannot be loaded"):
        LearnerGroup(tmp_path / "nothing", config, world_size=1)
    # One that cannot be made leaves room, too.
    room = placement_group([{"CPU": 2.0}])
    assert room.wait(60)
    remove_placement_group(room)
