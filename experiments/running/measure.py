"""Measure the base model on problems, in parts that need not be repeated if the measurement is killed."""

from __future__ import annotations

import json
from dataclasses import asdict
from functools import partial
from pathlib import Path

import polars as pl
from isocompute.rollout import successes
from isocompute.rollout.contract import tables
from isocompute.rollout.contract.files import atomic_write
from isocompute.rollout.scoring.code import digest

from ..errors import ExperimentError
from ..settings import Preset
from . import cell_folder
from .cell_folder import WORK, write_json
from .cells import Origin, Surroundings, problems_hash
from .schedule import Dispatch, Job, Line, Pool

PART = 256
"""Problems that one worker answers at a time."""


def check_agreement(pool: Pool, preset: Preset, problems: pl.DataFrame) -> None:
    """Check that engine and learner agree on the base model, before thousands of its responses are paid for.

    If a command trains, there is no learner of ours to compare with.
    """
    if preset.trainer is not None:
        return
    configs = [preset.learner(sweep) for sweep in preset.sweep.values()]
    few = problems.head(4)
    job = Job(key="check", name="that of the base model", method="check", arguments=(configs, few))
    for why in Dispatch(pool, "sync check").run([job]).values():
        raise ExperimentError(f"the sync check of the base model failed, before anything else was sampled: {why}")


def measure(
    pool: Pool, problems: pl.DataFrame, *, samples: int, seed: int, phase: str, title: str
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Answer every problem with a pool's base model; completed parts are kept if others fail.

    Args:
        phase: ``difficulty`` for responses that select problems, ``baseline`` for those that measure the selection;
            each phase has its own seeds.

    Returns:
        Rates (``problem_id``, ``successes``, ``samples``), and their cost, as a ``ledger`` of their own run.
    """
    (base,) = pool.config.models
    origin = Origin(
        problem_set="",
        base_model="",
        base=base,
        problems=problems_hash(problems),
        generation=pool.config.generation,
        surroundings=Surroundings.of(pool.config.resources),
    )
    run_id = digest([phase, asdict(origin), samples, seed])
    folder = WORK / "measurements" / run_id
    ordered = problems.sort("problem_id")
    parts = {folder / f"{i:05d}.parquet": ordered[i : i + PART] for i in range(0, len(ordered), PART)}
    waiting = [path for path in parts if not path.with_suffix(".json").exists()]
    done = len(ordered) - sum(len(parts[path]) for path in waiting)
    line = Line(title, total=len(ordered), unit="problems", done=done)
    kept: list[Path] = []

    def show(*_: object) -> None:
        line.show(done + sum(len(parts[path]) for path in kept))

    def keep(path: Path, rollouts: pl.DataFrame) -> None:
        with atomic_write(path) as stream:
            successes(rollouts).write_parquet(stream)
        write_json(path.with_suffix(".json"), cell_folder.cost(rollouts))
        kept.append(path)
        show()

    jobs = [
        Job(
            key=path.stem,
            name=f"part {path.stem}",
            method="sample",
            arguments=(parts[path], samples, seed, phase),
            end=partial(keep, path),
        )
        for path in waiting
    ]
    show()
    failed = Dispatch(pool, title).run(jobs, poll=show)
    if failed:
        reasons = "".join(f"\n  part {part}: {why}" for part, why in failed.items())
        raise ExperimentError(f"{title}: {len(failed)} of {len(parts)} parts of {PART} problems failed:{reasons}")
    line.show(len(ordered), last=True)
    spent = [json.loads(path.with_suffix(".json").read_text()) for path in parts]
    total = {name: sum(part[name] for part in spent) for name in spent[0]}
    rates = pl.concat([pl.read_parquet(path) for path in parts]).sort("problem_id")
    return rates, cell_folder.ledger(run_id, total)


def with_rates(problems: pl.DataFrame, measured: pl.DataFrame, *, fresh: bool = False) -> pl.DataFrame:
    """Add pass rates from the responses that select or, if ``fresh``, from those that measure the selection."""
    name = "fresh_pass_rate" if fresh else "pass_rate"
    rates = measured.select(
        "problem_id", (pl.col("successes") / pl.col("samples")).alias(name), pl.col("samples").alias(f"{name}_samples")
    )
    joined = problems.drop(name, f"{name}_samples", strict=False).join(rates, on="problem_id", how="left")
    unanswered = joined.filter(pl.col(name).is_null())
    if len(unanswered):
        raise ExperimentError(
            f"no response to problem {unanswered['problem_id'][0]} was completed ({len(unanswered)} such problems)"
        )
    return tables.check(joined.sort("problem_id"), "problems", where="measured problems")
