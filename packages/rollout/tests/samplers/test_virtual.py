"""Sampling on a virtual clock while weights change, against a loop over single tokens with a KV cache."""

import dataclasses
import json
from collections.abc import Iterator
from copy import deepcopy
from math import exp
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from every_sync import replayed
from hypothesis import given, settings
from hypothesis import strategies as st
from isocompute.rollout import Interruption, RolloutError, Sampling, open_pipe, open_sampler
from isocompute.rollout.contract import tables
from isocompute.rollout.samplers.sampling import joined_versions
from isocompute.rollout.samplers.virtual import VirtualPipe

pytestmark = pytest.mark.slow("a sampler in every test")

PLAIN = Sampling(max_new_tokens=12, max_prompt_tokens=8)
CUT = dataclasses.replace(PLAIN, interruption=Interruption(lowest=2, highest=5, phrase="-1"))
STOPPED = dataclasses.replace(PLAIN, stop=("-", "12"), keep_text=True)
SAMPLES = 2


class Policies:
    """Weights by version, of four models in turn, whose scores rounding changes by little."""

    def __init__(self, tiny: Any, folder: Path) -> None:
        self._models = [tiny.save(folder, seed=seed) for seed in range(4)]
        for model in self._models:
            model.load_state_dict({name: tensor * 0.5 for name, tensor in model.state_dict().items()})
        self._exact = [deepcopy(model).double() for model in self._models]

    def __getitem__(self, version: int) -> Any:
        """The model of a version in double precision."""
        return self._exact[version % 4]

    def weights(self, version: int) -> dict[str, Any]:
        return dict(self._models[version % 4].state_dict())


@pytest.fixture(scope="module")
def policies(tiny: Any, tmp_path_factory: pytest.TempPathFactory) -> Policies:
    return Policies(tiny, tmp_path_factory.mktemp("policies"))


@pytest.fixture(scope="module")
def opened(tiny: Any, policies: Policies) -> Any:
    return open_sampler("transformers", str(tiny.folder), PLAIN)


@pytest.fixture
def sampler(opened: Any, policies: Policies) -> Any:
    return renewed(opened, policies)


def renewed(sampler: Any, policies: Policies, sampling: Sampling = PLAIN) -> Any:
    """The sampler with the weights of version 0."""
    sampler.use(sampling)
    sampler.sync(policies.weights(0), 0)
    return sampler


