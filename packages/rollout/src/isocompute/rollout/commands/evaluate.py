"""``evaluate``: avg@k, best@k and worst@k with standard errors, alone or paired with another run."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import polars as pl

from ..errors import RolloutError
from ..scoring.evaluation import LARGEST_LEFT_OUT_SHARE, Score, differences, scores, successes, usual_samples
from .output import DOCUMENT_FILES, SOURCE, Output, Source, add_flags, check, deliver, faults, read
from .problems import add_set_flags, load_set, refuse_without_set
from .run import begin
from .settings import add_sampling, refuse_unused

PHASES = ("eval", "baseline")
OF_ROLLOUTS = ("run_id", "step")
CHOICE = (*OF_ROLLOUTS, "phase")
"""Columns that tell one run of a table from another."""


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    command = commands.add_parser(
        "evaluate",
        help="score a model or rollouts: avg@k, best@k and worst@k with standard errors",
        description="avg@k, best@k and worst@k: the mean, highest and lowest score of k responses to a question, "
        "averaged over questions. Score a model, or rollouts that are there, on a problems table or a set known by "
        "name. Killed and started again with the same arguments, sampling continues where it stopped.",
        epilog="example: isocompute-rollout evaluate --problems problems.parquet --model Qwen/Qwen2.5-0.5B --k 1 4 "
        "--out scores.json",
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


def _check(arguments: argparse.Namespace) -> None:
    if (arguments.model is None) == (arguments.rollouts is None):
        raise RolloutError("evaluate needs either --model to sample with or --rollouts to score")
    if arguments.problems is not None and arguments.set is not None:
        raise RolloutError("--problems and --set contradict each other; give one of them")
    if arguments.model is not None and arguments.problems is None and arguments.set is None:
        raise RolloutError("evaluate needs questions: --problems, or --set NAME")
    refuse_without_set(arguments)
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


def run(arguments: argparse.Namespace) -> Iterable[str]:
    """Score the responses and print a table of the scores."""
    _check(arguments)
    check(arguments)
    problems, params, sources = None, dict[str, Any](), dict[str, Source]()
    if arguments.set is not None:
        loaded, params = load_set(arguments)
        problems = Source(address=params["source"], table=loaded.problems, files=())
    elif arguments.problems is not None:
        problems = sources["problems"] = read(arguments.problems, "problems")
    params |= {"k": " ".join(map(str, arguments.k or ()))}
    besides: list[tuple[str, pl.DataFrame, Path]] = []
    kept: dict[str, Any] = {}
    theirs = others = None
    if arguments.against is not None:
        theirs = sources["against"] = read(arguments.against, "rollouts")
    with contextlib.ExitStack() as stack:
        if arguments.model is not None:
            assert problems is not None
            sampling = stack.enter_context(begin(arguments, problems=problems, phase=arguments.phase or "eval"))
            samples, questions = sampling.settings.samples, sampling.problems
            # Errors in the other run should show before anything is sampled.
            if theirs is not None:
                # The questions that --limit leaves out were not selected by these responses.
                without = problems.table.join(questions, on="problem_id", how="anti")
                theirs = replace(theirs, table=theirs.table.join(without, on="problem_id", how="anti"))
                if theirs.table.is_empty():
                    raise RolloutError(f"{theirs.address}: answers none of the {len(questions)} questions")
                others = _others(theirs, questions, arguments, samples)
            sampled = sampling.rollouts()
            params |= sampling.params
            kept = {"store": sampling.store, "dropped": sampling.dropped}
            if arguments.rollouts_out is not None:
                besides.append(("rollouts", sampled, arguments.rollouts_out))
            ours = answers_of(sampled, questions, where="the responses sampled", k=arguments.k or [samples])
        else:
            given = sources["rollouts"] = read(arguments.rollouts, "rollouts")
            table = None if problems is None else problems.table
            choice = {name: getattr(arguments, name) for name in CHOICE}
            ours = answers_of(given.table, table, where=arguments.rollouts, k=arguments.k, choice=choice)
            if theirs is not None:
                others = _others(theirs, table, arguments, usual_samples(ours.counts))
        if arguments.pass_rates is not None:
            of_run = [pl.lit(ours.document[name]).alias(name) for name in OF_ROLLOUTS]
            besides.append(("pass_rates", ours.counts.select(*of_run, pl.all()), arguments.pass_rates))
        paired = None if others is None else differences(ours.counts, others.counts, ours.k)
        output = _output(ours, paired, arguments, sources=sources, params=params, besides=besides, **kept)
        yield from deliver(arguments, output)


def _others(theirs: Source, problems: pl.DataFrame | None, arguments: argparse.Namespace, samples: int) -> Answers:
    """Return the other run's answers, as many per question as ours where --k is not given."""
    others = answers_of(theirs.table, problems, where=theirs.address, k=arguments.k)
    if arguments.k is None and usual_samples(others.counts) != samples:
        raise RolloutError(
            f"{theirs.address}: has {usual_samples(others.counts)} responses per question and the other run "
            f"{samples}; --k must say how many are drawn from both"
        )
    return others


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """Responses of one run to a set of questions, counted.

    Attributes:
        counts: ``problem_id``, ``successes`` and ``samples`` of the questions with enough completed responses.
        k: Numbers of responses drawn, in order.
        faults: Faults in words.
        document: Their part of the written document.
    """

    counts: pl.DataFrame
    k: Sequence[int]
    faults: Sequence[str]
    document: Mapping[str, Any]


