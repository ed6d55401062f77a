"""A figure as its ``NAME.yaml`` says it: cells as differences from a base preset, what is compared, what is drawn."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache, cached_property
from math import lcm
from pathlib import Path
from typing import Annotated, Any, Literal

from isocompute.learner import RunConfig
from isocompute.rollout import DifficultySplit
from isocompute.rollout.contract.documents import DocumentError, parsed
from isocompute.rollout.contract.errors import IsoComputeError
from isocompute.rollout.contract.settings import Count, Positive, Share, Whole, made_of
from isocompute.rollout.scoring.code import digest
from pydantic import Field

from ...errors import ExperimentError
from ...running.cells import Rates
from ...settings.sections import Grid, Scaling, Settings
from ..panel.study import Unit

HERE = Path(__file__).parent
COMMON_FILE = HERE / "common.yaml"
TRAINING = "train"
"""Among the sets that a cell is evaluated on at its end: the problems that it was trained on."""
TRAINING_SAMPLES = 16
"""Responses to each of those; of others there are as many as in training."""
QUESTIONS = 300
"""Validation problems of the committed sets."""


class Difference(Settings):
    """What cells differ in from those that it is a difference from; what is null they have from there."""

    rollouts_per_problem: Grid[Count] | None = None
    """n: each with each B_p."""
    problems_per_batch: Grid[Count] | None = None
    """B_p."""
    pairs: Grid[tuple[Count, Count]] | None = None
    """(n, B_p) in place of all pairs of both."""
    rollouts: Count | None = None
    """C of a cell."""
    evaluate_every: Count | None = None
    """Rollouts between evaluations, as of a sweep."""
    rule: Scaling | None = None
    """How the rate follows B = B_p · n."""
    rate_factors: Grid[Positive] | None = None
    """Factors on that rate; each is a cell."""
    learner: Mapping[str, Any] = {}
    """Settings of the learner, put over those that are there."""
    sampling: Mapping[str, Any] = {}
    """Settings of the sampler, likewise."""
    train: Mapping[str, Count] | None = None
    """Training problems: how many of each set; null: all of the unit's own. Fewer are a part of more."""
    base: str | None = None
    """Base model, of those that common.yaml has made for figures; null: the committed one of the seed."""

    def under(self, above: Difference) -> Difference:
        """Both differences, where ``above`` wins."""
        own, theirs = self.model_dump(), above.model_dump(exclude_none=True)
        if above.pairs or above.rollouts_per_problem or above.problems_per_batch:
            own["pairs"] = None
        nested = {name: merged(own[name], theirs.pop(name)) for name in ("learner", "sampling")}
        return Difference.model_validate({**own, **theirs, **nested})

    def grid(self) -> list[tuple[int, int]]:
        """Every (n, B_p)."""
        sizes = self.problems_per_batch or ()
        return list(self.pairs or ((n, size) for n in self.rollouts_per_problem or () for size in sizes))


class Side(Settings):
    """Cells on one side of a comparison."""

    arm: str | None = None
    """Only those of this arm; null: all, where every arm has a base model of its own, and so a pair."""
    rollouts_per_problem: Count | None = None
    """Only those with this n; null: all."""
    problems_per_batch: Count | None = None
    """Only those with this B_p."""
    rate_factor: Positive | None = None
    """Only those at this factor on the rate."""
    of: str = ""
    """The set of their last evaluation, of those that the figure names; empty: the validation of the unit's own."""
    metric: str = "avg_at_4"
    """The score."""
    upto: Share = 1.0
    """Share of C up to which they are read."""
    over: Literal["rollouts_per_problem", "problems_per_batch"] = "rollouts_per_problem"
    """What a slope, a spread or a vertex is over, on a scale of octaves."""

    @property
    def asked(self) -> dict[str, Any]:
        """What its cells have, by name."""
        names = ("arm", "rollouts_per_problem", "problems_per_batch", "rate_factor")
        return {name: value for name in names if (value := getattr(self, name)) is not None}


class Comparison(Settings):
    """A number of each pair (a base model with its problem set, and a seed), and what the paper says of its sign."""

    says: str
    """What is compared, in a few words."""
    measure: Literal["end", "area", "slope", "spread", "top", "forecast", "spread_of_runs"] = "end"
    """What is read of the cells of a side; see ``reading.MEASURES``."""
    of: Side
    less: Side | None = None
    """What is taken off; null: nothing."""
    sets: Grid[str] | None = None
    """Only the pairs with these problem sets."""
    paper: Literal["above", "below", "equal"]
    """Where the paper's number lies: above 0, below 0, or at 0."""
    least: Positive = 0.02
    """For ``equal``: the largest difference that counts as none."""


