"""The learning rates tried, the one chosen at each n, and whether another would change which n leads."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path

from ..rates.leaders import Leader, leaders, upsets
from ..rates.record import Pilot, beats
from ..rates.rule import TUNED
from ..rates.search import Search
from ..rates.trials import Tried
from .gains import metric_label
from .html import image, table

RULES = {
    "constant": "and every other batch has the same rate",
    "linear": "and other batches have it in proportion to their size B",
    "sqrt": "and other batches have it in proportion to the root of their size B",
}
EDGES = {
    "lowest": "the lowest of its grid: a lower one may be better",
    "highest": "the highest of its grid: a higher one may be better",
    "both": "the only one of its grid: nothing says that another is not better",
}


def section(pilot: Pilot, figure: Path) -> str:
    """What was tried and chosen, and which n leads at which rate.

    Args:
        pilot: What was found.
        figure: The figure of the scores against the rates.
    """
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
        f"<h3>The learning rates</h3><p>{how} Pilots have seeds of their own, and took {pilot.rollouts:,} rollouts. A "
        "score is the mean of a cell's last two evaluations, over its seeds, ± one standard error. Rates that "
        "diverged, or that ended below the base model by more than noise (collapsed) in any seed, are chosen last. "
        f"The base model's score is {pilot.base.score:.3f}.</p>"
        + _tried(pilot)
        + image(figure, "Scores of pilots against their learning rates")
        + (f"<ul>{lines}</ul>" if lines else "")
    )


def leader_lines(pilot: Pilot) -> list[str]:
    """Which n leads by the pilots' scores, and with which rate another one would, a sentence each without its stop."""
    found = leaders(pilot.searches)
    changed = upsets(found)
    lines = []
    for best in (each for each in found if each.common_rate is None):
        own = [each for each in changed if each.problems_per_batch == best.problems_per_batch]
        size = f"at B_p = {best.problems_per_batch}: " if len({e.problems_per_batch for e in found}) > 1 else ""
        lines.append(f"{size}with each n at its best rate, n = {best.rollouts_per_problem} leads {_margin(best)}")
        lines += [
            f"{size}with a learning rate of {each.common_rate:.3g} for every n, n = {each.rollouts_per_problem} would "
            f"lead {_margin(each)}"
            for each in own
        ]
        if not own:
            lines.append(f"{size}no rate that all n were tried with changes which n leads")
    return lines


def caveats(pilot: Pilot, sizes: Sequence[int]) -> list[tuple[str, str]]:
    """Why the learning rates, and an order of n that depends on them, must be read with care.

    Args:
        pilot: What was found.
        sizes: Every n of the sweep.

    Returns:
        What each caveat is about, and what it says.
    """
    found = [caveat for each in pilot.searches for caveat in _of_search(each, pilot)]
    if pilot.rule != TUNED and len(sizes) > 1:
        found.append((
            "the learning rates",
            "rates were searched at one batch only: with a rate tuned for each n the order of n may differ",
        ))  # fmt: skip
    if any(each.clear for each in upsets(leaders(pilot.searches))):
        found.append((
            "the learning rates",
            "another rate of the grid would change which n leads in the pilots: the frontier over n is in part one "
            "over learning rates",
        ))  # fmt: skip
    return found


def _of_search(found: Search, pilot: Pilot) -> Iterable[tuple[str, str]]:
    where = f"the learning rate of n = {found.rollouts_per_problem}, B_p = {found.problems_per_batch}"
    if found.edge:
        yield where, f"{found.chosen.learning_rate:.3g} is {EDGES[found.edge]}"
    if not found.chosen.stable:
        yield where, "every rate tried diverged or ended below the base model in some seed: the sweep says little"
    elif not beats(found, pilot.base):
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


def _margin(leader: Leader) -> str:
    """The scores of the first two, and whether they can be told apart."""
    if leader.second_score is None:
        return f"({leader.score:.3f}; n = {leader.second} diverged)"
    sure = "" if leader.clear else ", within noise"
    return f"({leader.score:.3f} against {leader.second_score:.3f} of n = {leader.second}{sure})"
