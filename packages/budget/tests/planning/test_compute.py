import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from isocompute.budget import Allocation, BudgetError
from isocompute.budget.planning.compute import Constraints, Lengths, Model, Setting, Utilisation, device, grid, price

small = st.integers(1, 4096)
EIGHT = Allocation(problems_per_batch=8, rollouts_per_problem=4, update_steps=100)


@given(st.integers(1, 10**7), small, small)
def test_an_allocation_within_a_budget_leaves_less_than_one_step(budget, problems, rollouts):
    batch = problems * rollouts
    if budget < batch:
        with pytest.raises(BudgetError, match="does not pay for one step"):
            Allocation.within(budget, problems_per_batch=problems, rollouts_per_problem=rollouts)
    else:
        a = Allocation.within(budget, problems_per_batch=problems, rollouts_per_problem=rollouts)
        assert 0 <= budget - a.rollouts < batch


@given(small, small, st.integers(1, 10**6), st.floats(1e-8, 1.0))
def test_learning_rates_follow_their_rule(problems, rollouts, anchor_batch, anchor):
    a = Allocation(problems_per_batch=problems, rollouts_per_problem=rollouts, update_steps=1)
    ratio = a.batch_rollouts / anchor_batch

    def rate(scaling):
        return a.learning_rate(anchor=anchor, anchor_batch=anchor_batch, scaling=scaling)

    assert rate("sqrt") == a.learning_rate(anchor=anchor, anchor_batch=anchor_batch)
    assert math.isclose(rate("sqrt"), anchor * math.sqrt(ratio))
    assert math.isclose(rate("linear"), anchor * ratio)
    assert rate("constant") == anchor
    assert EIGHT.epochs(256) == 3.125


H100 = device("h100")


def cost(rollouts, *, model, lengths, n=1, **more):
    return Setting(model=model, lengths=lengths, device=H100, **more).estimate(rollouts, rollouts_per_problem=n)


@given(st.integers(1, 10**7), st.floats(1, 10**5), st.floats(0.2, 5), st.floats(0, 0.9))
def test_tokens_follow_from_rollouts_and_lengths(count, mean, growth, spread):
    tokens = Lengths(response_tokens=mean, growth=growth, spread=spread).tokens_of(count)
    assert tokens.likely == pytest.approx(count * mean * (1 + growth) / 2, abs=1)
    assert tokens.low <= tokens.likely <= tokens.high


def test_flops_are_two_and_six_for_each_parameter_and_token():
    model = Model(parameters=1000)
    lengths = Lengths(prompt_tokens=10, response_tokens=30, spread=0)
    generation, training, head = cost(8, model=model, lengths=lengths, shared_prompt=False).flops
    assert (generation.likely, training.likely, head.likely) == (8 * 2 * 1000 * 40, 8 * 6 * 1000 * 40, 0)
    generation, training, _ = cost(8, model=model, lengths=lengths, n=4, extra_forwards=1).flops
    assert generation.likely == (8 * 2 * 1000 * 30 + 2 * 2 * 1000 * 10)
    assert training.likely == (8 * 8 * 1000 * 40)


def test_a_head_in_float32_is_four_products_at_its_own_rate():
    lengths = Lengths(prompt_tokens=10, response_tokens=30, spread=0)
    model = Model(parameters=10_000, layers=1, width=16, vocabulary=50)
    plain = cost(8, model=model, lengths=lengths, extra_forwards=1)
    apart = cost(8, model=model, lengths=lengths, extra_forwards=1, float32_head=True)
    assert apart.flops[0].likely == plain.flops[0].likely
    assert plain.flops[1].likely - apart.flops[1].likely == 8 * 8 * 800 * 40
    assert apart.flops[2].likely == 8 * (2 * 4 + 2) * 800 * 40
    more = apart.flops[2].likely / (0.85 * 67e12) - 8 * 8 * 800 * 40 / (0.35 * 989e12)
    assert apart.training.likely - plain.training.likely == pytest.approx(more)
    # On an H100 an update of 0.5 billion parameters took 18.3 µs more for a token with a head in float32 than without.
    half = Model(parameters=494_032_768, layers=24, width=896, vocabulary=151_936)
    token = Lengths(response_tokens=1, spread=0)
    each = [cost(1, model=half, lengths=token, float32_head=is_).training.likely for is_ in (True, False)]
    assert each[0] - each[1] == pytest.approx(1 / 25_000 - 1 / 46_000, rel=0.15)
    for size in ({}, {"layers": 1, "width": 16}, {"layers": 1, "width": 160, "vocabulary": 100}):
        with pytest.raises(BudgetError, match="a head in float32"):
            cost(1, model=Model(parameters=10_000, **size), lengths=lengths, float32_head=True)


def test_the_attention_term_is_what_a_sum_over_positions_gives():
    layers, width, prompt, length = 3, 16, 20, 50
    lengths = Lengths(prompt_tokens=prompt, response_tokens=length, spread=0)
    models = Model(parameters=1, layers=layers, width=width), Model(parameters=1)
    whole, bare = (cost(1, model=model, lengths=lengths).flops[0].likely for model in models)
    # Scores and weighted values over the t positions before each token: 2 · 2 · t · width a layer.
    exact = sum(4 * layers * width * t for t in range(1, prompt + length + 1))
    assert whole - bare == pytest.approx(exact, rel=0.02)


