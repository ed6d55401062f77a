"""``evaluate``: avg@k, best@k and worst@k with standard errors, alone or paired with another run."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl

from ..errors import RolloutError
from ..scoring.evaluation import Score, differences, evaluate, scores, usual_samples
from .answers import CHOICE, Answers, answers_of
from .output import DOCUMENT_FILES, SOURCE, Output, Source, add_flags, deliver, read
from .problems import add_set_flags, load_set
from .run import begin
from .settings import add_sampling, refuse_unused
from .store import Groups

PHASES = ("eval", "baseline")
OF_ROLLOUTS = ("run_id", "step")


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    command = commands.add_parser(
        "evaluate",
        help="score a model or rollouts: avg@k, best@k and worst@k with standard errors",
        description="Score a model, or rollouts that are there, on a problems table or a set known by name. Killed and "
        "started again with the same arguments, sampling continues where it stopped.",
    )
    command.add_argument("--problems", help=f"the questions: {SOURCE}")
    add_set_flags(command)
    command.add_argument("--rollouts", help=f"responses sampled earlier, instead of a model: {SOURCE}")
    command.add_argument("--against", help=f"another run's responses to pair with: {SOURCE}")
    command.add_argument(
        "--k", type=int, nargs="+", metavar="K", help="responses drawn (default: as many as questions have)"
    )
    command.add_argument(
        "--phase",
        choices=(*PHASES, "difficulty", "train"),
        help="with --model: what the responses are for, eval (default) or baseline; with --rollouts: which to take",
    )
    command.add_argument("--run-id", help="with --rollouts: only the responses of this run")
    command.add_argument("--step", type=int, help="with --rollouts: only the responses of this step")
    command.add_argument("--pass-rates", type=Path, metavar="FILE", help="also write successes per question")
    add_sampling(command, required=False, samples=4, shards=False)
    add_flags(command, out="the .json file to write")
    command.set_defaults(run=run, files=DOCUMENT_FILES)


def run(arguments: argparse.Namespace) -> Iterable[str]:
    """Score the responses and print a table of the scores."""
    _check(arguments)
    with contextlib.ExitStack() as stack:
        yield from deliver(arguments, partial(_evaluate, stack=stack))


def _check(arguments: argparse.Namespace) -> None:
    """Refuse flags that contradict each other."""
    if (arguments.model is None) == (arguments.rollouts is None):
        raise RolloutError("evaluate needs either --model to sample with or --rollouts to score")
    if arguments.problems is not None and arguments.set is not None:
        raise RolloutError("--problems and --set contradict each other; give one of them")
    if arguments.model is not None and arguments.problems is None and arguments.set is None:
        raise RolloutError("evaluate needs questions: --problems, or --set NAME")
    for name in ("folder", "revision"):
        if getattr(arguments, name) is not None and arguments.set is None:
            raise RolloutError(f"--{name} needs --set NAME")
    if arguments.k is not None and min(arguments.k) < 1:
        raise RolloutError(f"--k is {min(arguments.k)}; it must be at least 1")
    if arguments.model is None:
        refuse_unused(arguments)
        return
    for name in OF_ROLLOUTS:
        if getattr(arguments, name) is not None:
            raise RolloutError(f"--{name.replace('_', '-')} needs --rollouts")
    if arguments.phase not in (None, *PHASES):
        raise RolloutError(f"--phase is {arguments.phase}; with --model it must be one of {', '.join(PHASES)}")
    if arguments.k is not None and max(arguments.k) > arguments.samples:
        raise RolloutError(f"--k is {max(arguments.k)}; it must be at most --samples = {arguments.samples}")


def _evaluate(arguments: argparse.Namespace, *, stack: contextlib.ExitStack) -> Output:
    problems, where = _questions(arguments)
    sources: dict[str, Source] = {}
    if problems is not None and problems.files:
        sources["problems"] = problems
    params: dict[str, Any] = {**where, "k": " ".join(map(str, arguments.k or ()))}
    store: Groups | None = None
    dropped: pl.DataFrame | None = None
    besides: list[tuple[str, pl.DataFrame, Path]] = []
    others: Answers | None = None
    theirs = read(arguments.against, "rollouts") if arguments.against is not None else None
    if theirs is not None:
        sources["against"] = theirs
    if arguments.model is not None:
        assert problems is not None
        sampling = begin(arguments, stack, problems=problems, phase=arguments.phase or "eval")
        k = arguments.k or [sampling.settings.samples]
        # Whatever is wrong with the other run should be known before anything is sampled.
        if theirs is not None:
            others = _others(
                _among(theirs, problems, sampling.problems), sampling.problems, arguments, sampling.settings.samples
            )
        with contextlib.closing(sampling):
            found = evaluate(
                sampling,
                sampling.problems,
                samples=sampling.settings.samples,
                seed=sampling.settings.seed,
                at=0,
                run_id=sampling.run_id,
                phase=sampling.phase,
            )
        store, params, dropped = sampling.store, {**params, **sampling.params}, sampling.dropped
        if arguments.rollouts_out is not None:
            besides.append(("rollouts", found.rollouts, arguments.rollouts_out))
        ours = answers_of(found.rollouts, sampling.problems, where="the responses sampled", k=k)
    else:
        given = read(arguments.rollouts, "rollouts")
        sources["rollouts"] = given
        table = None if problems is None else problems.table
        choice = {name: getattr(arguments, name) for name in CHOICE}
        ours = answers_of(given.table, table, where=arguments.rollouts, k=arguments.k, choice=choice)
        if theirs is not None:
            others = _others(theirs, table, arguments, usual_samples(ours.counts))
    if arguments.pass_rates is not None:
        besides.append(("pass_rates", ours.pass_rates(), arguments.pass_rates))
    paired = None if others is None else differences(ours.counts, others.counts, ours.k)
    return _output(
        ours, paired, arguments, sources=sources, params=params, besides=besides, store=store, dropped=dropped
    )


def _questions(arguments: argparse.Namespace) -> tuple[Source | None, dict[str, Any]]:
    """Return the questions, and settings that say where they come from."""
    if arguments.set is not None:
        loaded, settings = load_set(arguments)
        return Source(address=settings["source"], table=loaded.problems, files=()), settings
    if arguments.problems is not None:
        return read(arguments.problems, "problems"), {}
    return None, {}


def _among(theirs: Source, problems: Source, limited: pl.DataFrame) -> Source:
    """Return the other run without the questions that --limit leaves out, which nobody chose by their responses."""
    left_out = problems.table.join(limited, on="problem_id", how="anti")["problem_id"].to_list()
    table = theirs.table.filter(~pl.col("problem_id").is_in(left_out))
    if table.is_empty():
        raise RolloutError(f"{theirs.address}: answers none of the {len(limited)} questions")
    return replace(theirs, table=table)


def _others(theirs: Source, problems: pl.DataFrame | None, arguments: argparse.Namespace, samples: int) -> Answers:
    """Return the other run's answers, as many per question as ours where --k is not given."""
    others = answers_of(theirs.table, problems, where=theirs.address, k=arguments.k)
    if arguments.k is None and usual_samples(others.counts) != samples:
        raise RolloutError(
            f"{theirs.address}: has {usual_samples(others.counts)} responses per question and the other run "
            f"{samples}; --k must say how many are drawn from both"
        )
    return others


