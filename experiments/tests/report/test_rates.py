"""What the report says of learning rates: those tried, edges, and other rates that would change which n leads."""

from pathlib import Path

import pytest

from experiments.rates.figure import rates_figure
from experiments.rates.record import Pilot
from experiments.rates.search import Search
from experiments.report.rates import caveats, leader_lines, section

from ..rates.made import BASE, found, line
from ..rates.test_leaders import easy


def pilot(searches: list[Search], *, rule: str = "tuned") -> Pilot:
    return Pilot(rule=rule, metric="avg_at_4", base=BASE, rollouts=4096, searches=tuple(searches))


def inner(n: int) -> Search:
    """A search whose best rate lies inside, above the others by far."""
    return found(n, [line(1e-4, 0.4), line(2e-4, 0.6), line(4e-4, 0.5)])


def test_every_rate_tried_is_shown_with_its_score_and_what_became_of_it(tmp_path: Path) -> None:
    shown = section(pilot(easy()), tmp_path / "none.png")
    assert shown.count("<tr>") == 1 + 8
    for row in (
        "<td>n = 4</td><td>8</td><td>0.00025</td><td>0.730 ± 0.010</td><td>1</td><td>0</td><td>0</td><td>chosen</td>",
        "<td>n = 4</td><td>8</td><td>0.001</td><td>—</td><td>1</td><td>1</td><td>0</td><td></td>",
        "<td>n = 16</td><td>8</td><td>0.0005</td><td>0.660 ± 0.010</td><td>1</td><td>0</td><td>0</td><td>tied</td>",
        "<td>n = 16</td><td>8</td><td>0.001</td><td>0.100 ± 0.010</td><td>1</td><td>0</td><td>1</td><td></td>",
    ):
        assert row in shown, row
    assert "<th>avg@4 at the end</th>" in shown


def test_another_rate_that_would_change_which_n_leads_is_said() -> None:
    best, collapsed, diverged = leader_lines(pilot(easy()))
    assert best == "with each n at its best rate, n = 4 leads (0.730 against 0.670 of n = 16)"
    assert collapsed == ("with a learning rate of 0.0005 for every n, n = 16 would lead (0.660 against 0.100 of n = 4)")
    assert diverged.endswith("n = 16 would lead (0.100; n = 4 diverged)")
    assert any("would change which n leads" in said for _, said in caveats(pilot(easy()), [4, 16]))


def test_a_rate_that_changes_the_order_within_noise_only_is_said_and_is_no_caveat() -> None:
    close = pilot([inner(4), found(16, [line(1e-4, 0.41), line(2e-4, 0.5), line(4e-4, 0.4)])])
    assert leader_lines(close)[1] == (
        "with a learning rate of 0.0001 for every n, n = 16 would lead (0.410 against 0.400 of n = 4, within noise)"
    )
    assert caveats(close, [4, 16]) == []


def test_where_no_rate_changes_the_order_that_is_said_and_is_no_caveat() -> None:
    same = pilot([inner(4), found(16, [line(1e-4, 0.3), line(2e-4, 0.59), line(4e-4, 0.4)])])
    assert leader_lines(same) == [
        "with each n at its best rate, n = 4 leads (0.600 against 0.590 of n = 16, within noise)",
        "no rate that all n were tried with changes which n leads",
    ]
    assert caveats(same, [4, 16]) == []


@pytest.mark.parametrize(
    ("grid", "said"),
    [
        ([line(1e-4, 0.6), line(2e-4, 0.5)], "0.0001 is the lowest of its grid: a lower one may be better"),
        ([line(1e-4, 0.5), line(2e-4, 0.6)], "0.0002 is the highest of its grid: a higher one may be better"),
        ([line(1e-4, 0.6)], "0.0001 is the only one of its grid"),
        ([line(1e-4, 0.1), line(2e-4, 0.31), line(4e-4, 0.1)], "no rate tried ended above the base model"),
        ([line(1e-4, 0.0), line(2e-4, 0.1, collapsed=1), line(4e-4, None, diverged=1)], "is the lowest of its grid"),
        ([line(1e-4, 0.1, collapsed=1), line(2e-4, 0.2, collapsed=1)], "every rate tried diverged or ended below"),
        ([line(1e-4, 0.59), line(2e-4, 0.6), line(4e-4, 0.5)], "0.0002 cannot be told from 0.0001 by these pilots"),
    ],
)
def test_a_rate_that_is_not_settled_is_a_caveat(grid: list, said: str) -> None:  # type: ignore[type-arg]
    found_out = caveats(pilot([found(16, grid)]), [16])
    assert any(said in text for _, text in found_out)
    assert all(what == "the learning rate of n = 16, B_p = 8" for what, _ in found_out)


def test_rates_scaled_from_one_batch_are_a_caveat_of_an_order_of_n_and_of_no_single_n(tmp_path: Path) -> None:
    anchored = pilot([inner(16)], rule="sqrt")
    assert leader_lines(anchored) == []
    assert [said.partition(":")[0] for _, said in caveats(anchored, [4, 16])] == [
        "rates were searched at one batch only"
    ]
    assert caveats(anchored, [16]) == []
    assert "in proportion to the root of their size B" in section(anchored, tmp_path / "none.png")


def test_the_figure_is_in_the_page_and_no_text_of_it_is_markup(tmp_path: Path) -> None:
    rates_figure(pilot(easy()), tmp_path / "rates")
    shown = section(pilot(easy()), tmp_path / "rates.png")
    assert shown.count("<img ") == 1
    assert "data:image/png;base64," in shown
