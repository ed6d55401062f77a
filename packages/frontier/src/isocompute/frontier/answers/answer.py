"""The sixty-second answer: its sentences, and the wording of settings, probabilities and limits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any

import numpy as np

from ..data.curves import Array
from ..data.reading import counted, short
from ..posterior.decision import NEAR, Decision, DecisionPath, Ending, Misfit, Option, at_best_rates
from ..posterior.health import FAILED, Prepared
from ..posterior.posterior import AGREED, Posterior
from ..posterior.runs import Setting

COUNTED = 4.0
"""Multiple of the data up to which coverage was counted; beyond it, nothing is called sure."""
SLACK = 0.05
"""Share by which a budget may exceed the data and still count as within: budgets are whole batches."""
LIKELIER = 0.5
"""Total P(best) of the unknown settings from which on nothing is decided."""
MOST_ENDS = 3
"""Most settings whose measured ends are given if the curves do not fit."""


class Standing(Enum):
    """The kind of answer that was reached."""

    DECIDED = "decided"
    UNDECIDED = "undecided"
    MISFIT = "misfit"
    ALONE = "alone"
    FAR = "far"


MOST_NAMED = 7
"""Most settings whose loss is given one by one."""
MOST_LISTED = 6
"""From this many numbers of rollouts on, a headline gives their count instead of listing them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unmeasured:
    """An n that was not run: the expected gain if the better of it and the chosen one were known, and P(better)."""

    rollouts_per_problem: int
    gain: float
    probability: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The sixty-second answer: what to use at a budget, what the others lose, how sure that is, and what is not in it.

    Attributes:
        unit: Unit of the budget.
        compute: What the chosen setting gets for the budget, in the unit of the fit.
        factor: The budget over the largest that was measured.
        misfits: Settings whose runs disagree with their curves and that could be best.
        endings: Where the runs of every setting were measured to end, the highest first.
        earlier: The decision at a quarter of the budget, if that was measured.
        path_unit: Unit of the fit.
        beyond: The largest multiple of the budget at which the same n is still chosen, and its P(best) there.
    """

    data: str
    metric: str
    unit: str
    compute: float
    decision: Decision
    earlier: Decision | None
    path: DecisionPath
    path_unit: str
    cells: tuple[Setting, ...]
    beyond: tuple[float, float] | None
    unmeasured: Unmeasured
    risk: str
    missing: tuple[str, ...]
    factor: float = 1.0
    misfits: tuple[Misfit, ...] = ()
    endings: tuple[Ending, ...] = ()
    of_training: bool = False

    @property
    def standing(self) -> Standing:
        """The kind of answer that this is."""
        if self.misfits:
            return Standing.MISFIT
        if not self.decision.rivals:
            return Standing.ALONE
        if self.decision.undecided or self._mostly_unknown:
            return Standing.UNDECIDED
        return Standing.DECIDED if self.factor <= COUNTED * (1 + SLACK) else Standing.FAR

    @property
    def _mostly_unknown(self) -> bool:
        """Whether the best setting is more likely among the unknown ones."""
        return sum(o.probability_best for o in self.decision.options if not o.known) >= LIKELIER

    def headline(self) -> str:
        """The decision in one sentence: what to use, how likely that is right, and what the runner-up would cost."""
        return self._of_training(self._decided(differing(self.cells)[0]))

    def _of_training(self, said: str) -> str:
        """A sentence, prefixed with a remark if the rewards are training rewards."""
        return f"By rewards of training: {said[0].lower()}{said[1:]}" if self.of_training else said

    def _decided(self, several: bool) -> str:
        chosen = self.decision.chosen
        if self.standing is Standing.MISFIT:
            ending = self.endings[0]
            named = called(*(m.cell for m in self.misfits[:MOST_NAMED]), several=several)
            return (
                f"Undecided: the curves do not fit {named}; {words(ending.cell, several)} was measured best, "
                f"{ending.reward:.2f} {self.metric} (95 %: {interval(ending.interval)}) at the end of its runs"
            )
        if self.standing is Standing.ALONE:
            return f"Nothing is compared: {words(chosen.cell, several)} was run and no other"
        rival = self.decision.rivals[0]
        ns = sorted({c.rollouts_per_problem for c in self.cells})
        few = 1 < len(ns) < MOST_LISTED
        of = f"{', '.join(map(str, ns[:-1]))} and {ns[-1]}" if few else f"{len(ns)} from {ns[0]} to {ns[-1]}"
        of = f"the best of {of}"
        share = rounded(self.decision.probability_of(chosen.cell))
        if self.standing is Standing.UNDECIDED and self.decision.undecided:
            first, second = sorted(self.decision.undecided, key=lambda option: option.cell.key)
            shares = " and ".join(rounded(self.decision.probability_of(o.cell)) for o in (first, second))
            both = f"{name(first.cell, several)} and {(name if several else words)(second.cell, several)}"
            swap = f"{name(rival.cell, several)} in place of {name(chosen.cell, several)}"
            return f"Undecided between {both}: {shares} likely {of}; {swap} {self._cost(rival)}"
        if self.standing is Standing.UNDECIDED:
            names = called(*self.decision.unknown, several=several)
            return f"Undecided: too little is known at this budget of {names}"
        sure = f"{share} likely {of}; {name(rival.cell, several)} instead {self._cost(rival)}"
        if self.standing is Standing.FAR:
            return f"{words(chosen.cell, several)} if no curve turns in a way that none has shown: {sure}"
        return f"Use {words(chosen.cell, several)}: {sure}"

    def _cost(self, option: Option) -> str:
        """The cost of a setting relative to the chosen one, with its interval."""
        cost = f"{option.loss:.2f}" if option.loss >= 0.005 else "less than 0.01"
        return f"would cost {cost} {self.metric} (95 %: {interval(option.loss_interval)})"

    def as_dict(self) -> dict[str, Any]:
        """The answer as ``--json`` writes it: the setting to use is null if the curves do not fit."""
        chosen = None if self.standing is Standing.MISFIT else self.decision.chosen
        cell = None if chosen is None else chosen.cell
        steps = int(self.compute / cell.batch_rollouts) if cell and self.path_unit == "rollouts" else None
        return {
            "headline": self.headline(),
            "standing": self.standing.value,
            "budget": self.decision.compute,
            "unit": self.unit,
            "metric": self.metric,
            "rollouts_per_problem": cell and cell.rollouts_per_problem,
            "problems_per_batch": cell and cell.problems_per_batch,
            "learning_rate": cell and cell.learning_rate,
            "update_steps": steps,
            "probability_best": cell and self.decision.probability_of(cell),
            "undecided": [o.cell.rollouts_per_problem for o in self.decision.undecided],
            "times_beyond_the_data": self.factor,
            "options": [option_row(o) for o in self.decision.options],
            "measured": [{**asdict(e.cell), "reward": e.reward, "interval": list(e.interval)} for e in self.endings],
            "risk": self.risk,
            "not_in_this": list(self.missing),
            "lines": self.lines(),
        }

    def lines(self) -> list[str]:
        """The answer, one line each; for an n and B_p at several rates, only the best rate is named."""
        several = differing(self.cells)[0]
        lines = [self.data, self._of_training(self._use(several))]
        if self.standing is not Standing.MISFIT:
            lines += ["  " + self._losses(several), self._path(several) if self.decision.rivals else "", self._beyond()]
        return [*filter(None, lines), f"Risk: {self.risk}", f"Not in this: {'; '.join(self.missing)}"]

    def _use(self, several: bool) -> str:
        where = f"At {short(self.decision.compute)} {self.unit}"
        if self.factor > 1 + SLACK:
            where += f", {self.factor:.2g} times beyond the data,"
        if self.compute < (first := float(self.path.compute[0])) / (1 + SLACK):
            where += f", before the first evaluation at {short(first)},"
        if self.standing is Standing.MISFIT:
            return f"{where} {self._misfit(several)}"
        chosen = self.decision.chosen
        low, high = chosen.interval
        return (
            f"{where} {self._words(several)} {self._setting()}     {self.metric} {chosen.reward:.3f} "
            f"(95 %: {low:.3f}–{high:.3f})   {self._probability()}"
        )

    def _words(self, several: bool) -> str:
        """What the answer says about the chosen setting."""
        of_known = " of the n that are known" if self.decision.unknown else ""
        if self._mostly_unknown:
            names = called(*self.decision.unknown, several=several)
            return f"undecided: too little is known here of {names}; the least expected regret{of_known} is with"
        if self.standing is Standing.ALONE:
            return "nothing is compared, for one n was run:"
        if self.standing is Standing.UNDECIDED:
            first, second = sorted(self.decision.undecided, key=lambda option: option.cell.key)
            names = f"{name(first.cell, several)} and {name(second.cell, several)}"
            return f"undecided between {names}; the least expected regret{of_known} is with"
        if self.standing is Standing.FAR:
            return f"and if no curve turns in a way that none has shown, the least expected regret{of_known} is with"
        return f"the best{of_known} is" if of_known else "use"

    def _setting(self) -> str:
        cell = self.decision.chosen.cell
        rate = f", learning rate {as_run(cell.learning_rate)}" if cell.learning_rate else ""
        count = counted(round(self.compute / cell.batch_rollouts), "step")
        steps = f", {count}" if self.path_unit == "rollouts" else ""
        group = f", {cell.group}" if cell.group else ""
        return f"n = {cell.rollouts_per_problem}, B_p = {cell.problems_per_batch}{steps}{rate}{group}"

    def _probability(self) -> str:
        """P(best) of the n and, with several rates, of its rate."""
        if self.standing is Standing.ALONE:
            return ""
        chosen = self.decision.chosen
        share = self.decision.probability_of(chosen.cell)
        rates = [o for o in self.decision.options if o.cell.key == chosen.cell.key]
        of_rate = f", of this rate {rounded(chosen.probability_best)}" if len(rates) > 1 else ""
        return f"P(best) {rounded(share)}{of_rate}"

    def _misfit(self, several: bool) -> str:
        first, *others = self.misfits
        said = f"undecided: the curves do not fit {called(first.cell, several=several)} ({first.evidence})"
        if others:
            said += f", nor {', '.join(name(m.cell, several) for m in others[:MOST_NAMED])}"
        measured = [
            f"{called(end.cell, several=several, rated=True)}: {end.reward:.3f} "
            f"(95 %: {end.interval[0]:.3f}–{end.interval[1]:.3f})"
            for end in self.endings[:MOST_ENDS]
        ]
        return f"{said}. Measured best at the end of the runs, {self.metric}: {'; '.join(measured)}"

    def _losses(self, several: bool) -> str:
        known = [o for o in self.decision.options if o.known]
        others = at_best_rates(known)[1:]
        if not others and not self.decision.unknown:
            rated = [(o.cell.learning_rate, o.loss) for o in known[1:] if o.cell.learning_rate]
            return "; ".join(
                ["no other n was run", *(f"at {as_run(at)} it gets {loss:.3f} less" for at, loss in rated)]
            )
        near = [o for o in at_best_rates(self.decision.near()) if o.known]
        said = _alike(self.decision, near, several)
        far = [o for o in others if o not in near]
        if far:
            span = interval(far[0].loss_interval, digits=3)
            first = f"{listed(far[:1], several)} gets {far[0].loss:.3f} less (95 %: {span})"
            rest = [f"{listed([o], several)}{':' * several} {o.loss:.3f}" for o in far[1:MOST_NAMED]]
            if more := far[MOST_NAMED:]:
                rest.append(f"{len(more)} more up to {more[-1].loss:.3f}")
            said.append(", ".join([first, *rest]))
        if self.decision.unknown:
            names = dict.fromkeys(name(c, several) for c in self.decision.unknown)
            shares = [self.decision.probability_of(c) for c in {c.key: c for c in self.decision.unknown}.values()]
            said.append(f"too little is known here of {', '.join(names)} (P(best) {rounded(sum(shares))} together)")
        text = "; ".join(said) + "."
        if self.earlier is not None:
            near = at_best_rates(self.earlier.near())
            share = rounded(self.earlier.probability_of(near[0].cell))
            best = f"{'' if several else 'n* = '}{name(near[0].cell, several)}, P(best) {share}"
            text += f"  At {short(self.earlier.compute)}: {'; '.join([best, *_alike(self.earlier, near, several)])}."
        return text

    def _path(self, several: bool) -> str:
        names = [name(c, several) for c in self.cells]
        # Another rate of the same n and B_p is not another n.
        changes = [c for c in self.path.changes if names[c.before] != names[c.after]]
        if not changes:
            return f"n*: {names[int(self.path.chosen[-1])]} at every budget"
        parts = [names[changes[0].before]]
        first, last = short(float(self.path.compute[0])), short(float(self.path.compute[-1]))
        for change in changes:
            low, high = change.interval
            span = f"{short(low) if low else f'<{first}'} to {short(high) if high else f'>{last}'}"
            said = f"90 % interval: {span}" if len(parts) == 1 else span
            parts.append(f"{names[change.after]} at {short(change.compute)} ({said})")
        return "n*: " + " → ".join(parts)

    def _beyond(self) -> str:
        said, chosen = [], self.decision.chosen.cell.rollouts_per_problem
        if self.beyond is not None and self.decision.rivals:
            until, share = self.beyond
            said.append(f"Beyond: {chosen} to at least {short(until)} (P(best) {rounded(share)}).")
        new = self.unmeasured
        if new.gain > 0.001:
            said.append(
                f"n = {new.rollouts_per_problem} was not run: by extrapolation it is better than {chosen} at "
                f"{short(self.decision.compute)} with probability {rounded(new.probability)} (expected improvement "
                f"from trying it: {new.gain:.3f})."
            )
        return " ".join(said)


def option_row(option: Option) -> dict[str, object]:
    """An option as a table row."""
    return {
        **asdict(option.cell),
        "reward": option.reward,
        "reward_low": option.interval[0],
        "reward_high": option.interval[1],
        "regret": option.regret,
        "loss": option.loss,
        "loss_low": option.loss_interval[0],
        "loss_high": option.loss_interval[1],
        "probability_best": option.probability_best,
        "failure": option.failure,
        "reach": option.reach,
    }


def _alike(decision: Decision, near: Sequence[Option], several: bool) -> list[str]:
    """The sentence about settings that are as good as the first, if any."""
    if len(near) == 1:
        return []
    shares = ", ".join(rounded(decision.probability_of(o.cell)) for o in sorted(near[1:], key=lambda o: o.cell.key))
    verb = "are" if len(near) > 2 else "is"
    return [f"{listed(near[1:], several)} {verb} within {NEAR} of that (P(best) {shares})"]


def name(cell: Setting, several: bool, rated: bool = False) -> str:
    """A setting as text: its n alone, or "n = 8, B_p = 4" if settings differ in B_p; the rate on request."""
    n = cell.rollouts_per_problem
    text = f"n = {n}, B_p = {cell.problems_per_batch}" if several else f"{n}"
    text += f" at rate {cell.learning_rate:.3g}" if rated and cell.learning_rate else ""
    return f"{text} {cell.group}".strip()


def called(*cells: Setting, several: bool, rated: bool = False) -> str:
    """Settings as text if no n was mentioned yet: "n = 8, 16", or "n = 8, B_p = 4, n = 16, B_p = 2"."""
    names = dict.fromkeys(name(cell, several, rated) for cell in cells)
    return f"{'' if several else 'n = '}{', '.join(names)}"


def words(cell: Setting, several: bool) -> str:
    """A setting in words: "8 rollouts per problem"."""
    batch = f" × {cell.problems_per_batch} problems per batch" if several else ""
    return f"{cell.rollouts_per_problem} rollouts per problem{batch}{f' ({cell.group})' if cell.group else ''}"


def listed(options: Sequence[Option], several: bool) -> str:
    """Settings ordered by n: "8, 16 and 32"."""
    names = list(dict.fromkeys(name(o.cell, several) for o in sorted(options, key=lambda option: option.cell.key)))
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def signed(number: float, digits: int = 3) -> str:
    """A number with a true minus sign, not a hyphen, and none before 0."""
    return f"{round(number, digits) + 0.0:.{digits}f}".replace("-", "−")


def interval(ends: tuple[float, float], digits: int = 2) -> str:
    """An interval as text."""
    return f"{signed(ends[0], digits)} to {signed(ends[1], digits)}"


def percent(share: float) -> str:
    """A share in whole percent; draws never give 0 or 100."""
    return "<1 %" if share < 0.005 else ">99 %" if share > 0.995 else f"{100 * share:.0f} %"


def rounded(share: float) -> str:
    """A probability rounded to 5 points: other chains would differ by less than that."""
    return "<5 %" if share < 0.025 else ">95 %" if share > 0.975 else f"{5 * round(20 * share)} %"


def as_run(rate: float) -> str:
    """A learning rate with all its digits, ready to type: a factor of two between rates is a cliff."""
    return f"{rate:.6g}"


MOST = 3
"""Most failures named in a sentence; the report names all."""
CONSTANT = 0.1
"""Difference between two exponents of the learning rate in n that is indistinguishable."""


def differing(cells: Collection[Setting]) -> tuple[bool, bool]:
    """Return whether settings differ in B_p, and whether some n and B_p was run at several rates."""
    return len({c.problems_per_batch for c in cells}) > 1, len({c.key for c in cells}) < len(cells)


def of_data(prepared: Prepared, unit: str) -> str:
    """The sentence about the data."""
    health, runs = prepared.health, prepared.runs
    several, rated = differing(prepared.failures)
    seeds = Counter(np.bincount(runs.cell, minlength=len(runs.cells)).tolist())
    points = Counter((runs.seen & (runs.compute > 0)).sum(axis=1).tolist())
    failed = [h for h in health if h.failed]
    settings = counted(len(runs.cells), "setting" if several or rated else "value")
    settings += "" if several or rated else " of n"
    what = "run" if len(runs.bases) > 1 else "seed"
    text = f"{len(runs.bases)} base models; " if len(runs.bases) > 1 else ""
    text += (
        f"{settings} × {_span(seeds, what)} × {_span(points, 'evaluation')} to {short(float(runs.last.max()))} {unit}; "
        f"{counted(len(health), 'run')}"
    )
    if failed:
        named = [f"{h.name}: {' and '.join(sorted(k for k in h.kinds if k in FAILED))}" for h in failed]
        text += f", of which {len(failed)} failed ({'; '.join(named[:MOST])}{'; …' if len(named) > MOST else ''})"
    return text


def of_risk(prepared: Prepared, failing: Array) -> str:
    """The sentence about failures; ``failing`` holds each cell's probability of failure, shape ``(cells,)``."""
    every, cells = prepared.failures, prepared.runs.cells
    count, total = sum(f.failed for f in every.values()), sum(f.runs for f in every.values())
    if not count:
        return f"none of {counted(total, 'run')} failed; the next one does with about {percent(float(failing.mean()))}"
    several, rated = differing(prepared.failures)
    own = [every[c] for c in cells]
    worst = [k for k in np.argsort(-failing).tolist() if own[k].failed][:MOST]
    said = []
    for k in worst:
        of = called(cells[k], several=several, rated=rated)
        said.append(f"{of} with {percent(float(failing[k]))} ({own[k].failed} of {own[k].runs} did)")
    calm = [failing[k] for k, f in enumerate(own) if not f.failed]
    if calm:
        said.append(f"one of the {'others' if worst else 'settings above'} with {percent(float(np.mean(calm)))}")
    never = [c for c, f in every.items() if c not in cells and f.failed]
    lost = f"; no run came through of {called(*never, several=several, rated=rated)}" if never else ""
    return f"{count} of {counted(total, 'run')} failed; the next run fails: {', '.join(said)}{lost}"


