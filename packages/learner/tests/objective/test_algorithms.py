"""The page of the algorithms has every one with the numbers that it is made of."""

from pathlib import Path

import pytest
from isocompute.learner.config import ALGORITHMS, KL_ESTIMATORS, LEVELS, SCALES, SURROGATES

ROOT = Path(__file__).parents[4]


@pytest.fixture
def page() -> str:
    """The page; a repository that lacks it is an error."""
    if not (ROOT / "noxfile.py").is_file():
        pytest.skip("the page is in the repository, and these tests run beside a wheel")
    return (ROOT / "docs" / "algorithms.md").read_text()


@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_row_of_an_algorithm_has_its_parts(page: str, name: str) -> None:
    own = ALGORITHMS[name]
    bounds = ", ".join("none" if bound is None else f"{bound}" for bound in (own.clip_low, own.clip_high))
    cells = [f"`{name}`", f"`{own.surrogate}`", bounds, f"`{own.baseline}`", f"`{own.scale}`", f"`{own.aggregation}`"]
    assert f"| {' | '.join(cells)} |" in page


def test_every_part_that_can_be_named_is_on_the_page(page: str) -> None:
    for part in (*SURROGATES, *SCALES, *KL_ESTIMATORS, *LEVELS):
        assert f"`{part}`" in page
