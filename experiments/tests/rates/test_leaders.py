"""Which n leads, at which rate."""

from hypothesis import given
from hypothesis import strategies as st

from experiments.rates.leaders import common_rates, leaders, upsets
from experiments.rates.search import Search

from .made import SCORES, found, grids, line


def easy() -> list[Search]:
    """As measured once: n = 4 leads at its best rate, and at every rate at which it does not collapse."""
    return [
        found(
            4, [line(1.25e-4, 0.69), line(2.5e-4, 0.73), line(5e-4, 0.10, collapsed=1), line(1e-3, None, diverged=1)]
        ),
        found(16, [line(1.25e-4, 0.55), line(2.5e-4, 0.67), line(5e-4, 0.66), line(1e-3, 0.1, collapsed=1)]),
    ]


def crossed(*, seeds: int, error: float = 0.01, gap: float = 0.2) -> list[Search]:
    """n = 4 leads at its best rate, and n = 16 where both have the lower one."""
    return [
        found(4, [line(1e-4, 0.6 - gap, error=error, seeds=seeds), line(2e-4, 0.7, error=error, seeds=seeds)]),
        found(16, [line(1e-4, 0.6, error=error, seeds=seeds), line(2e-4, 0.5, error=error, seeds=seeds)]),
    ]


def test_the_leader_at_each_best_rate_and_at_each_common_one() -> None:
    best, *common = leaders(easy())
    assert (best.common_rate, best.tied_rate, best.rollouts_per_problem, best.second) == (None, None, 4, 16)
    # At 5e-4 one n is stable, and at 1e-3 none: no contest.
    assert [(each.common_rate, each.rollouts_per_problem) for each in common] == [(1.25e-4, 4), (2.5e-4, 4)]
    assert upsets(leaders(easy())) == []


def test_where_both_collapse_nobody_leads() -> None:
    """n = 4 is far ahead at every usable rate, and the top rate ruins both."""
    ruined = [
        found(4, [line(1e-4, 0.7), line(2e-4, 0.10, collapsed=1)]),
        found(16, [line(1e-4, 0.5), line(2e-4, 0.20, collapsed=1)]),
    ]
    assert [(each.common_rate, each.rollouts_per_problem) for each in leaders(ruined)] == [(None, 4), (1e-4, 4)]
    every = [found(n, [line(1e-4, n / 100, collapsed=1)]) for n in (4, 16)]
    assert leaders(every) == []


def test_what_collapsed_cannot_lead_and_is_named() -> None:
    three = [
        found(4, [line(1e-4, 0.7), line(2e-4, 0.9, collapsed=1)]),
        found(8, [line(1e-4, 0.5), line(2e-4, 0.4)]),
        found(16, [line(1e-4, 0.4), line(2e-4, 0.6)]),
    ]
    (changed,) = upsets(leaders(three))
    assert (changed.common_rate, changed.rollouts_per_problem, changed.second, changed.unstable) == (2e-4, 16, 8, (4,))


def test_a_tied_rate_of_the_leader_that_would_put_another_n_ahead_is_found_without_a_common_rate() -> None:
    apart = [
        found(4, [line(1e-4, 0.55, error=0.03), line(2e-4, 0.60, error=0.03)]),
        found(16, [line(4e-4, 0.58, error=0.03), line(8e-4, 0.3, error=0.03)]),
    ]
    assert apart[0].ties == (1e-4,)
    assert common_rates(apart) == []
    (changed,) = upsets(leaders(apart))
    assert (changed.common_rate, changed.tied_rate) == (None, 1e-4)
    assert (changed.rollouts_per_problem, changed.score, changed.second, changed.second_score) == (16, 0.58, 4, 0.55)


def test_one_seed_is_never_clear_and_several_are_where_they_agree() -> None:
    assert not any(each.clear for each in leaders(crossed(seeds=1, error=1e-6)))
    assert all(each.clear for each in leaders(crossed(seeds=2)))
    # Three contests of 4 degrees of freedom: t at 1 − 0.025/3 is 3.961, and 2 errors would not do.
    for errors, clear in ((3.9, False), (4.0, True)):
        (changed,) = upsets(leaders(crossed(seeds=2, gap=errors * 2**0.5 * 0.01)))
        assert (changed.common_rate, changed.seeds, changed.clear) == (1e-4, 2, clear)


def test_a_pair_of_seeds_that_agrees_by_luck_is_no_clearer_than_the_others() -> None:
    close = [
        found(4, [line(1e-4, 0.60, error=0.001, seeds=2), line(2e-4, 0.50, error=0.04, seeds=2)]),
        found(16, [line(1e-4, 0.55, error=0.001, seeds=2), line(2e-4, 0.50, error=0.04, seeds=2)]),
    ]
    assert not any(each.clear for each in leaders(close))


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
def test_a_leader_is_stable_and_has_the_highest_score_of_those_that_are(lines: list) -> None:  # type: ignore[type-arg]
    searches = [found(2**i, grid) for i, grid in enumerate(lines)]
    for leader in leaders(searches):
        stable = set()
        for each in searches:
            n = each.rollouts_per_problem
            rate = leader.common_rate or each.chosen.learning_rate
            if leader.tied_rate is not None and n == leaders(searches)[0].rollouts_per_problem:
                rate = leader.tied_rate
            (rival,) = (tried for tried in each.grid if tried.learning_rate == rate)
            if rival.stable:
                stable.add(n)
                assert rival.score is not None
                assert rival.score <= leader.score
        assert leader.rollouts_per_problem in stable
        assert stable.isdisjoint(leader.unstable)
        assert len(stable) + len(leader.unstable) == len(searches)


@given(st.lists(grids(), min_size=2, max_size=4))
def test_a_tied_rate_of_another_n_changes_no_lead(lines: list) -> None:  # type: ignore[type-arg]
    """Why only those of the leader are tried."""
    searches = [found(2**i, grid) for i, grid in enumerate(lines)]
    best = {each.rollouts_per_problem: each.chosen for each in searches if each.chosen.stable}
    for each in searches:
        for rate in each.ties:
            (other,) = (tried for tried in each.grid if tried.learning_rate == rate)
            own = best[each.rollouts_per_problem]
            assert other.score is not None
            assert own.score is not None
            assert other.score <= own.score


@given(SCORES, SCORES)
def test_the_order_of_searches_does_not_matter(one: float, other: float) -> None:
    searches = [found(4, [line(1e-3, one)]), found(16, [line(1e-3, other)])]
    assert leaders(searches) == leaders(searches[::-1])
