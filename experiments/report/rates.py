"""The learning rates tried, those chosen and used, and whether others would change which n leads the pilots."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path

from ..rates.leaders import Leader, best_leaders, common_rates, contested, leaders, upsets
from ..rates.record import Pilot, beats
from ..rates.rule import TUNED
from ..rates.search import Search
from ..rates.trials import Tried
from .gains import base_source, metric_label
from .html import image, table

RULES = {
    "constant": "and every other batch has the same rate",
    "linear": "and other batches have it in proportion to their size B",
    "sqrt": "and other batches have it in proportion to the root of their size B",
}
EDGES = {
    "lowest": "the lowest of its grid: a lower one may be better",
    "highest": "the highest of its grid: a higher one may be better",
    "both": "the only rate tried: a better one may exist",
}
ORDER = (
    "The pilots' scores for each n follow. They chose the rates, too, and the highest of several scores is too high "
    "by luck: which n is best is for the sweep to decide, whose seeds chose nothing, and not for them."
)


def section(pilot: Pilot, figure: Path, *, cells: Sequence[tuple[int, int]] = ()) -> str:
    """What was tried and chosen, the rate of every cell, and which n leads the pilots at which rate.

    Args:
        figure: The figure of the scores against the rates, where rates were searched.
        cells: Every (n, B_p) of the sweep; none: no rates of cells are shown.
    """
    score = f"The base model's score is {pilot.base.score:.3f} ({base_source(pilot)})."
    if pilot.declared:
        how = f"No pilot was trained: the learning rate is declared. {score}"
        return f"<h3>The learning rates</h3><p>{how}</p>" + _used(pilot, cells)
    if pilot.rule == TUNED:
        how = "Each n (and B<sub>p</sub>) has a learning rate of its own, the best of those tried at it."
    else:
        (anchor,) = pilot.searches
        how = (
            f"Pilots at n = {anchor.rollouts_per_problem}, B<sub>p</sub> = {anchor.problems_per_batch} chose the "
            f"learning rate {anchor.chosen.learning_rate:.3g}, {RULES[pilot.rule]}."
        )
    lines = "".join(f"<li>{escape(line)}.</li>" for line in leader_lines(pilot))
    return (
        f"<h3>The learning rates</h3><p>{how} Pilots have seeds of their own and a budget of {pilot.budget:,} rollouts "
        f"each. They took {pilot.rollouts:,} rollouts of training and {pilot.evaluated:,} responses of evaluation, "
        "which the budget does not count. A score is the mean of the evaluations in the last quarter of a pilot's "
        "budget (at least the last one), over its seeds, ± one standard error. Rates that diverged, or that ended "
        f"below the base model by more than noise (collapsed) in any seed, are chosen last. {score}</p>"
        + _tried(pilot)
        + image(figure, "Scores of pilots against their learning rates")
        + (f"<p>{escape(ORDER)}</p><ul>{lines}</ul>" if lines else "")
        + _used(pilot, cells)
    )


def leader_lines(pilot: Pilot) -> list[str]:
    """Which n leads by the pilots' scores, and at which rates another one does, a sentence each without its stop."""
    found, own = leaders(pilot.searches), contested(pilot.searches)
    lines = []
    for size, searches in own.items():
        where = f"at B_p = {size}: " if len({each.problems_per_batch for each in pilot.searches}) > 1 else ""
        there = [each for each in found if each.problems_per_batch == size]
        lines += [f"{where}{line}" for line in _lines_at_size(there, searches)]
    return lines


def _lines_at_size(found: Sequence[Leader], searches: Sequence[Search]) -> list[str]:
    """The lines of one B_p."""
    if not found:
        return ["fewer than two n have a rate that neither diverged nor collapsed, so that there is no order of n"]
    best, *others = found
    lines = [f"with each n at its best rate, n = {best.rollouts_per_problem} leads {_margin(best)}"]
    for each in upsets(found):
        if each.tied_rate is None:
            terms = f"with a learning rate of {each.common_rate:.3g} for every n"
        else:
            terms = f"with n = {best.rollouts_per_problem} at its tied rate {each.tied_rate:.3g}"
        lines.append(f"{terms}, n = {each.rollouts_per_problem} would lead {_margin(each)}")
    same = [each for each in others if each.rollouts_per_problem == best.rollouts_per_problem]
    common = [f"{each.common_rate:.3g}" for each in same if each.common_rate is not None]
    tied = [f"{each.tied_rate:.3g}" for each in same if each.tied_rate is not None]
    if common:
        lines.append(f"with one rate for every n, n = {best.rollouts_per_problem} leads at {', '.join(common)}, too")
    if tied:
        lines.append(f"n = {best.rollouts_per_problem} leads with its tied rate {', '.join(tied)}, too")
    if not common_rates(searches):
        lines.append("no rate was tried with every n")
    elif all(each.common_rate is None for each in others):
        lines.append("at no rate that was tried with every n are two n stable")
    return lines


