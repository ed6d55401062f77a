"""Cells of figures: their inputs, their training one after the other, and the committed tables of what they scored."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import chdir, closing
from dataclasses import asdict, dataclass, replace
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any

import polars as pl
from isocompute.rollout import Sampling, evaluate, load_checked, open_sampler, source_from, split, with_pass_rates
from isocompute.rollout.contract import tables
from isocompute.rollout.contract.files import write_text
from isocompute.rollout.contract.settings import made_of

from ...errors import ExperimentError
from ...running import cell_folder
from ...running.cell_folder import content
from ...running.cells import Cell, Design, Generation, WorkerConfig, problems_hash
from ...settings import Preset
from ..algorithms import setup_of
from ..fixed_rate.cells import INPUTS as OF_RATES
from ..panel.prepare import INPUTS as OF_THE_PANEL
from ..panel.prepare import preset_of
from ..panel.study import ROOT, STUDY, Unit
from ..tiny.problems import MODELS
from .figure import COMMON, QUESTIONS, TRAINING, TRAINING_SAMPLES, Figure, MadeSet, Planned, merged

RESULTS = Path(__file__).with_name("results")
"""The scores of finished cells, a table for each figure that trained some."""
INPUTS = Path(__file__).with_name("inputs")
"""Problem sets that were made for figures, by base model."""
WORK = ROOT / "work" / "figures"
"""What cells keep while they are trained."""
RESOURCES = {"sampler": COMMON.sampler, "keep_policies": "all"}
PART = 500
"""Problems that are measured at a time."""
UNTAUGHT, FEW = 5, {"train": 64, "validation": 32}
"""Steps that a base model is taught at micro scale, and its problems."""
COUNTS = ["rollouts", "tokens", "questions", "samples"]
SCORES = ["avg_at_4", "best_at_4", "worst_at_4", "polarised"]
SCHEMA = pl.Schema(
    {
        "definition": pl.String,
        "problem_set": pl.String,
        **dict.fromkeys(COUNTS, pl.Int64),
        **dict.fromkeys(SCORES, pl.Float64),
        "diverged": pl.Boolean,
        "run_id": pl.String,
    }
)
"""Of a table: a row for each evaluation; ``problem_set`` is empty for those of training, else one at its end.

``polarised`` is the share of problems of which all responses were right, or none; null where it was not counted.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """What the cells of a unit with the same sampling start from."""

    preset: Preset
    design: Design
    problems: pl.DataFrame
    models: Mapping[str, str]

    @classmethod
    def of(cls, unit: Unit, sampling: Mapping[str, Any], every: Path | None = None) -> Inputs:
        """Those of a unit.

        Args:
            every: The folder of inputs; None: the committed one.
        """
        setup = setup_of(unit, resources=RESOURCES, every=every or inputs_of(unit))
        (design,), (problems,) = setup.designs, setup.problems.values()
        own = merged(asdict(design.preset.sampling), sampling)
        preset = design.preset.model_copy(update={"sampling": made_of(Sampling, own, ExperimentError, "sampling")})
        origin = replace(design.origin, generation=Generation.of(preset))
        return cls(
            preset=preset,
            design=replace(design, preset=preset, origin=origin),
            problems=problems,
            models=setup.models,
        )

    def cell(self, planned: Planned) -> tuple[Cell, pl.DataFrame]:
        """A cell and the problems that it is trained and evaluated on."""
        how, problems = planned.how, self.problems
        sides = {side: problems.filter(pl.col("split") == side) for side in ("train", "validation")}
        if how.train:
            whole = planned.questions == QUESTIONS
            parts = [training(name, planned.unit, count, measured=whole) for name, count in how.train.items()]
            sides["train"] = pl.concat(parts, how="diagonal_relaxed")
        sides["validation"] = sides["validation"].head(planned.questions)
        chosen = pl.concat(sides.values(), how="diagonal_relaxed").sort("problem_id")
        sweep = self.design.sweep.model_copy(
            update={
                "rollouts": planned.rollouts,
                "evaluate_every": how.evaluate_every,
                "evaluations_per_octave": COMMON.evaluations_per_octave,
                "warmup_rollouts": COMMON.warmup_rollouts,
                "learner": merged(self.design.sweep.learner, how.learner),
            }
        )
        origin = replace(self.design.origin, problems=problems_hash(chosen))
        design = replace(self.design, sweep=sweep, origin=origin)
        cell = design.cell("figure", planned.run, rollouts=planned.rollouts, learning_rate=planned.learning_rate)
        return cell, chosen


def inputs_of(unit: Unit) -> Path:
    """The committed folder that has a base model of this seed."""
    for folder in (OF_THE_PANEL, OF_RATES):
        if (folder / f"{unit.task}-{unit.base_seed}").exists():
            return folder
    raise ExperimentError(f"base_seeds holds {unit.base_seed}; of that seed no base model is committed")


