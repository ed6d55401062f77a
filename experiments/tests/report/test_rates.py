"""What the report says of learning rates: those tried, edges, and other rates that would change which n leads."""

from pathlib import Path

import pytest

from experiments.rates.figure import rates_figure
from experiments.rates.search import Search
from experiments.report.rates import caveats, leader_lines, section

from ..rates.made import declared, found, line, pilot
from ..rates.test_leaders import crossed, easy

ONE_SEED = "; one seed: not told apart from noise between seeds"


def inner(n: int) -> Search:
    """A search whose best rate lies inside, far above the others."""
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


def test_the_section_says_what_pilots_cost_how_long_they_were_and_what_is_scored(tmp_path: Path) -> None:
    shown = section(pilot(easy()), tmp_path / "none.png")
    for said in (
        "a budget of 2,048 rollouts each", "4,096 rollouts of training and 600 responses of evaluation, which",
        "the mean of the evaluations in the last quarter", "score is 0.300 (measured again)",
    ):  # fmt: skip
        assert said in shown, said
    best = section(pilot(easy(), metric="best_at_4"), tmp_path / "none.png")
    assert "score is 0.300 (the pilots' first evaluations)" in best


def test_the_rate_of_every_cell_is_shown_with_where_it_is_from(tmp_path: Path) -> None:
    cells = [(4, 8), (8, 8), (16, 8)]
    tuned = section(pilot(easy()), tmp_path / "none.png", cells=cells)
    for row in (
        "<td>n = 4</td><td>8</td><td>0.00025</td><td>tuned at n = 4</td>",
        "<td>n = 8</td><td>8</td><td>0.00025</td><td>interpolated in log n between n = 4 and n = 16</td>",
    ):
        assert row in tuned, row
    for rule, rate in (("sqrt", "0.0001"), ("linear", "5e-05"), ("constant", "0.0002")):
        scaled = section(pilot([inner(16)], rule=rule), tmp_path / "none.png", cells=cells)
        assert f"<td>n = 4</td><td>8</td><td>{rate}</td><td>0.0002 of the pilot at B = 128" in scaled, rule
    assert "have these rates" not in section(pilot(easy()), tmp_path / "none.png")


def test_the_scores_that_chose_the_rates_are_not_passed_off_as_the_order_of_n(tmp_path: Path) -> None:
    shown = section(pilot(easy()), tmp_path / "none.png")
    assert "They chose the rates, too" in shown
    assert shown.index("which n is best is for the sweep to decide") < shown.index("with each n at its best rate")


def test_the_top_rate_that_ruins_every_n_changes_no_lead() -> None:
    assert leader_lines(pilot(easy())) == [
        f"with each n at its best rate, n = 4 leads (0.730 against 0.670 of n = 16{ONE_SEED})",
        "with one rate for every n, n = 4 leads at 0.000125, 0.00025, too",
    ]
    assert not any("which n leads" in said for _, said in caveats(pilot(easy()), [4, 16]))


def test_another_rate_that_would_change_which_n_leads_is_said() -> None:
    lines = {1: ONE_SEED, 2: ""}
    for seeds, sure in lines.items():
        assert leader_lines(pilot(crossed(seeds=seeds))) == [
            f"with each n at its best rate, n = 4 leads (0.700 against 0.600 of n = 16{sure})",
            f"with a learning rate of 0.0001 for every n, n = 16 would lead (0.600 against 0.400 of n = 4{sure})",
            "with one rate for every n, n = 4 leads at 0.0002, too",
        ]


def test_another_rate_that_would_change_which_n_leads_is_a_caveat_with_several_seeds_only() -> None:
    def said(seeds: int, gap: float = 0.2, error: float = 0.01) -> list[str]:
        found_out = caveats(pilot(crossed(seeds=seeds, gap=gap, error=error)), [4, 16])
        return [text for what, text in found_out if what == "the learning rates"]

    assert said(1) == []
    (clear,) = said(2)
    assert clear == (
        "another rate of the grid would change which n leads in the pilots, so the comparison of n partly reflects the "
        "choice of rate"
    )
    (within,) = said(2, gap=0.01)
    assert "within noise" in within
    # Nor is n = 4 clearly ahead with its best rate: nothing is told apart, and there is nothing to warn of.
    assert said(2, gap=0.01, error=0.1) == []


def test_a_rate_at_which_the_leader_collapses_is_said_and_is_no_caveat() -> None:
    three = pilot(
        [
            found(4, [line(1e-4, 0.7, seeds=2), line(2e-4, 0.1, seeds=2, collapsed=1)]),
            found(8, [line(1e-4, 0.5, seeds=2), line(2e-4, 0.3, seeds=2)]),
            found(16, [line(1e-4, 0.5, seeds=2), line(2e-4, 0.6, seeds=2)]),
        ]
    )
    assert "n = 16 would lead (0.600 against 0.300 of n = 8; n = 4 not stable)" in leader_lines(three)[1]
    assert [text for what, text in caveats(three, [4, 8, 16]) if what == "the learning rates"] == []