class Figure(Settings):
    """A figure of a paper, or several that the same cells draw."""

    name: str
    title: str
    also: tuple[str, ...] = ()
    """Names of other figures of the paper that these cells draw."""
    shows: str
    """What the paper shows."""
    sets: Grid[str] = ("easy",)
    """Problem sets of each base model."""
    base_seeds: Grid[Whole] = (0, 1, 2)
    """Base models; the panel has 0 to 2, the study of rates 9 and 10."""
    seeds: Grid[Whole] = (7200,)
    """Seeds, which no other study has."""
    evaluate: tuple[str, ...] = ()
    """Sets that the policy is evaluated on at the end; ``train``: its training problems, 16 responses each."""
    every: Difference = Difference()
    """What all cells differ in from those of common.yaml."""
    arms: Annotated[Mapping[str, Difference], Field(min_length=1)] = {}
    """What the cells of each arm differ in from those."""
    compare: tuple[Comparison, ...] = ()
    draw: Literal["curves", "ends", "bars"] = "curves"
    """Scores against rollouts, ends against what is compared over, or bars of several sets or scores."""
    page_of: tuple[str, ...] = ()
    """Other figures that are drawn together here; such a page has no cells of its own."""
    decides: bool = False
    """Whether it decides something for a reader; all others are illustrations."""
    chosen: str = "nothing"
    """What was chosen on the same data."""
    needs: str = ""
    """What is missing here before it can run; empty where it can."""
    cluster: str = ""
    """The command for a cluster where tiny models cannot ask the question; empty: ``--preset paper``."""
    questions: Count = QUESTIONS
    """Validation problems; fewer at micro scale."""

    def impossible(self) -> Iterator[str]:
        """Comparisons are of arms that there are, and of what is evaluated."""
        for one in self.compare:
            for side in filter(None, (one.of, one.less)):
                if side.arm is not None and side.arm not in self.arms:
                    near = get_close_matches(side.arm, self.arms, n=1)
                    meant = f" (did you mean {near[0]!r}?)" if near else ""
                    yield f"compare has no arm {side.arm!r}{meant}; there are {', '.join(self.arms)}"
                if side.of and side.of not in self.evaluate:
                    yield f"evaluate lacks {side.of!r}, which {one.says!r} reads"

    @property
    def runnable(self) -> bool:
        """Whether its cells can be trained here."""
        return bool(self.arms) and not self.needs

    @cached_property
    def cells(self) -> list[Planned]:
        """Every cell: those of one base model and problem set after those of another."""
        found: list[Planned] = []
        for seed in self.base_seeds:
            for name in self.sets:
                unit = Unit(task="chains", problem_set=name, base_seed=seed)
                for arm, own in self.arms.items():
                    found += self._of_arm(unit, arm, COMMON.every.under(self.every).under(own))
        return found

    def _of_arm(self, unit: Unit, arm: str, how: Difference) -> Iterator[Planned]:
        rates = Rates(rule=str(how.rule), found={(COMMON.anchor, 1): COMMON.rates[unit.problem_set]})
        for seed in self.seeds:
            for n, size in how.grid():
                for factor in how.rate_factors or (1.0,):
                    yield Planned(
                        arm=arm,
                        unit=unit,
                        seed=seed,
                        rollouts_per_problem=n,
                        problems_per_batch=size,
                        rate_factor=factor,
                        learning_rate=float(f"{rates.at(n, size) * factor:.12g}"),
                        how=how,
                        evaluate=self.evaluate,
                        questions=self.questions,
                    )

    def micro(self) -> Figure:
        """The same with two short cells of each kind: it shows that everything runs, and nothing else."""
        batches = [n * size for cell in self.cells for n, size in cell.how.grid()]
        every = lcm(*batches)
        short = Difference(rollouts=2 * every, evaluate_every=every)
        arms = {}
        for name, own in self.arms.items():
            few = {key: min(count, 16) for key, count in (own.train or self.every.train or {}).items()}
            arms[name] = own.under(short).model_copy(update={"train": few or None})
        changed = {
            "sets": self.sets[:1],
            "base_seeds": self.base_seeds[:1],
            "seeds": (7200, 7201),
            "arms": arms,
            "questions": 8,
        }
        # Validated again, so that nothing that was computed of the whole figure is kept.
        return Figure.model_validate({**{k: getattr(self, k) for k in Figure.model_fields}, **changed})


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """A cell before its inputs are known: what names it, and what it will cost."""

    arm: str
    unit: Unit
    seed: int
    rollouts_per_problem: int
    problems_per_batch: int
    rate_factor: float
    learning_rate: float
    how: Difference
    evaluate: tuple[str, ...]
    questions: int

    @property
    def run(self) -> RunConfig:
        """Its settings in the learner's loop."""
        return RunConfig(
            rollouts_per_problem=self.rollouts_per_problem,
            problems_per_batch=self.problems_per_batch,
            seed=self.seed,
            evaluate_every=self.how.evaluate_every,
            evaluations_per_octave=COMMON.evaluations_per_octave,
        )

    @property
    def rollouts(self) -> int:
        """Its budget, C."""
        return int(self.how.rollouts or 0)

    @property
    def definition(self) -> str:
        """Hash of what is written of it: cells of several figures that are the same are trained once."""
        of_cells = ("rollouts", "evaluate_every", "learner", "sampling", "train")
        base = {"base": COMMON.bases[self.how.base].model} if self.how.base else {}
        return digest(
            {
                **base,
                **{name: value for name, value in self.how.model_dump(mode="json").items() if name in of_cells},
                "unit": self.unit.name,
                "run": [self.rollouts_per_problem, self.problems_per_batch, self.seed, self.learning_rate],
                "evaluations": [COMMON.evaluations_per_octave, self.questions, *sorted(self.evaluate)],
                "warmup_rollouts": COMMON.warmup_rollouts,
            }
        )

    @property
    def seconds(self) -> float:
        """What it will cost (CPU-seconds)."""
        batch, cost = self.run.batch_rollouts, COMMON.cost
        evaluations = sum(map(self.run.evaluated_at, range(batch, self.rollouts + 1, batch)))
        responses = 4 * self.questions * (evaluations + len(self.evaluate))
        steps, times = self.rollouts // batch, COMMON.bases[self.how.base].cost if self.how.base else 1.0
        own = steps * cost["step"] + self.rollouts * cost["rollout"] + responses * cost["response"]
        return cost["cell"] + times * own

    def check(self) -> None:
        """Refuse a base model that cannot be made for it, and a budget at which it would not be evaluated."""
        if self.how.base is not None and self.how.base not in COMMON.bases:
            raise ExperimentError(f"base is {self.how.base!r}; common.yaml has {', '.join(COMMON.bases)}")
        if self.how.base is not None and (self.how.train or self.evaluate):
            raise ExperimentError(f"base is {self.how.base!r}, which has no problem sets for train and evaluate")
        if self.rollouts % self.run.batch_rollouts or not self.run.evaluated_at(self.rollouts):
            batch = self.run.batch_rollouts
            raise ExperimentError(f"rollouts is {self.rollouts}, which is no evaluated end of batches of {batch}")


