"""``generate``, ``difficulty`` and ``score``: answer problems, measure their pass rates, score again."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Iterable, Sequence
from typing import Any

import polars as pl

from ..errors import RolloutError
from ..samplers.local import load_tokenizer
from ..scoring.evaluation import with_pass_rates, without_unusable
from ..scoring.rules import metadata_of
from ..scoring.sandbox.process import scoring_from
from ..scoring.scorer import Item, Verdict
from .output import ROLLOUT_FILES, SOURCE, Output, add_flags, check, deliver, faults, read, rewarded
from .run import begin, place_shard
from .settings import add_sampling, add_scoring, pairs, refuse_unused, scorer_of

PHASES = ("difficulty", "baseline", "eval")
BATCH = 1024
"""Responses submitted to the scorer at a time."""


class _SandboxReport(argparse.Action):
    """Prints which layers of the sandbox this machine has, and exits."""

    def __call__(self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, *_: Any, **__: Any) -> None:
        from ..scoring.sandbox.process import report

        try:
            lines = report(scoring_from(pairs(namespace.scoring, flag="--scoring")))
        except RolloutError as error:
            parser.error(str(error))
        for line in lines:
            print(line)
        parser.exit()


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the commands."""
    generate = commands.add_parser(
        "generate",
        help="answer problems with a model",
        description="Answer problems with a model. Killed and started again with the same arguments, it asks only for "
        "the groups that it had not finished.",
        epilog="example: isocompute-rollout generate --problems problems.parquet --model Qwen/Qwen2.5-0.5B "
        "--samples 8 --out rollouts.parquet",
    )
    generate.add_argument("--problems", required=True, help=SOURCE)
    generate.add_argument(
        "--phase",
        default="difficulty",
        choices=PHASES,
        help="what the responses are for: to select problems (difficulty, the default), to measure those selected "
        "(baseline) or to evaluate; each has seeds of its own",
    )
    add_sampling(generate, required=True, samples=16, shards=True)
    add_flags(generate, out="the .parquet file to write")
    generate.set_defaults(run=run_generate, files=ROLLOUT_FILES)
    difficulty = commands.add_parser(
        "difficulty",
        help="measure pass rates of problems",
        description="Measure pass rates of problems with --model, or count them in ROLLOUTS. Killed and started again "
        "with the same arguments, measuring continues where it stopped.",
        epilog="example: isocompute-rollout difficulty --problems problems.parquet --model Qwen/Qwen2.5-0.5B "
        "--out measured.parquet",
    )
    difficulty.add_argument("rollouts", nargs="?", help=f"responses sampled earlier: {SOURCE}")
    difficulty.add_argument("--problems", required=True, help=SOURCE)
    difficulty.add_argument(
        "--fresh",
        action="store_true",
        help="measure problems that earlier responses selected, with seeds of their own: add fresh pass rates",
    )
    add_sampling(difficulty, required=False, samples=16, shards=True)
    add_flags(difficulty)
    difficulty.set_defaults(run=run_difficulty)
    score = commands.add_parser(
        "score",
        help="verify rollouts again",
        description="Verify rollouts again. The rewards written are those of the verifiers, without a length penalty.",
        epilog="example: isocompute-rollout score rollouts.parquet --problems problems.parquet --model "
        "Qwen/Qwen2.5-0.5B --out scored.parquet",
    )
    score.add_argument("rollouts", help=SOURCE)
    score.add_argument("--problems", required=True, help=SOURCE)
    score.add_argument(
        "--model", help="the model whose tokenizer decodes the responses, unless the rollouts have the column text"
    )
    score.add_argument(
        "--sandbox-report",
        action=_SandboxReport,
        nargs=0,
        help="only say which layers of the sandbox this machine has, with the --scoring that stands before it",
    )
    add_scoring(score)
    add_flags(score, out="the .parquet file to write")
    score.set_defaults(run=run_score, files=ROLLOUT_FILES)


def run_generate(arguments: argparse.Namespace) -> Iterable[str]:
    """Make the rollouts and report their number and mean reward."""
    place_shard(arguments, "rollouts")
    check(arguments)
    problems = read(arguments.problems, "problems")
    with begin(arguments, problems=problems, phase=arguments.phase, reusable=True) as sampling:
        rollouts = sampling.rollouts()
        output = rewarded(
            rollouts,
            sources={"problems": problems},
            params=sampling.params,
            store=sampling.finished(rollouts),
            dropped=sampling.dropped,
        )
        yield from deliver(arguments, output)