def test_a_tied_rate_that_would_change_which_n_leads_is_said_and_nothing_vacuous_beside_it() -> None:
    apart = [
        found(4, [line(1e-4, 0.55, error=0.03), line(2e-4, 0.60, error=0.03)]),
        found(16, [line(4e-4, 0.58, error=0.03), line(8e-4, 0.3, error=0.03)]),
    ]
    assert leader_lines(pilot(apart)) == [
        f"with each n at its best rate, n = 4 leads (0.600 against 0.580 of n = 16{ONE_SEED})",
        f"with n = 4 at its tied rate 0.0001, n = 16 would lead (0.580 against 0.550 of n = 4{ONE_SEED})",
        "no rate was tried with every n",
    ]


def test_a_tied_rate_that_changes_no_lead_is_said() -> None:
    tied = [found(4, [line(1e-4, 0.599), line(2e-4, 0.6)]), found(16, [line(4e-4, 0.58), line(8e-4, 0.3)])]
    assert leader_lines(pilot(tied))[1:] == [
        "n = 4 leads with its tied rate 0.0001, too", "no rate was tried with every n",
    ]  # fmt: skip


def test_where_there_is_no_contest_that_is_said() -> None:
    ruined = pilot([found(n, [line(1e-4, 0.1, collapsed=1)]) for n in (4, 16)])
    (none,) = leader_lines(ruined)
    assert none.startswith("fewer than two n have a rate that neither diverged nor collapsed")
    top = pilot(
        [
            found(4, [line(1e-4, 0.7), line(2e-4, 0.1, collapsed=1)]),
            found(16, [line(2e-4, 0.1, collapsed=1), line(4e-4, 0.6)]),
        ]
    )
    assert leader_lines(top)[1:] == ["at no rate that was tried with every n are two n stable"]
    two = pilot([*ruined.searches, found(4, [line(1e-4, 0.5)], size=32), found(16, [line(1e-4, 0.4)], size=32)])
    assert [each.partition(":")[0] for each in leader_lines(two)] == ["at B_p = 8", *["at B_p = 32"] * 2]


def test_rates_that_are_used_for_longer_than_they_were_tried_are_a_caveat() -> None:
    settled = pilot([inner(16)])
    ((what, said),) = caveats(settled, [16], longest=16384)
    assert what == "the learning rates"
    assert said == (
        "rates were chosen after 2,048 rollouts and are used up to 16,384: the best rate for a longer run may be "
        "another"
    )
    assert caveats(settled, [16], longest=2048) == []
    assert caveats(settled, [16]) == []


@pytest.mark.parametrize(
    ("grid", "said"),
    [
        ([line(1e-4, 0.6), line(2e-4, 0.5)], "0.0001 is the lowest of its grid: a lower one may be better"),
        ([line(1e-4, 0.5), line(2e-4, 0.6)], "0.0002 is the highest of its grid: a higher one may be better"),
        ([line(1e-4, 0.6)], "0.0001 is the only rate tried: a better one may exist"),
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


def test_a_declared_rate_is_said_to_be_one_and_no_pilot_is_shown(tmp_path: Path) -> None:
    rates_figure(pilot(easy()), tmp_path / "rates")
    shown = section(declared(), tmp_path / "rates.png", cells=[(4, 64), (16, 256)])
    assert (
        "No pilot was trained: the learning rate is declared. The base model's score is 0.300 (measured again)."
        in shown
    )
    source = "1e-06 as declared at B = 1,024, scaled with the root of B"
    for row in (
        f"<td>n = 4</td><td>64</td><td>5e-07</td><td>{source}</td>",
        "<td>n = 16</td><td>256</td><td>2e-06</td>",
    ):
        assert row in shown, row
    assert "<img " not in shown
    assert leader_lines(declared()) == []


def test_a_declared_rate_is_a_caveat_and_one_of_the_order_of_n_where_there_are_several() -> None:
    said = "the rate was declared, not searched: another may be better"
    assert caveats(declared(), [16], longest=16384) == [("the learning rates", said)]
    assert caveats(declared(), [4, 16], longest=16384) == [
        ("the learning rates", f"{said}, and with one tuned for each n the order of n may differ")
    ]


def test_the_figure_is_in_the_page_and_no_text_of_it_is_markup(tmp_path: Path) -> None:
    rates_figure(pilot(easy()), tmp_path / "rates")
    shown = section(pilot(easy()), tmp_path / "rates.png")
    assert shown.count("<img ") == 1
    assert "data:image/png;base64," in shown