class Watched(VirtualPipe):
    """A pipe that remembers which groups have started, and the most responses alive."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self.started: list[tuple[int, str]] = []
        self.most = 0
        super().__init__(*arguments, **options)

    def _start(self, group: Any) -> Any:
        self.started.append((group.draw.step, group.problem["problem_id"].item()))
        return super()._start(group)

    def _pass(self, time: float) -> None:
        self.most = max(self.most, len(self._alive))
        super()._pass(time)


def begin(pipe: Any, tiny: Any, step: int, *, problems: int = 2, samples: int = SAMPLES) -> None:
    first = 2 * step % 4
    batch = tiny.problems[first : first + problems].reverse()
    pipe.begin(batch, samples=samples, seed=3, step=step, run_id="r")


def check(rollouts: pl.DataFrame, policies: Policies, sampling: Sampling, *, newest: int) -> None:
    """Check what holds of every table that a pipe returns."""
    rollouts = tables.check(rollouts, "rollouts", where="taken")
    for row in rollouts.iter_rows(named=True):
        versions, starts = row["versions"], row["version_starts"]
        assert versions == sorted(set(versions))
        assert row["weights_version"] == versions[0] >= 0
        assert versions[-1] <= newest
        assert starts == sorted(set(starts))
        assert starts[0] == 0
        assert starts[-1] < len(row["response_ids"])
        assert np.abs(np.array(replayed(row, policies, sampling)) - row["logprobs"]).max() < 1e-5


SCHEDULES = st.lists(st.sampled_from(["begin", "push", "take"]), min_size=6, max_size=14)


@settings(max_examples=12)
@given(
    schedule=SCHEDULES,
    slots=st.sampled_from([2, 3, 4, 64]),
    update_time=st.sampled_from([0.0, 1.0, 2.5, 4.0]),
    sampling=st.sampled_from([PLAIN, CUT, STOPPED]),
)
def test_tables_are_whole_and_in_order_and_every_token_is_of_the_weights_of_its_version(
    schedule: list[str], slots: int, update_time: float, sampling: Sampling, opened: Any, tiny: Any, policies: Policies
) -> None:
    pipe = Watched(renewed(opened, policies, sampling), slots=slots, update_time=update_time)
    begun = taken = version = 0
    for action in [*schedule, *["take"] * len(schedule)]:
        if action == "begin":
            begun += 1
            begin(pipe, tiny, begun)
        elif action == "push":
            version += 1
            pipe.push(policies.weights(version), version)
        elif taken < begun:
            taken += 1
            rollouts = pipe.take(taken)
            names = sorted(tiny.problems[2 * taken % 4 : 2 * taken % 4 + 2]["problem_id"])
            keys = [(taken, name, sample) for name in names for sample in range(SAMPLES)]
            assert rollouts.select("step", "problem_id", "sample").rows() == keys
            assert "aborted" not in rollouts["finish_reason"]
            check(rollouts, policies, sampling, newest=version)
    assert taken == begun
    assert pipe.started == sorted(pipe.started)
    assert len(pipe.started) == 2 * begun
    assert pipe.most <= slots


def with_lag(pipe: Any, tiny: Any, policies: Policies, *, lag: int, steps: int) -> Iterator[tuple[int, pl.DataFrame]]:
    """Learn as a learner does: a step begins when it will be at most ``lag`` versions behind."""
    for step in range(1, 1 + lag):
        begin(pipe, tiny, step)
    for step in range(1, 1 + steps):
        begin(pipe, tiny, step + lag)
        yield step, pipe.take(step)
        pipe.push(policies.weights(step), step)


def test_without_lag_it_samples_as_its_sampler_does(sampler: Any, tiny: Any, policies: Policies) -> None:
    pipe = VirtualPipe(sampler, slots=4, update_time=2)
    for step, rollouts in with_lag(pipe, tiny, policies, lag=0, steps=4):
        problems = tiny.problems[2 * step % 4 : 2 * step % 4 + 2]
        alone = sampler.sample(problems, samples=SAMPLES, seed=3, step=step, run_id="r")
        assert rollouts.select(alone.columns).drop("logprobs").equals(alone.drop("logprobs"))
        assert set(rollouts["weights_version"]) == {step - 1}


SCHEDULE = (
    "begin 1, begin 2, push 1, push 2, begin 3, take 1, push 3, begin 4, push 4, push 5, push 6, push 7, take 2, "
    "take 3, push 8, take 4"
)
"""In which groups wait, are alive and are complete before they are taken."""
ACTIONS = [action.split() for action in SCHEDULE.split(",")]


def taken(pipe: Any, tiny: Any, policies: Policies, part: slice) -> list[Any]:
    """Do a part of the schedule; returns the rows of what is taken."""
    found = []
    for action, number in ACTIONS[part]:
        if action == "begin":
            begin(pipe, tiny, int(number), samples=3)
        elif action == "push":
            pipe.push(policies.weights(int(number)), int(number))
        else:
            found.append(pipe.take(int(number)).to_dicts())
    return found


def idle(pipe: Any) -> dict[str, float]:
    found = dict(pipe.idle())
    assert found.pop("clock") == pipe.clock
    return found


@pytest.mark.parametrize("sampling", [CUT, STOPPED], ids=["interrupted", "stopped"])
def test_what_goes_on_from_a_state_is_to_the_bit_what_was_never_interrupted(
    sampling: Sampling, opened: Any, tiny: Any, policies: Policies
) -> None:
    options: dict[str, Any] = {"slots": 7, "update_time": 2.5, "jitter": 0.3, "seed": 4}

    def done(pipe: Any, begin: int = 0) -> list[Any]:
        """What a pipe returns in the rest of the schedule, and what its clock and its counts say then."""
        return [*taken(pipe, tiny, policies, slice(begin, None)), pipe.clock, pipe.idle()]

    whole = done(VirtualPipe(renewed(opened, policies, sampling), **options))
    assert whole == done(VirtualPipe(renewed(opened, policies, sampling), **options))
    other = open_sampler("transformers", str(tiny.folder), sampling)
    seen = dict.fromkeys(("waiting", "unfinished", "following", "scored", "older"), 0)
    for cut in range(len(ACTIONS)):
        first = VirtualPipe(renewed(opened, policies, sampling), **options)
        before = taken(first, tiny, policies, slice(cut))
        tensors, values = first.state()
        tensors = {name: tensor.clone() for name, tensor in tensors.items()}
        seen["waiting"] += values["waiting"]
        seen["unfinished"] += len(first._decoding)
        seen["following"] += len(values["following"])
        seen["scored"] += sum(map(len, first._scored.values()))
        now = opened.weights_version
        seen["older"] += sum(r.versions[0][1] < now for _, r in first._decoding.unfinished())
        # The state takes nothing from the pipe.
        assert [*before, *done(first, cut)] == whole
        version = sum(action == "push" for action, _ in ACTIONS[:cut])
        other.sync(policies.weights(version), version)
        second = VirtualPipe(other, **options)
        second.load_state(tensors, json.loads(json.dumps(values)))
        assert [*before, *done(second, cut)] == whole
    assert min(count for name, count in seen.items() if name != "following") > 0
    assert (seen["following"] > 0) == (sampling is CUT)


def test_evaluations_and_probes_beside_it_are_of_the_current_weights_and_change_nothing(
    sampler: Any, tiny: Any, policies: Policies
) -> None:
    alone = list(with_lag(VirtualPipe(sampler, slots=4, update_time=2), tiny, policies, lag=2, steps=4))
    renewed(sampler, policies)
    evaluated: dict[int, Any] = {}
    beside = []
    for step, rollouts in with_lag(VirtualPipe(sampler, slots=4, update_time=2), tiny, policies, lag=2, steps=4):
        beside.append((step, rollouts))
        version = sampler.weights_version
        evaluated[version] = sampler.probe(), tiny.sample(sampler, phase="eval")
        assert set(evaluated[version][1]["weights_version"]) == {version}
    assert all(a.equals(b) for (_, a), (_, b) in zip(alone, beside, strict=True))
    for version, (probe, rollouts) in evaluated.items():
        sampler.sync(policies.weights(version), version)
        assert sampler.probe() == probe
        assert tiny.sample(sampler, phase="eval").equals(rollouts)


def test_what_is_abandoned_is_all_that_was_generated_and_not_taken(opened: Any, tiny: Any, policies: Policies) -> None:
    kinds = set()
    for cut in range(1, len(ACTIONS)):
        first = VirtualPipe(renewed(opened, policies, CUT), slots=7, update_time=2)
        taken(first, tiny, policies, slice(cut))
        tensors, values = first.state()
        left = first.abandon()
        assert first.abandon().is_empty()
        assert first.state()[1]["begun"] == []
        begin(first, tiny, 9)
        assert len(first.take(9)) == 2 * SAMPLES
        second = VirtualPipe(opened, slots=7, update_time=2)
        second.load_state(tensors, values)
        waiting = {(group.draw.step, group.problem["problem_id"].item()) for group in second._waiting}
        parts = [second.take(step) for step in values["begun"]]
        whole = {(row["step"], row["problem_id"], row["sample"]): row for part in parts for row in part.to_dicts()}
        assert len(left) == sum(key[:2] not in waiting for key in whole)
        for row in left.iter_rows(named=True):
            later = whole[row["step"], row["problem_id"], row["sample"]]
            kinds.add(row["finish_reason"])
            if row["finish_reason"] != "aborted":
                assert row == later
                continue
            length = len(row["response_ids"])
            assert 0 < length < len(later["response_ids"])
            assert row["response_ids"] == later["response_ids"][:length]
            assert row["logprobs"] == later["logprobs"][:length]
            assert row["versions"] == later["versions"][: len(row["versions"])]
            assert (row["reward"], bool(row["failure"])) == (0, True)
    assert kinds >= {"stop", "aborted"}


def test_the_clock_counts_steps_and_updates_and_who_was_idle_meanwhile(
    sampler: Any, tiny: Any, policies: Policies
) -> None:
    sampler.use(dataclasses.replace(PLAIN, max_new_tokens=1))
    pipe = VirtualPipe(sampler, slots=4, update_time=3)
    assert idle(pipe) == {"engines": 0, "trainer": 0}
    begin(pipe, tiny, 1)
    pipe.take(1)
    # All four places were taken, and there is nothing to do for an update.
    assert (pipe.clock, idle(pipe)) == (1, {"engines": 0, "trainer": 1})
    pipe.push(policies.weights(1), 1)
    assert (pipe.clock, idle(pipe)) == (4, {"engines": 1, "trainer": 0})
    # A group of three, then one of two that waits for it: free is one place that nobody could take, then are two.
    pipe.begin(tiny.problems[:1], samples=3, seed=3, step=2, run_id="r")
    pipe.begin(tiny.problems[:1], samples=2, seed=3, step=3, run_id="r")
    pipe.take(3)
    assert pipe.clock == 6
    assert idle(pipe) == {"engines": pytest.approx(0.5 / 2), "trainer": 1}
    pipe.begin(tiny.problems[:1], samples=2, seed=3, step=4, run_id="r")
    pipe.push(policies.weights(2), 2)
    assert idle(pipe) == {"engines": pytest.approx((0.5 + 2) / 3), "trainer": 0}
    pipe.take(4)
    assert pipe.clock == 9


def test_the_time_of_an_update_is_drawn_by_seed_and_version(sampler: Any, policies: Policies) -> None:
    for seed in (0, 7):
        pipe = VirtualPipe(sampler, slots=1, update_time=10, jitter=0.5, seed=seed)
        expected = 0.0
        for version in (1, 2):
            pipe.push(policies.weights(version), version)
            expected += 10 * exp(0.5 * np.random.default_rng((seed, version)).standard_normal())
            assert pipe.clock == pytest.approx(expected)


@given(st.lists(st.integers(0, 3), max_size=6), st.lists(st.integers(0, 3), max_size=6))
def test_versions_of_two_parts_are_those_of_their_tokens(first: list[int], last: list[int]) -> None:
    def spans(drawn: list[int]) -> tuple[tuple[int, int], ...]:
        changes = [at for at in range(len(drawn)) if at == 0 or drawn[at] != drawn[at - 1]]
        return tuple((at, drawn[at]) for at in changes)

    assert joined_versions(spans(first), spans(last), at=len(first)) == spans(first + last)


def test_what_a_pipe_cannot_do_is_refused(sampler: Any, tiny: Any, tmp_path: Path) -> None:
    from transformers import Gemma3ForCausalLM, Gemma3TextConfig

    pipe = open_pipe(sampler, "virtual", slots=4)
    begin(pipe, tiny, 1)
    state, narrow = pipe.state(), open_pipe(sampler, "virtual", slots=1)
    for message, refused in (
        ("slots is 1; it must be at least", lambda: narrow.load_state(*state)),
        ("step 1 was begun before", lambda: begin(pipe, tiny, 1)),
        ("slots is 4; it must be at least 5", lambda: begin(pipe, tiny, 2, samples=5)),
        ("step 2 was not begun", lambda: pipe.take(2)),
        ("slots is 0; it must be at least 1", lambda: open_pipe(sampler, "virtual", slots=0)),
        ("jitter is -1; it must be", lambda: open_pipe(sampler, "virtual", slots=4, jitter=-1)),
        ("no mode of a pipe called 'slow'", lambda: open_pipe(sampler, "slow")),
        ("it must be a sampler transformers", lambda: open_pipe(object(), "virtual", slots=4)),  # type: ignore[arg-type]
    ):
        with pytest.raises(RolloutError, match=message):
            refused()
    assert len(pipe.take(1)) == 2 * SAMPLES
    shape: dict[str, Any] = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2, "head_dim": 16}
    shape |= {"num_attention_heads": 2, "num_key_value_heads": 1, "vocab_size": len(tiny.tokenizer), "eos_token_id": 1}
    config = Gemma3TextConfig(**shape, sliding_window=3, layer_types=["sliding_attention"] * 2, pad_token_id=0)
    tiny.tokenizer.save_pretrained(tmp_path)
    Gemma3ForCausalLM(config).save_pretrained(tmp_path)
    sliding = open_sampler("transformers", str(tmp_path), PLAIN)
    with pytest.raises(RolloutError, match="cache has a layer DynamicSlidingWindowLayer"):
        open_pipe(sliding, "virtual", slots=4)