def run_difficulty(arguments: argparse.Namespace) -> Iterable[str]:
    """Measure the problems and report their mean pass rate."""
    if (arguments.rollouts is None) == (arguments.model is None):
        raise RolloutError("difficulty needs either rollouts to count in or --model to measure with")
    if arguments.model is None:
        refuse_unused(arguments)
    else:
        place_shard(arguments, "problems")
    check(arguments)
    problems = read(arguments.problems, "problems")
    sources, params, kept = {"problems": problems}, {"fresh": arguments.fresh}, dict[str, Any]()
    with contextlib.ExitStack() as stack:
        if arguments.model is None:
            sources["rollouts"] = read(arguments.rollouts, "rollouts")
            wanted, rollouts = problems.table, sources["rollouts"].table
        else:
            phase = "baseline" if arguments.fresh else "difficulty"
            sampling = stack.enter_context(begin(arguments, problems=problems, phase=phase))
            wanted, rollouts = sampling.problems, sampling.rollouts()
            params |= sampling.params
            kept = {"store": sampling.finished(rollouts), "dropped": sampling.dropped}
        measured = with_pass_rates(wanted, rollouts, fresh=arguments.fresh)
        if measured.is_empty() and arguments.model is None:
            raise RolloutError(f"{arguments.rollouts}: answers none of the problems of {arguments.problems}")
        if measured.is_empty():
            raise RolloutError(f"all {len(rollouts):,} responses were aborted: nothing was measured")
        name = "fresh_pass_rate" if arguments.fresh else "pass_rate"
        mean = float(measured[name].to_numpy().mean())
        parts = [f"{len(measured):,} problems", f"mean {name.replace('_', ' ')} {mean:.3f}", *faults(rollouts)]
        summary = ", ".join(parts)
        if len(measured) < len(wanted):
            summary = f"{len(wanted) - len(measured):,} problems have no responses; {summary}"
        output = Output(
            name="problems",
            table=measured,
            summary=summary,
            metrics={f"mean_{name}": mean},
            sources=sources,
            params=params,
            besides=[] if arguments.rollouts_out is None else [("rollouts", rollouts, arguments.rollouts_out)],
            **kept,
        )
        yield from deliver(arguments, output)


def run_score(arguments: argparse.Namespace) -> Iterable[str]:
    """Score the rollouts and report their mean reward."""
    check(arguments)
    given, questions = read(arguments.rollouts, "rollouts"), read(arguments.problems, "problems")
    rollouts, scorer = given.table, scorer_of(arguments)
    answered_problems = questions.table.join(rollouts, on="problem_id", how="semi")
    problems, dropped = without_unusable(answered_problems, scorer)
    rollouts = rollouts.join(dropped, on="problem_id", how="anti", maintain_order="left")
    metadata = pl.Series(metadata_of(problems), dtype=pl.String)
    joined = rollouts.join(
        problems.select("problem_id", "answer", "verifier", metadata=metadata),
        on="problem_id",
        how="left",
        maintain_order="left",
    )
    unknown = joined.filter(pl.col("verifier").is_null())["problem_id"].unique().sort()
    if len(unknown):
        raise RolloutError(f"{arguments.problems}: lacks {len(unknown)} problems answered, such as {unknown[0]}")
    texts = _texts(rollouts, arguments)
    answered = (rollouts["finish_reason"] != "aborted").to_list()
    columns = (joined[name].to_list() for name in ("answer", "verifier", "metadata"))
    items = [
        Item(verifier=rule, response=text, answer=answer, metadata=note)
        for right, text, answer, rule, note in zip(answered, texts, *columns, strict=True)
        if right
    ]
    scorer.check(item.verifier for item in items)
    batches = [scorer.submit(items[start : start + BATCH]) for start in range(0, len(items), BATCH)]
    verdicts = iter([verdict for batch in batches for verdict in batch.result()])
    all_verdicts = [next(verdicts) if right else Verdict(reward=0.0) for right in answered]
    scored = rollouts.with_columns(
        reward=pl.Series([v.reward for v in all_verdicts], dtype=pl.Float32),
        score_error=pl.Series([v.error for v in all_verdicts], dtype=pl.String),
    )
    changed = int((scored["reward"] != rollouts["reward"]).sum())
    sources, lines = {"rollouts": given, "problems": questions}, [f"{changed:,} rewards changed"]
    yield from deliver(arguments, rewarded(scored, sources=sources, lines=lines, dropped=dropped))


def _texts(rollouts: pl.DataFrame, arguments: argparse.Namespace) -> list[str]:
    """Return the responses' texts from the table, or decode them from the tokens."""
    texts: Sequence[str | None] = [None] * len(rollouts)
    if "text" in rollouts.columns:
        texts = rollouts["text"].to_list()
    if None not in texts:
        return [text or "" for text in texts]
    if arguments.model is None:
        raise RolloutError(f"{arguments.rollouts}: not every response has its text; --model must name its tokenizer")
    tokenizer = load_tokenizer(arguments.model)
    decoded = tokenizer.batch_decode(rollouts["response_ids"].to_list(), skip_special_tokens=True)
    return [tokens if text is None else text for text, tokens in zip(texts, decoded, strict=True)]
