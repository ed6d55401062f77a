"""Wall time of a batch, and device-time of placements."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from isocompute.budget import BudgetError
from isocompute.budget.planning.compute import Interval, Model, device
from isocompute.budget.planning.latency import (
    Latency,
    Placement,
    dispatched,
    latency,
    spread_lengths,
    switch,
    unbroken,
)

batches = st.lists(st.integers(1, 12), min_size=1, max_size=30)


def sure(value: float) -> Interval:
    return Interval(low=value, likely=value, high=value)


def simulated(lengths, replicas, limit, step, each):
    """Seconds at which each replica ends, token by token, each at its own pace."""
    waiting, now, clock = list(lengths), 0, [0] * replicas
    alive = [{} for _ in range(replicas)]
    while True:
        # Places that are free at this instant, over replicas first.
        free = sorted(
            (place * replicas + r, r)
            for r in range(replicas)
            for place in range(limit)
            if clock[r] <= now and place not in alive[r]
        )
        for number, r in free:
            if waiting:
                alive[r][number // replicas] = waiting.pop(0)
                clock[r] = now
        if not any(alive):
            return clock
        ends = {r: clock[r] + step + each * len(alive[r]) for r in range(replicas) if alive[r]}
        now = min(ends.values())
        for r, end in ends.items():
            if end == now:
                clock[r] = now
                alive[r] = {place: left - 1 for place, left in alive[r].items() if left > 1}


@given(batches, st.integers(1, 4), st.integers(1, 12), st.integers(1, 9), st.integers(0, 5), st.integers(0, 5))
def test_a_batch_takes_as_long_as_a_simulation_of_every_token(lengths, replicas, limit, step, each, prompt):
    work = dispatched(lengths, replicas=replicas, limit=limit)
    took = Latency(step=sure(step), each=sure(each), prompt=sure(prompt))
    found = [took.of(one, prompt_tokens=7).likely - 7 * prompt for one in work]
    assert found == simulated(lengths, replicas, limit, step, each)


@given(batches, st.integers(1, 4), st.integers(1, 5))
def test_no_batch_takes_longer_where_the_next_one_fills_free_places(lengths, replicas, limit):
    steps = max(one.steps for one in dispatched(lengths, replicas=replicas, limit=limit))
    pipelined = unbroken(lengths, replicas=replicas, limit=limit)
    assert sum(one.tokens for one in pipelined) == pytest.approx(sum(lengths))
    assert all(one.steps <= steps or one.steps == pytest.approx(steps) for one in pipelined)


@given(st.integers(1, 3000), st.floats(1, 10_000), st.integers(1, 8192), st.floats(0.1, 2))
def test_lengths_are_no_longer_than_the_longest_and_all_are_where_the_mean_is(count, mean, most, sigma):
    lengths = spread_lengths(count, mean=mean, longest=most, sigma=sigma)
    assert len(lengths) == count
    assert all(1 <= length <= most for length in lengths)
    if mean >= most:
        assert set(lengths) == {most}


@given(st.floats(50, 8000), st.sampled_from([0.25, 0.5, 1.0]))
def test_lengths_have_the_mean_that_is_asked_for(mean, sigma):
    lengths = spread_lengths(4096, mean=mean, longest=8192, sigma=sigma)
    assert sum(lengths) / len(lengths) == pytest.approx(mean, rel=0.01)
    assert sum(lengths[:1024]) / 1024 == pytest.approx(mean, rel=0.15)


def test_lengths_that_are_impossible_are_refused():
    for count, mean, most in ((0, 1.0, 1), (1, 0.0, 1), (1, math.nan, 1), (1, 1.0, 0)):
        with pytest.raises(BudgetError):
            spread_lengths(count, mean=mean, longest=most)


SEVEN = Model(parameters=7_615_616_512, layers=28, width=3584, vocabulary=152064, kv_values=1024)


def test_a_step_reads_the_weights_and_each_response_its_keys_and_values():
    found = latency(SEVEN, device("h100"), context=2048)
    # 15.2 GB at 60 % of 3.35 TB/s; 28 · 1,024 numbers of 2 bytes for each of 2,048 tokens, and 2·N products at half.
    assert found.step.likely == pytest.approx(2 * 7_615_616_512 / (0.6 * 3.35e12))
    read, multiplied = 28 * 1024 * 2 * 2048 / (0.6 * 3.35e12), 2 * 7_615_616_512 / (0.5 * 989e12)
    assert found.each.likely == pytest.approx(read + multiplied)
    assert found.prompt.likely == pytest.approx(multiplied)
    assert found.step.low < found.step.likely < found.step.high
    halved = latency(SEVEN, device("h100"), context=2048, devices=2)
    assert halved.step.likely == pytest.approx(found.step.likely / 2)
    assert halved.each.likely == pytest.approx(found.each.likely / 2)
    wide = latency(Model(parameters=10**9, layers=4, width=64), device("h100"), context=100)
    assert wide.each.likely - wide.prompt.likely == pytest.approx(4 * 2 * 64 * 2 * 100 / (0.6 * 3.35e12))


def test_a_head_in_float32_weighs_twice_as_much_and_multiplies_at_its_own_rate():
    plain, head = (latency(SEVEN, device("h100"), context=0, float32_head=which) for which in (False, True))
    size = 152064 * 3584
    assert head.step.likely - plain.step.likely == pytest.approx(2 * size / (0.6 * 3.35e12))
    more = 2 * size / (0.85 * 67e12) - 2 * size / (0.5 * 989e12)
    assert head.each.likely - plain.each.likely == pytest.approx(more)


def test_devices_that_wait_are_held_and_idle():
    separate = Placement(ranks=2, engines=2, held=4).step([sure(10), sure(8)], sure(20))
    assert (separate.wall.likely, separate.held.likely, separate.busy.likely) == (20, 80, 38)
    assert separate.idle == pytest.approx(1 - 38 / 80)
    turns = Placement(ranks=4, engines=4, held=4, switch=sure(1)).step([sure(5)] * 4, sure(20))
    assert (turns.wall.likely, turns.held.likely, turns.busy.likely) == (11, 44, 40)
    lag = Placement(ranks=2, engines=2, held=4, pipelined=True).step([sure(8), sure(8)], sure(20))
    assert (lag.wall.likely, lag.held.likely, lag.busy.likely) == (10, 40, 36)
    scored = Placement(ranks=2, engines=1, devices=2, held=4, switch=sure(1)).step([sure(10)])
    assert (scored.wall.likely, scored.held.likely, scored.busy.likely) == (10, 40, 20)
    both = separate + turns.times(2)
    assert (both.wall.likely, both.held.likely, both.busy.likely) == (42, 168, 118)


def test_an_engine_that_sleeps_moves_its_weights_twice():
    assert switch(Model(parameters=10**9)).likely == pytest.approx(4e9 / 25e9)