def test_sampling_and_training_take_time_and_money():
    half = Utilisation(generation=(0.5, 0.5, 0.5), training=(0.5, 0.5, 0.5))
    of = {
        "model": Model(parameters=7 * 10**9, layers=32, width=4096),
        "lengths": Lengths(response_tokens=1000, spread=0),
    }
    assumed = cost(1000, utilisation=half, **of)
    assert assumed.sampling.likely == pytest.approx(assumed.flops[0].likely / (989e12 / 2))
    assert assumed.training.low == assumed.training.high
    measured = cost(1000, tokens_per_second=5000, **of).sampling
    assert measured.likely == pytest.approx(200)
    assert price(measured, 3.6).likely == pytest.approx(0.2)
    with pytest.raises(BudgetError, match="tokens_per_second is 0"):
        cost(1000, tokens_per_second=0, **of)


def test_memory_is_shared_by_devices_and_grows_with_the_pass():
    model = Model(parameters=10**9, layers=10, width=100, vocabulary=1000)
    setting = Setting(model=model, lengths=Lengths(response_tokens=100, spread=0), device=H100)
    one, four = setting.memory(world_size=1), setting.memory(world_size=4, micro_batch=8)
    assert (one.state, one.engine, four.state) == (16 * 10**9, 2 * 10**9, 4 * 10**9)
    assert four.activations == 8 * one.activations == 8 * 100 * (2 * 10 * 100 + 4 * 1000)


def constraints(**changed):
    return Constraints(**{"rollouts": 100, "max_batch": 10, **changed})


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: EIGHT.learning_rate(anchor=0.0, anchor_batch=1024), "anchor learning rate is 0.0"),
        (lambda: EIGHT.learning_rate(anchor=math.nan, anchor_batch=1024), "anchor learning rate is nan"),
        (lambda: EIGHT.learning_rate(anchor=1e-3, anchor_batch=1024, scaling="cubic"), "'cubic'"),
        (lambda: EIGHT.learning_rate(anchor=1e-3, anchor_batch=0), "anchor_batch is 0"),
        (lambda: Model(parameters=0), "parameters is 0"),
        (lambda: Model(parameters=8, active_parameters=9), "active_parameters is 9, more than the 8 parameters"),
        (lambda: Model(parameters=8, active_parameters=0), "active_parameters is 0"),
        (lambda: Model(parameters=1, layers=3), "both the layers and the width"),
        (lambda: Lengths(response_tokens=0), "mean lengths are 0.0 and 0"),
        (lambda: Lengths(response_tokens=1, growth=0), "the growth of responses is 0"),
        (lambda: Lengths(response_tokens=1, spread=1), "the spread of lengths is 1"),
        (lambda: Utilisation(training=(0.5, 0.4, 0.6)), "the utilisation in training is 0.5, 0.4, 0.6"),
        (lambda: price(Lengths(response_tokens=1).tokens_of(1), -1.0), "price of a device-hour is -1.0"),
        (lambda: device("abacus"), "'abacus' is not a known device; the known ones are a100"),
        (lambda: Allocation(problems_per_batch=8, rollouts_per_problem=0, update_steps=1), "rollouts_per_problem is 0"),
        (lambda: constraints(rollouts=0), "rollouts is 0"),
        (lambda: constraints(min_steps=1.5), "min_steps is 1.5"),
        (lambda: constraints(max_epochs=3.0), "needs the number of problems"),
        (lambda: constraints(max_epochs=-1.0, problems=5), "must be positive"),
        (lambda: constraints(rollouts_per_problem=(4, 4)), "rollouts_per_problem holds a value twice: 4, 4"),
        (lambda: constraints(problems_per_batch=tuple(range(1, 300))), "has 299 values"),
    ],
)
def test_assumptions_that_cannot_be_are_refused(make, said):
    with pytest.raises(BudgetError, match=said):
        make()


limits = st.builds(
    Constraints,
    rollouts=st.integers(1, 10**6),
    max_batch=st.integers(1, 10**4),
    rollouts_per_problem=st.just(()) | st.sets(st.integers(1, 64), min_size=1, max_size=5).map(tuple),
    problems_per_batch=st.just(()) | st.sets(st.integers(1, 64), min_size=1, max_size=4).map(tuple),
    min_steps=st.integers(1, 200),
    problems=st.integers(1, 5000),
    max_epochs=st.none() | st.floats(0.5, 200),
    world_size=st.integers(1, 16),
)


@given(limits)
def test_every_planned_cell_spends_no_more_than_the_budget_and_keeps_every_limit(constraints):
    splits, left_out = grid(constraints)
    assert len(splits) + len(left_out) == len(constraints.problems_per_batch) * len(constraints.rollouts_per_problem)
    for a in splits:
        assert a.rollouts == a.problems_per_batch * a.rollouts_per_problem * a.update_steps
        assert 0 <= constraints.rollouts - a.rollouts < a.batch_rollouts <= constraints.max_batch
        assert a.update_steps >= constraints.min_steps
        assert a.batch_rollouts % constraints.world_size == 0
        assert a.problems_per_batch <= constraints.problems
        assert constraints.max_epochs is None or a.epochs(constraints.problems) <= constraints.max_epochs