def answers_of(
    rollouts: pl.DataFrame,
    problems: pl.DataFrame | None,
    *,
    where: str,
    k: Sequence[int] | None = None,
    choice: Mapping[str, Any] | None = None,
) -> Answers:
    """Count the responses of one run to the questions, from a table that may contain more.

    Responses that select problems never measure them: those of phase ``difficulty`` do not count for a set that they
    have selected. Without problems, the questions are all answered problems. Without k, it is the number of responses
    that most of them have. ``choice`` selects one of several runs by the columns of ``CHOICE``; None if no flags can
    select one.
    """
    for name in CHOICE:
        value, values = None if choice is None else choice[name], rollouts[name].unique().sort().to_list()
        shown = ", ".join(map(str, values[:5]))
        if value is not None and value not in values:
            raise RolloutError(f"{where}: has no responses of {name} {value} (it has {shown})")
        if value is not None:
            rollouts = rollouts.filter(pl.col(name) == value)
        elif len(values) > 1:
            flag = f"--{name.replace('_', '-')}"
            advice = "a table with one is needed" if choice is None else f"{flag} must choose one"
            shown += ", ..." if len(values) > 5 else ""
            raise RolloutError(f"{where}: holds responses of {len(values)} {name}s ({shown}); {advice}")
    answered = rollouts["problem_id"].unique()
    if problems is not None:
        names = problems["problem_id"].to_list()
        # If problems have pass rates, or are only a part of those answered, these responses may have selected them.
        chosen = "pass_rate" in problems.columns or not answered.is_in(names).all()
        if chosen and rollouts["phase"][0] == "difficulty":
            raise RolloutError(
                f"{where}: the responses are of phase difficulty and chose the questions, so they cannot measure them; "
                "fresh ones are needed, of phase eval or baseline"
            )
        rollouts = rollouts.filter(pl.col("problem_id").is_in(names))
        if rollouts.is_empty():
            raise RolloutError(f"{where}: answers none of the {len(problems)} questions")
    counts = successes(rollouts)
    if counts.is_empty():
        raise RolloutError(f"{where}: all {len(rollouts):,} responses were aborted, so nothing can be scored")
    drawn = sorted(set(k)) if k else [usual_samples(counts)]
    enough = counts.filter(pl.col("samples") >= drawn[-1])
    questions = len(answered) if problems is None else len(problems)
    left_out = questions - len(enough)
    if left_out > LARGEST_LEFT_OUT_SHARE * questions:
        raise RolloutError(
            f"{where}: {left_out} of {questions} questions have fewer than {drawn[-1]} completed responses; a smaller "
            "--k would score them"
        )
    reasons = rollouts["finish_reason"]
    document = {
        "questions": len(enough),
        "left_out": left_out,
        "responses": len(rollouts),
        "aborted": int((reasons == "aborted").sum()),
        "truncated": int((reasons == "length").sum()),
        "score_errors": int(rollouts["score_error"].count()) if "score_error" in rollouts.columns else 0,
        **{name: rollouts[name][0] for name in CHOICE},
    }
    return Answers(counts=enough, k=drawn, faults=tuple(faults(rollouts)), document=document)


def _output(ours: Answers, paired: Sequence[Score] | None, arguments: argparse.Namespace, **details: Any) -> Output:
    found, against = scores(ours.counts, ours.k), None
    lines = [f"{'':<14} {'value':>8} {'standard error':>15} {'from sampling':>15}", *map(_line, found)]
    if paired is not None:
        lines += [f"minus {arguments.against}, on {paired[0].questions:,} questions that both answered:"]
        lines += map(_line, paired)
        differing = [asdict(score) for score in paired]
        against = {"source": arguments.against, "questions": paired[0].questions, "differences": differing}
    document = {
        **ours.document,
        "scores": [asdict(score) for score in found],
        "against": against,
        "standard_errors": "standard_error: questions as drawn from a population; sampling_error: the part from "
        "sampling responses, the questions given; interval and sampling_interval: 95 %, where a value is 0 or 1",
    }
    parts = [f"{len(ours.counts):,} questions", f"{ours.document['responses']:,} responses"]
    if left_out := ours.document["left_out"]:
        parts.append(f"{left_out:,} questions left out with too few responses")
    return Output(
        name="evaluation",
        document=document,
        lines=lines,
        summary=", ".join([*parts, *ours.faults]),
        metrics={f"eval/{score.name}": score.value for score in found},
        **details,
    )


def _line(score: Score) -> str:
    errors = (_error(score.standard_error, score.interval), _error(score.sampling_error, score.sampling_interval))
    return f"{score.name:<14} {score.value:8.4f} {' '.join(f'{e:>15}' for e in errors)}"


def _error(error: float | None, interval: tuple[float, float] | None) -> str:
    if interval is not None:
        return f"{interval[0]:.3f} to {interval[1]:.3f}"
    return "-" if error is None else f"{error:.4f}"
