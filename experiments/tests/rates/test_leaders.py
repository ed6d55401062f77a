"""Which n leads, at which rate."""

from hypothesis import given
from hypothesis import strategies as st

from experiments.rates.leaders import leaders, upsets
from experiments.rates.search import Search

from .made import SCORES, found, grids, line


def easy() -> list[Search]:
    """As measured once: n = 4 leads at its best rate, n = 16 at the rate at which n = 4 collapses."""
    return [
        found(
            4, [line(1.25e-4, 0.69), line(2.5e-4, 0.73), line(5e-4, 0.10, collapsed=1), line(1e-3, None, diverged=1)]
        ),
        found(16, [line(1.25e-4, 0.55), line(2.5e-4, 0.67), line(5e-4, 0.66), line(1e-3, 0.1, collapsed=1)]),
    ]


def test_the_leader_at_each_best_rate_and_at_each_common_one() -> None:
    best, *common = leaders(easy())
    assert (best.common_rate, best.rollouts_per_problem, best.second, best.clear) == (None, 4, 16, True)
    assert [(each.common_rate, each.rollouts_per_problem) for each in common] == [
        (1.25e-4, 4), (2.5e-4, 4), (5e-4, 16), (1e-3, 16),
    ]  # fmt: skip
    (at_5e4, at_1e3) = upsets(leaders(easy()))
    assert (at_5e4.common_rate, at_5e4.rollouts_per_problem, at_5e4.second_score) == (5e-4, 16, 0.10)
    # What diverged has no score to be compared with.
    assert (at_1e3.second_score, at_1e3.clear) == (None, True)


def test_a_difference_within_its_noise_is_not_clear() -> None:
    close = [found(4, [line(1e-3, 0.500)]), found(16, [line(1e-3, 0.520)])]
    assert [(each.rollouts_per_problem, each.clear) for each in leaders(close)] == [(16, False), (16, False)]


def test_one_n_has_nobody_to_lead_and_another_b_p_is_another_contest() -> None:
    assert leaders([found(4, [line(1e-3, 0.5)])]) == []
    apart = [found(4, [line(1e-3, 0.5)], size=8), found(16, [line(1e-3, 0.5)], size=32)]
    assert leaders(apart) == []
    both = [found(n, [line(1e-3, score)], size=size) for size in (8, 32) for n, score in ((4, 0.5), (16, size / 50))]
    assert [(e.problems_per_batch, e.rollouts_per_problem) for e in leaders(both) if e.common_rate is None] == [
        (8, 4), (32, 16),
    ]  # fmt: skip


def test_a_rate_that_one_n_was_not_tried_with_is_not_common() -> None:
    searches = [found(4, [line(1e-3, 0.5), line(2e-3, 0.9)]), found(16, [line(1e-3, 0.6)])]
    assert [(each.common_rate, each.rollouts_per_problem) for each in leaders(searches)] == [(None, 4), (1e-3, 16)]


@given(st.lists(grids(), min_size=2, max_size=4))
def test_a_leader_has_the_highest_score_of_those_that_did_not_diverge(lines: list) -> None:  # type: ignore[type-arg]
    searches = [found(2**i, grid) for i, grid in enumerate(lines)]
    for leader in leaders(searches):
        for each in searches:
            rivals = [each.chosen] if leader.common_rate is None else each.grid
            for rival in rivals:
                if leader.common_rate in (None, rival.learning_rate) and not rival.diverged:
                    assert rival.score is not None
                    assert rival.score <= leader.score


@given(SCORES, SCORES)
def test_the_order_of_searches_does_not_matter(one: float, other: float) -> None:
    searches = [found(4, [line(1e-3, one)]), found(16, [line(1e-3, other)])]
    assert leaders(searches) == leaders(searches[::-1])