def training(name: str, unit: Unit, count: int, *, measured: bool = True) -> pl.DataFrame:
    """Some training problems of a set; fewer are a part of more.

    Args:
        measured: Whether problems are chosen by their measured pass rates; at micro scale they come as they are.
    """
    own = problem_set(name, unit, measured=measured).filter(pl.col("split") == "train").sort("problem_id")
    if len(own) < count:
        raise ExperimentError(f"train has {count} problems of {name!r}, which has {len(own)}")
    return own.head(count)


@cache
def problem_set(name: str, unit: Unit, *, measured: bool = True) -> pl.DataFrame:
    """A problem set of a base model: a committed one, or one that is made, and measured once."""
    folder = f"{unit.task}-{unit.base_seed}"
    for place in (inputs_of(unit), INPUTS):
        if (path := place / folder / f"{name}.parquet").exists():
            return tables.read(path, "problems")
    if name not in COMMON.sets:
        raise ExperimentError(f"there is no problem set {name!r}; common.yaml has {', '.join(COMMON.sets)}")
    how = COMMON.sets[name]
    loaded = candidates(how)
    # None may be a validation problem of the sets that are there already.
    known = [tables.read(inputs_of(unit) / folder / f"{each}.parquet", "problems") for each in ("easy", "hard")]
    asked = pl.concat([each.filter(pl.col("split") == "validation") for each in known], how="diagonal_relaxed")
    table = loaded.join(asked, on="prompt", how="anti").sort("problem_id")
    if how.split is None or how.difficulty is None or not measured:
        return table
    inputs = Inputs.of(unit, {})
    return cut(table, how, WorkerConfig.of(inputs.preset, inputs.models), INPUTS / folder / f"{name}.parquet")


def candidates(how: MadeSet) -> pl.DataFrame:
    """The problems that a set is cut from."""
    return pl.concat([load_checked(source_from(each)).problems for each in how.problems])


def cut(table: pl.DataFrame, how: MadeSet, config: WorkerConfig, path: Path) -> pl.DataFrame:
    """Measure problems with a base model, choose those of a set by their pass rates, and write them."""
    # Only here, as below: all else reads tables.
    from ...running.worker import Worker

    assert how.difficulty is not None
    assert how.split is not None
    worker, samples = Worker(config), int(how.difficulty["samples"])
    parts = [with_pass_rates(part, worker.sample(part, samples, 0, "difficulty")) for part in table.iter_slices(PART)]
    chosen = split(pl.concat(parts), how.split)
    tables.write(chosen, "problems", path)
    return chosen


def made(base: str, unit: Unit, work: Path, *, measured: bool) -> Path:
    """The folder of inputs of a base model that is made for figures; it and its problem set are made once.

    Args:
        measured: Whether it is what common.yaml says; at micro scale it is hardly taught, with few problems, not cut.
    """
    every = work / "bases" / base
    folder, how = every / f"{unit.task}-{unit.base_seed}", COMMON.base_sets[unit.problem_set]
    if not (folder / "base").exists():
        from ..tiny.model import train as teach

        own = {**STUDY["inputs"][unit.task]["model"], **COMMON.bases[base].model, "seed": unit.base_seed}
        aside = folder / ".base"
        shutil.rmtree(aside, ignore_errors=True)
        teach(MODELS[unit.task].model_validate(own if measured else {**own, "steps": UNTAUGHT}), aside)
        aside.rename(folder / "base")
    path = folder / f"{unit.problem_set}.parquet"
    if not path.exists() and measured:
        preset, place = preset_of(unit, every), folder / "base"
        preset = preset.model_copy(update={"resources": preset.resources.model_copy(update=RESOURCES)})
        cut(candidates(how), how, WorkerConfig.of(preset, {content(place): str(place)}), path)
    elif not path.exists():
        few = how.model_copy(update={"problems": tuple({**each, **FEW} for each in how.problems)})
        tables.write(candidates(few), "problems", path)
    return every


def read(results: Path = RESULTS) -> pl.DataFrame:
    """The scores of every finished cell of every figure."""
    return pl.concat([pl.DataFrame(schema=SCHEMA), *(read_one(path) for path in sorted(results.glob("*.csv")))])


def read_one(path: Path) -> pl.DataFrame:
    """The scores of the cells that were trained for one figure."""
    if not path.exists():
        return pl.DataFrame(schema=SCHEMA)
    return pl.read_csv(path, schema=SCHEMA).with_columns(pl.col("problem_set").fill_null(""))


def missing(figure: Figure, done: pl.DataFrame) -> list[Planned]:
    """Its cells that are not among those that are done, each once."""
    there = set(done["definition"])
    return list({cell.definition: cell for cell in figure.cells if cell.definition not in there}.values())


