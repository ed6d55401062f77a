"""Searches made by hand and at random."""

from collections.abc import Sequence

from hypothesis import strategies as st

from experiments.running.design import Evaluation, Pilot, Search, Tried

BASE = Evaluation(score=0.3, standard_error=0.01)
SCORES = st.floats(0.0, 1.0)


def line(
    rate: float, score: float | None, *, error: float = 0.01, diverged: int = 0, collapsed: int = 0, seeds: int = 1
) -> Tried:
    """One rate, of one seed unless more are asked for."""
    return Tried(
        learning_rate=rate,
        score=score,
        standard_error=None if score is None else error,
        seeds=seeds,
        diverged=diverged,
        collapsed=collapsed,
    )


def found(n: int, grid: list[Tried], *, size: int = 8) -> Search:
    """The search of some n."""
    return Search(grid=tuple(grid), rollouts_per_problem=n, problems_per_batch=size)


def pilot(searches: Sequence[Search], *, rule: str = "tuned", metric: str = "avg_at_4") -> Pilot:
    """What pilots of 2,048 rollouts each found."""
    return Pilot(rule=rule, metric=metric, base=BASE, budget=2048, searches=tuple(searches))


@st.composite
def grids(draw: st.DrawFn, least: int = 1) -> list[Tried]:
    """Grids of one ratio, some of whose rates diverged or collapsed, though not all of them diverged."""
    count = draw(st.integers(least, 6))
    lines = [
        line(
            1e-4 * 2**i,
            draw(SCORES),
            error=draw(st.floats(0.0, 0.1)),
            diverged=draw(st.sampled_from([0, 0, 1])),
            collapsed=draw(st.sampled_from([0, 0, 1])),
        )
        for i in range(count)
    ]
    return lines if not all(each.diverged for each in lines) else [line(5e-5, draw(SCORES)), *lines[1:]]