def caveats(pilot: Pilot, sizes: Sequence[int], *, longest: int | None = None) -> list[tuple[str, str]]:
    """Why the learning rates, and an order of n that depends on them, must be read with care.

    Args:
        sizes: Every n of the sweep.
        longest: The largest budget that the rates are used at (rollouts), of the sweep or of the prescription; None:
            not known, and nothing is said of it.

    Returns:
        What each caveat is about, and what it says.
    """
    found = [caveat for each in pilot.searches for caveat in _of_search(each, pilot)]
    of_all = []
    if pilot.searches and longest is not None and longest > pilot.budget:
        of_all.append(
            f"rates were chosen after {pilot.budget:,} rollouts and are used up to {longest:,}: the best rate for a "
            "longer run may be another"
        )
    if pilot.declared:
        order = ", and with one tuned for each n the order of n may differ" if len(sizes) > 1 else ""
        of_all.append(f"the rate was declared, not searched: another may be better{order}")
    elif pilot.rule != TUNED and len(sizes) > 1:
        of_all.append("rates were searched at one batch only: with a rate tuned for each n the order of n may differ")
    return found + [("the learning rates", said) for said in (*of_all, *_order(pilot))]


def _order(pilot: Pilot) -> Iterable[str]:
    """What other rates say of the order of n, where the leader at best rates is stable with them, too.

    Where not even that leader is clearly ahead, another one within noise says nothing more.
    """
    found = leaders(pilot.searches)
    best = best_leaders(found)
    changed = [u for u in upsets(found) if best[u.problems_per_batch].rollouts_per_problem not in u.unstable]
    if any(each.clear for each in changed):
        yield (
            "another rate of the grid would change which n leads in the pilots, so the comparison of n partly "
            "reflects the choice of rate"
        )
    elif any(
        each.common_rate is not None and each.seeds > 1 and best[each.problems_per_batch].clear for each in changed
    ):
        yield (
            "with one rate for every n another n leads in the pilots, within noise: the comparison of n may partly "
            "reflect the choice of rate"
        )


def _of_search(found: Search, pilot: Pilot) -> Iterable[tuple[str, str]]:
    where = f"the learning rate of n = {found.rollouts_per_problem}, B_p = {found.problems_per_batch}"
    if found.edge:
        yield where, f"{found.chosen.learning_rate:.3g} is {EDGES[found.edge]}"
    if not found.chosen.stable:
        yield where, "every rate tried diverged or ended below the base model in some seed: the sweep says little"
    elif not beats(found, pilot):
        yield where, "no rate tried ended above the base model by more than noise: the sweep says little"
    if found.ties:
        others = ", ".join(f"{rate:.3g}" for rate in found.ties)
        yield where, f"{found.chosen.learning_rate:.3g} cannot be told from {others} by these pilots"


def _tried(pilot: Pilot) -> str:
    rows = []
    for found in pilot.searches:
        for each in found.grid:
            chosen = "chosen" if each is found.chosen else "tied" if each.learning_rate in found.ties else ""
            rows.append((
                f"n = {found.rollouts_per_problem}", found.problems_per_batch, f"{each.learning_rate:.3g}",
                _score(each), each.seeds, each.diverged, each.collapsed, chosen,
            ))  # fmt: skip
    score = f"{metric_label(pilot.metric)} at the end"
    return table(("", "B_p", "learning rate", score, "seeds", "diverged", "collapsed", ""), rows)


def _score(each: Tried) -> str:
    return "—" if each.score is None else f"{each.score:.3f} ± {each.standard_error or 0.0:.3f}"


def _used(pilot: Pilot, cells: Sequence[tuple[int, int]]) -> str:
    """The rate of every (n, B_p) of the sweep, and where it is from."""
    if not cells:
        return ""
    found = [(n, size, pilot.rates().at(n, size)) for n, size in cells]
    rows = [(f"n = {n}", size, f"{rate.learning_rate:.3g}", rate.source) for n, size, rate in found]
    return "<p>The cells of the sweep have these rates:</p>" + table(("", "B_p", "learning rate", "from"), rows)


def _margin(leader: Leader) -> str:
    """The scores of the first two, what was out of the contest, and whether the two can be told apart."""
    out = "".join(f"; n = {n} not stable" for n in leader.unstable)
    if leader.seeds == 1:
        sure = "; one seed: not told apart from noise between seeds"
    else:
        sure = "" if leader.clear else "; within noise"
    return f"({leader.score:.3f} against {leader.second_score:.3f} of n = {leader.second}{out}{sure})"