def train(figure: Figure, work: Path = WORK, results: Path = RESULTS) -> Iterator[str]:
    """Train every cell that is missing, one after the other in this process; a killed one goes on.

    Yields:
        A line for each cell that has ended, with the time that is left.

    Raises:
        ExperimentError: The figure needs what is not here yet.
    """
    if not figure.runnable:
        raise ExperimentError(f"{figure.name} cannot run here: {figure.needs or 'it has no cells of its own'}")
    import transformers

    from ...running.worker import Worker

    # A cell loads its model five times; ours is the progress.
    transformers.utils.logging.disable_progress_bar()
    work.mkdir(parents=True, exist_ok=True)
    waiting = missing(figure, read(results))
    began, spent, total = time.monotonic(), 0.0, sum(cell.seconds for cell in waiting)
    for (unit, base, _), group in groupby(
        waiting, key=lambda cell: (cell.unit, cell.how.base, repr(cell.how.sampling))
    ):
        own = list(group)
        every = made(base, unit, work.resolve(), measured=own[0].questions == QUESTIONS) if base else None
        inputs, worker = Inputs.of(unit, own[0].how.sampling, every), None
        for planned in own:
            cell, problems = inputs.cell(planned)
            started = time.process_time()
            with chdir(work):
                worker = worker or Worker(WorkerConfig.of(inputs.preset, inputs.models))
                folder = cell_folder.folder_of(cell).resolve()
                worker.train(cell, problems, folder, cell_folder.baseline_of(cell).resolve())
                rows = scores(planned, cell, inputs, problems)
            own_table = results / f"{figure.name}.csv"
            results.mkdir(parents=True, exist_ok=True)
            write_text(own_table, pl.concat([read_one(own_table), rows]).write_csv())
            shutil.rmtree(folder)
            spent += planned.seconds
            left = (time.monotonic() - began) * (total - spent) / spent / 60
            end = rows.filter(pl.col("problem_set") == "")["avg_at_4"][-1]
            took = time.process_time() - started
            yield f"{unit.name} {planned.arm}, {cell.name}: {end:.3f}, {took:.0f} CPU-s; about {left:.0f} min left"


def scores(planned: Planned, cell: Cell, inputs: Inputs, problems: pl.DataFrame) -> pl.DataFrame:
    """The rows of a cell that has ended, those of the further sets last."""
    found = cell_folder.outcome(cell)
    evals = found.read("evals").sort("rollouts")
    keys = {"definition": planned.definition, "diverged": found.diverged, "run_id": cell.run_id}
    rows = evals.with_columns(problem_set=pl.lit(""), polarised=pl.lit(None, pl.Float64))
    further = [] if found.diverged else list(at_the_end(planned, cell, inputs, problems))
    whole = pl.concat([rows, *(evals.tail(1).with_columns(**own) for own in further)], how="diagonal_relaxed")
    return whole.with_columns(**{name: pl.lit(value) for name, value in keys.items()}).select(*SCHEMA).cast(SCHEMA)


def at_the_end(planned: Planned, cell: Cell, inputs: Inputs, problems: pl.DataFrame) -> Iterator[dict[str, pl.Expr]]:
    """Evaluate the policy of a finished cell on each further set."""
    policy, resources = cell_folder.policy_of(cell_folder.folder_of(cell)), inputs.preset.resolved_resources()
    if not planned.evaluate:
        return
    generation = Generation.of(inputs.preset)
    options: dict[str, Any] = {
        "prompting": generation.prompting,
        "scoring": generation.scoring,
        "device": resources.device,
    }
    sampler = open_sampler(
        resources.sampler, str(policy), generation.sampling, **options, dtype=resources.resolved_dtype()
    )
    with closing(sampler):
        for name in planned.evaluate:
            samples = TRAINING_SAMPLES if name == TRAINING else cell.evaluation_samples
            if name == TRAINING:
                asked = problems.filter(pl.col("split") == "train")
            else:
                whole = problem_set(name, planned.unit, measured=planned.questions == QUESTIONS)
                asked = whole.filter(pl.col("split") == "validation").head(planned.questions)
            found = evaluate(
                sampler, asked, samples=samples, seed=planned.seed, at=planned.rollouts, run_id=cell.run_id
            )
            rate = found.pass_rates["successes"] / found.pass_rates["samples"]
            numbers = {
                "questions": found.questions,
                "samples": found.samples,
                "polarised": float(rate.is_in([0.0, 1.0]).to_numpy().mean()),
                **{name: found.metrics.get(name) for name in SCORES[:3]},
                "avg_at_4": float(rate.to_numpy().mean()),
            }
            yield {"problem_set": pl.lit(name), **{key: pl.lit(value) for key, value in numbers.items()}}