def _output(ours: Answers, paired: Sequence[Score] | None, arguments: argparse.Namespace, **details: Any) -> Output:
    found = scores(ours.counts, ours.k)
    lines = [f"{'':<14} {'value':>8} {'standard error':>15} {'from sampling':>15}", *map(_line, found)]
    if paired is not None:
        lines += [f"minus {arguments.against}, on {paired[0].questions:,} questions that both answered:"]
        lines += map(_line, paired)
    metrics = {f"eval/{score.name}": score.value for score in found}
    document = {
        "questions": len(ours.counts),
        "left_out": ours.left_out,
        "responses": ours.responses,
        "aborted": ours.aborted,
        "truncated": ours.truncated,
        "score_errors": ours.errors,
        "run_id": ours.run_id,
        "step": ours.step,
        "phase": ours.phase,
        "scores": [asdict(score) for score in found],
        "against": None
        if paired is None
        else {
            "source": arguments.against,
            "questions": paired[0].questions,
            "differences": [asdict(score) for score in paired],
        },
        "standard_errors": "standard_error: questions as drawn from a population; sampling_error: the part from "
        "sampling responses, the questions given; interval and sampling_interval: 95 %, where a value is 0 or 1",
    }
    return Output(name="evaluation", document=document, lines=lines, summary=ours.summary(), metrics=metrics, **details)


def _line(score: Score) -> str:
    errors = (_error(score.standard_error, score.interval), _error(score.sampling_error, score.sampling_interval))
    return f"{score.name:<14} {score.value:8.4f} {' '.join(f'{e:>15}' for e in errors)}"


def _error(error: float | None, interval: tuple[float, float] | None) -> str:
    if interval is not None:
        return f"{interval[0]:.3f} to {interval[1]:.3f}"
    return "-" if error is None else f"{error:.4f}"