def left_out_of(prepared: Prepared, posterior: Posterior, *, caveats: tuple[str, ...]) -> tuple[str, ...]:
    """List what the answer does not cover, and what makes it doubtful."""
    runs = prepared.runs
    missing = [] if len(runs.bases) > 1 else ["one base model", "one problem set"]
    if posterior.luck is None:
        missing.append("the luck of which validation questions are asked")
    if not differing(prepared.failures)[1]:
        missing.append(_of_rates(runs.cells))
    if np.bincount(runs.cell).max() == 1:
        assumed = 100 * posterior.model.priors.seed_amplitude
        missing.append(f"one seed: that seeds differ by {assumed:.0f} % of the gain is assumed")
    if posterior.split_r_hat > AGREED:
        missing.append(f"certainty about the fit itself: its chains do not agree (split R̂ {posterior.split_r_hat:.2f})")
    return (*missing, *caveats)


def _of_rates(cells: tuple[Setting, ...]) -> str:
    """State the limit on learning rates if each n and B_p has one rate, which cannot be told apart from them."""
    known = [(c.batch_rollouts, c.learning_rate) for c in cells if c.learning_rate]
    if len(known) < len(cells):
        return "the learning rate, which the runs do not say"
    batch, rate = np.log(np.array(known)).T
    slope = float(np.polyfit(batch, rate, 1)[0]) if np.ptp(batch) > 0 else 0.0
    scattered = len(known) > 1 and np.ptp(rate - slope * batch) > CONSTANT
    if not scattered and abs(slope) < CONSTANT:
        return "other learning rates than the one of all runs"
    if not scattered and abs(slope - 0.5) < CONSTANT:
        return "other learning rates: each n at one, scaled by √B"
    low, high = min(cells, key=lambda c: c.learning_rate or 0.0), max(cells, key=lambda c: c.learning_rate or 0.0)
    return (
        f"whether n or the learning rate makes the difference: they change together, from {low.learning_rate:.3g} at "
        f"n = {low.rollouts_per_problem} to {high.learning_rate:.3g} at n = {high.rollouts_per_problem}"
    )


def _span(each: Counter[int], noun: str) -> str:
    """Counts that differ from run to run as text, such as ``2–3 seeds``."""
    return ("" if len(each) == 1 else f"{min(each)}–") + counted(max(each), noun)