class MadeSet(Settings):
    """A problem set that is made for these figures."""

    problems: tuple[Mapping[str, Any], ...]
    """Sources, as of a preset."""
    difficulty: Mapping[str, Any] | None = None
    """``samples`` to measure each problem with, and the settings of the split; null: taken as they come."""

    @property
    def split(self) -> DifficultySplit | None:
        """Which of the measured problems are in it."""
        if self.difficulty is None:
            return None
        return made_of(DifficultySplit, {k: v for k, v in self.difficulty.items() if k != "samples"}, ExperimentError)


class BaseModel(Settings):
    """A base model that is made for figures."""

    model: Mapping[str, Any]
    """What its settings differ in from those of the panel's."""
    cost: Positive
    """CPU-time of its cells, in those of the panel's."""


class Common(Settings):
    """common.yaml."""

    every: Difference
    evaluations_per_octave: Count
    warmup_rollouts: Count
    rates: Mapping[str, Positive]
    anchor: Count
    sampler: str
    sets: Mapping[str, MadeSet]
    bases: Mapping[str, BaseModel]
    base_sets: Mapping[str, MadeSet]
    cost: Mapping[str, Positive]
    paper: Mapping[str, Positive]


def merged(base: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Both mappings, where ``above`` wins, within mappings as well."""
    nested = {name for name, own in above.items() if isinstance(own, Mapping) and isinstance(base.get(name), Mapping)}
    return {**base, **above, **{name: merged(base[name], above[name]) for name in nested}}


def read(path: Path, kind: type[Any], **given: Any) -> Any:
    """Read a document of settings.

    Raises:
        ExperimentError: It cannot be read, or a setting is unknown or wrong; the message names what was meant.
    """
    try:
        plain = parsed(path.read_text("utf-8"))
    except (OSError, UnicodeError, DocumentError) as error:
        raise ExperimentError(f"{path}: {error}") from None
    if not isinstance(plain, dict):
        raise ExperimentError(f"{path}: must be a mapping")
    try:
        return made_of(kind, {**plain, **given}, ExperimentError)
    except ExperimentError as error:
        raise ExperimentError(f"{path}: {error}") from None


COMMON: Common = read(COMMON_FILE, Common)


def load(path: Path) -> Figure:
    """Read a figure from its file, and check its cells.

    Raises:
        ExperimentError: A setting is unknown or wrong, or a cell cannot be trained as it is written.
    """
    found: Figure = read(path, Figure, name=path.stem)
    for cell in found.cells:
        try:
            cell.check()
        except IsoComputeError as error:
            raise ExperimentError(f"{path}: arm {cell.arm!r}: {error}") from None
    return found


def names() -> list[str]:
    """Every figure that has a file: those of the first paper before those of the second, by number."""
    found = [path.stem for path in HERE.glob("*-*.yaml")]
    return sorted(found, key=lambda name: (name.partition("-")[0], f"{name.partition('-')[2]:0>12}"))


@cache
def figure_of(name: str) -> Figure:
    """The figure of that name, or the one whose cells draw it.

    Raises:
        ExperimentError: There is none.
    """
    if name in names():
        return load(HERE / f"{name}.yaml")
    every = [figure_of(each) for each in names()]
    known = [other for each in every for other in (each.name, *each.also)]
    found = [each for each in every if name in each.also]
    if not found:
        near = get_close_matches(name, known, n=1)
        meant = f" (did you mean {near[0]!r}?)" if near else ""
        raise ExperimentError(f"there is no figure {name!r}{meant}; there are {', '.join(known)}")
    return found[0]
