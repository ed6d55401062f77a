"""OpenRLHF: ``train/global_step`` counts rollout batches."""

from __future__ import annotations

import re
from typing import Any

from ...errors import FrontierError
from .counting import Tally, lengths
from .run import Layout, Run
from .settings import Settings

METRIC = re.compile(r"^eval/(?:eval_)?(?P<set>.+)_pass(?:@)?(?P<k>\d+)$")
RATE = "train/dynamic_filtering_pass_rate"
LENGTH = "train/response_length"
LAYOUT = Layout(
    # Evaluations are rows of their own in W&B, with a step of their own.
    steps=("train/global_step", "eval/global_step", "global_step", "step"),
    needed=re.compile(rf"{METRIC.pattern}|{RATE}$|{LENGTH}$"),
)


def rows(run: Run, settings: Settings) -> tuple[list[dict[str, Any]], list[str]]:
    """Rows of ``evals``: pass1 is the mean over the evaluation's samples, pass-k its best of k.

    Args:
        run: The run's logs.
        settings: What its configuration and ``--set`` say.

    Returns:
        The rows, and notes on defaults used and on what is biased; both empty where the run has no evaluation.

    Raises:
        FrontierError: A setting that is needed is missing, or a count or a metric in the logs is impossible.
    """
    evaluated = {step for step, metrics in run.rows if any(METRIC.match(name) for name in metrics)}
    if not evaluated:
        return [], []
    n = settings.whole("rollouts_per_problem", "rollout.n_samples_per_prompt", "n_samples_per_prompt")
    problems = settings.whole("problems_per_batch", "rollout.batch_size", "rollout_batch_size")
    train = settings.whole("train_batch_size", "train.batch_size", "train_batch_size")
    epochs = settings.whole("max_epochs", "train.max_epochs", "max_epochs", default=1)
    samples = settings.whole("samples", "eval.n_samples_per_prompt", "eval_n_samples_per_prompt")
    common = settings.common(n=n, problems=problems, seed_keys=("train.seed", "seed"))
    updates = max(problems * n // train, 1) * epochs
    tally, share = _counting(run, settings, n, problems)
    found, notes = [], set(settings.notes)
    for (step, metrics), length in zip(run.rows, lengths(run, LENGTH), strict=True):
        if step > max(evaluated):
            break
        own = None
        if share is not None and metrics.get(RATE, 0.0) > 0:
            # As many prompts were taken as passed the filter, over the share of them that did.
            own = round(problems * share / metrics[RATE]) * n
            notes.add(f"rollouts count what dynamic filtering threw away, from {RATE}")
        tally.advance(step, own, length)
        for source, scores in _scores(metrics, samples).items():
            found.append(tally.row(common, step=step * updates, problem_set=source, samples=samples, scores=scores))
    if tally.tokens == 0 and found:
        notes.add(f"{LENGTH} is not logged: tokens are 0 and cannot be the unit of a fit")
    return found, sorted(notes)


def _counting(run: Run, settings: Settings, n: int, problems: int) -> tuple[Tally, float | None]:
    """The run's count, and what its pass rate is where every prompt passes; None where no rate is logged.

    Up to OpenRLHF 0.9.8 the rate is the percentage of prompts (or of responses, alike) that passed; since 0.9.9 it is
    the responses that passed per 100 prompts, so n times as large.
    """
    rates = [metrics[RATE] for _, metrics in run.rows if RATE in metrics]
    at_once = settings.optional("vllm_generate_batch_size", "rollout.vllm_generate_batch_size",
                                "vllm_generate_batch_size") or problems  # fmt: skip
    given = settings.optional("rollouts_per_step")
    share = None
    reason_unknown = ""
    if at_once != problems:
        reason_unknown = f"{at_once} prompts are generated at once for batches of {problems}, ahead of the steps"
    elif rates:
        reason_unknown = f"dynamic filtering logs it as {RATE}"
        share = 100.0 * (n if _is_of_responses(settings, rates, n) else 1)
    elif settings.flag("dynamic_filtering", "algo.dynamic_filtering_enable", "dynamic_filtering"):
        reason_unknown = f"prompts were filtered and replaced, and {RATE} is not logged"
    per_step = given or (None if reason_unknown else problems * n)
    return Tally(where=run.name, per_step=per_step, reason_unknown=reason_unknown), share


def _is_of_responses(settings: Settings, rates: list[float], n: int) -> bool:
    """Whether the pass rate counts responses per prompt.

    Raises:
        FrontierError: Neither the log nor the configuration says.
    """
    said = settings.text("pass_rate_of")
    if said not in {"", "prompts", "responses"}:
        raise FrontierError(f"{settings.where}: pass_rate_of is {said!r}; it must be prompts or responses")
    if said == "prompts" and max(rates) > 100:
        raise FrontierError(f"{settings.where}: {RATE} is {max(rates):g}, which is not a percentage of prompts")
    # Dotted options came with OpenRLHF 0.11.
    if said or n == 1 or max(rates) > 100 or settings.matching(r"(?:rollout|algo)\..*"):
        return said != "prompts"
    raise FrontierError(
        f"{settings.where}: {RATE} is a percentage of prompts up to OpenRLHF 0.9.8 and counts the {n} responses of "
        "each prompt since 0.9.9, and the log does not say which: --set pass_rate_of=prompts for the former, --set "
        "pass_rate_of=responses for the latter"
    )


def _scores(metrics: dict[str, float], samples: int) -> dict[str, dict[str, float]]:
    by_set: dict[str, dict[str, float]] = {}
    for name, value in metrics.items():
        match = METRIC.match(name)
        if match:
            k = int(match["k"])
            column = f"avg_at_{samples}" if k == 1 else f"best_at_{k}"
            by_set.setdefault(match["set"], {})[column] = value
    return {name: scores for name, scores in by_set.items() if f"avg_at_{samples}" in scores}
