"""OpenRLHF: ``rollout.batch_size`` counts prompts and ``train.batch_size`` counts samples.

Read in ``openrlhf/cli/train_ppo_ray.py`` and ``openrlhf/trainer`` of 0.11.2: a rollout batch gets ``rollout.batch_size
× rollout.n_samples_per_prompt // train.batch_size`` optimizer steps, times ``train.max_epochs``. No setting gives the
number of steps: a run ends with its last episode, so M follows from ``data.max_samples`` (prompts) and
``train.num_episodes``. An episode's last batch may be incomplete, and is trained on. The data-parallel ranks are the
devices over ``ds.tensor_parallel_size`` × ``ds.ring_attn_size``. The reference model has its own devices, 8 by default;
colocation needs as many as the actor has. Releases before 0.10 spell the flags only with underscores.

``train/global_step`` counts rollout batches. An episode's last batch may hold fewer prompts: with a pass rate of 60 %,
it may have been 12 of 20, or 3 of 5. Up to 0.9.8, ``train/dynamic_filtering_pass_rate`` is the percentage of prompts
(or of responses, which is the same) that passed. Since 0.9.9, it is the number of responses that passed per 100
prompts, so n times as large. Up to 0.11, an episode that ends while a filtered prompt waits for its replacement drops
the whole batch, and logs nothing of it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import pairwise

from ..errors import BudgetError
from .counting import LARGEST_COUNT, Counting, LoggedEvaluation, Score, Spread, lengths, note_no_tokens
from .logs.log import Log, LogLayout
from .settings import Batching, Configuration, RunPlan, Settings, exact_quotient, product
from .trainer import LogReader, Trainer

METRIC = re.compile(r"^eval/(?:eval_)?(?P<set>.+)_pass(?:@)?(?P<k>\d+)$")
RATE = "train/dynamic_filtering_pass_rate"
LENGTH = "train/response_length"
RESPONSES = "eval/eval_num_samples"


def _write(run: RunPlan) -> Configuration:
    a = run.allocation
    needed = a.problems_per_batch * a.update_steps
    episodes, samples = 1, needed
    if run.problems is not None and run.problems < needed:
        batches = run.problems // a.problems_per_batch
        if a.update_steps % batches:
            below = a.update_steps // batches * batches
            raise BudgetError(
                f"OpenRLHF ends with an episode, and {run.problems:,} problems make one of {batches:,} batches, not "
                f"{a.update_steps:,} steps; {below:,} or {below + batches:,} would do"
            )
        episodes, samples = a.update_steps // batches, batches * a.problems_per_batch
    nodes, per_node = run.nodes
    notes = ["rollout.batch_size counts prompts, train.batch_size counts samples"]
    if run.problems is None:
        notes.append(f"the prompt set must hold {samples:,} prompts or the run ends early; give --problems D if fewer")
    elif episodes > 1 and samples < run.problems:
        notes.append(f"{run.problems - samples:,} of {run.problems:,} problems are left out, so that batches are whole")
    tensor, context = run.parallelism.tensor, run.parallelism.context
    if context > 1:
        notes.append("ring attention turns on ds.packing_samples, which needs vllm.num_engines")
    return Configuration(
        settings={
            "rollout.batch_size": a.problems_per_batch,
            "rollout.n_samples_per_prompt": a.rollouts_per_problem,
            "train.batch_size": a.batch_rollouts,
            "train.max_epochs": 1,
            "train.micro_batch_size": run.pass_rollouts,
            "rollout.micro_batch_size": run.pass_rollouts,
            "data.max_samples": samples,
            "train.num_episodes": episodes,
            "actor.num_nodes": nodes,
            "actor.num_gpus_per_node": per_node,
            "ref.num_nodes": nodes,
            "ref.num_gpus_per_node": per_node,
            "ds.tensor_parallel_size": tensor if tensor > 1 else None,
            "ds.ring_attn_size": context if context > 1 else None,
            "actor.adam.lr": run.learning_rate,
        },
        notes=tuple(notes),
    )


def _parse(settings: Settings) -> Batching:
    problems = settings.whole("rollout.batch_size", "rollout_batch_size", default=1024)
    n = settings.whole("rollout.n_samples_per_prompt", "n_samples_per_prompt", default=1)
    batch = settings.whole("train.batch_size", "train_batch_size", default=128)
    passes = settings.whole("train.max_epochs", "max_epochs") or 1
    episodes = settings.whole("train.num_episodes", "num_episodes", default=1)
    nodes = settings.whole("actor.num_nodes", "actor_num_nodes", default=1)
    world = product(nodes, settings.whole("actor.num_gpus_per_node", "actor_num_gpus_per_node", default=8))
    generated = product(problems, n)
    parts = exact_quotient(generated, batch)
    if generated and batch and parts is None:
        settings.inconsistent.append(
            f"train.batch_size counts samples: the {generated:,} of a rollout batch ({problems:,} prompts × {n:,}) "
            f"are not a multiple of {batch:,}, and what is left over is not trained on"
        )
    ranks = settings.ranks(
        world,
        tensor=("ds.tensor_parallel_size", "ds_tensor_parallel_size"),
        context=("ds.ring_attn_size", "ring_attn_size"),
    )
    settings.check_divides(batch, ranks, "train.batch_size")
    samples = settings.whole("data.max_samples", "max_samples")
    if samples and settings.problems:
        samples = min(samples, settings.problems)
    prompts = samples or settings.problems
    steps = None
    if prompts is None:
        settings.note_epochs("train.num_episodes")
    elif problems and episodes:
        if settings.problems is None:
            settings.notes.append(f"the prompt set is assumed to hold data.max_samples = {prompts:,} prompts")
        if prompts % problems:
            settings.inconsistent.append(
                f"{prompts:,} prompts end an episode with a batch of {prompts % problems:,} of {problems:,}, which is "
                f"not counted here; data.max_samples {prompts // problems * problems:,} would leave it out"
            )
        steps = prompts // problems * episodes
    if settings.is_on("algo.dynamic_filtering_enable", "dynamic_filtering"):
        settings.note_more("dynamic filtering")
    if settings.is_on("train.async_enable", "async_train"):
        settings.notes.append("asynchronous training generates ahead of the steps it takes")
    return settings.batching(
        problems_generated=problems,
        rollouts_per_problem=n,
        generations=steps,
        updates=parts * passes if parts else None,
        passes=passes,
    )


def evaluations(log: Log, settings: Settings, batching: Batching) -> list[LoggedEvaluation]:
    """The evaluations of a run: pass1 is the mean over the evaluation's samples, pass-k their best of k."""
    evaluated = {step for step, metrics in log.rows if any(METRIC.match(name) for name in metrics)}
    if not evaluated:
        return []
    samples = settings.required("eval.n_samples_per_prompt", "eval_n_samples_per_prompt")
    scores = {step: _scores(metrics, samples) for step, metrics in log.rows if step in evaluated}
    evals = _counting(log, settings).evaluations(scores)
    note_no_tokens(log, settings, evals, LENGTH)
    return evals


def _counting(log: Log, settings: Settings) -> Counting:
    """The run's count."""
    n = settings.required("rollout.n_samples_per_prompt", "n_samples_per_prompt")
    problems = settings.required("rollout.batch_size", "rollout_batch_size")
    train = settings.required("train.batch_size", "train_batch_size")
    epochs = settings.required("train.max_epochs", "max_epochs", default=1)
    per_step, reason_unknown, share = _unlogged(log, settings, n, problems)
    episode = None
    logged: Mapping[int, tuple[int | None, int]] = {}
    if settings.problems is None:
        settings.notes.append("an episode's last batch may hold fewer prompts; give --set problems=NUMBER to count it")
    if share is not None:
        dropped = "" if settings.problems else "; a batch that an episode's end dropped (up to 0.11) is not logged"
        settings.notes.append(f"rollouts count what dynamic filtering threw away, from {RATE}{dropped}")
        logged = _taken(log, settings.problems, n, problems, share)
    elif settings.problems is None:
        logged = _short(log, settings, (problems - 1) * n)
    elif settings.problems % problems:
        episode = -(-settings.problems // problems), (problems - settings.problems % problems) * n
    return Counting(
        log=log,
        per_step=per_step,
        reason_unknown=reason_unknown,
        episode=episode,
        updates=max(problems * n // train, 1) * epochs,
        batch=problems * n,
        lengths=lengths(log, LENGTH),
        own=lambda _, step, __: logged.get(step, (None, 0)),
        trains=lambda metrics: any(key.startswith("train/") and key != "train/global_step" for key in metrics),
    )


def _short(log: Log, settings: Settings, most: int) -> dict[int, tuple[int | None, int]]:
    """Possible error, in rollouts, of steps that may end an episode, if the number of prompts is unknown."""
    steps = sorted({step for step, _ in log.rows if step})
    episodes = settings.whole("train.num_episodes", "num_episodes") or 1
    length = -(-steps[-1] // episodes) if steps else 1
    ends = [(step, step // length - before // length) for before, step in pairwise([0, *steps])]
    return {step: (None, ended * most) for step, ended in ends if ended}


def _taken(log: Log, whole: int | None, n: int, batch: int, share: float) -> dict[int, tuple[int | None, int]]:
    """Rollouts of each step from its pass rate (``share`` if every prompt passes), and their possible error."""
    counts: dict[int, tuple[int | None, int]] = {}
    left = whole
    for step, metrics in log.rows:
        if metrics.get(RATE, 0.0) <= 0:
            continue
        passed = metrics[RATE] / share
        # The prompts taken are those that passed the filter over the share that passed.
        likely = batch / passed
        if not likely < LARGEST_COUNT:
            raise BudgetError(f"{log.name}: {RATE} is {metrics[RATE]:g} at step {step}, which is impossible")
        fitting = [
            round(k / passed) for k in range(1, batch) if abs(k / passed - round(k / passed)) < 1e-4 * k / passed
        ]
        full = abs(likely - round(likely)) < 1e-4 * likely
        if full and (left is None or likely <= left):
            few = many = round(likely)
        elif left in fitting:
            few = many = left
        elif full and left is not None and whole is not None and likely <= whole:
            # All remaining prompts were sampled, perhaps not to the end, and dropped with the batch that they did not
            # fill.
            counts[step] = (round(likely) + left) * n, (left - 1) * n
            left = whole - round(likely) or whole
            continue
        else:
            few, many = (min(fitting), max(fitting)) if fitting else (int(likely), int(likely) + 1)
        left = None if left is None or whole is None or few != many or many > left else (left - many) or whole
        middle = (few + many) // 2
        counts[step] = middle * n, (many - middle) * n
    return counts


def _unlogged(log: Log, settings: Settings, n: int, problems: int) -> tuple[int | None, str, float | None]:
    """Rollouts of a step, why they are unknown, and the pass rate if every prompt passes, if one is logged."""
    rates = [metrics[RATE] for _, metrics in log.rows if RATE in metrics]
    at_once = settings.whole("rollout.vllm_generate_batch_size", "vllm_generate_batch_size") or problems
    given = settings.whole("rollouts_per_step")
    share = None
    reason_unknown = ""
    if at_once != problems:
        reason_unknown = f"{at_once} prompts are generated at once for batches of {problems}, ahead of the steps"
    elif rates:
        reason_unknown = f"dynamic filtering logs it as {RATE}"
        share = 100.0 * (n if _is_of_responses(settings, rates, n) else 1)
    elif settings.required_switch("algo.dynamic_filtering_enable", "dynamic_filtering"):
        reason_unknown = f"prompts were filtered and replaced, and {RATE} is not logged"
    return given or (None if reason_unknown else problems * n), reason_unknown, share


def _is_of_responses(settings: Settings, rates: list[float], n: int) -> bool:
    """Return whether the pass rate counts responses per prompt."""
    said = settings.text("pass_rate_of")
    if said not in {"", "prompts", "responses"}:
        raise BudgetError(f"{settings.where}: pass_rate_of is {said!r}; it must be prompts or responses")
    if said == "prompts" and max(rates) > 100:
        raise BudgetError(f"{settings.where}: {RATE} is {max(rates):g}, which is not a percentage of prompts")
    # Dotted options came with OpenRLHF 0.11.
    if said or n == 1 or max(rates) > 100 or settings.matching(r"(?:rollout|algo)\..*"):
        return said != "prompts"
    raise BudgetError(
        f"{settings.where}: {RATE} is of prompts up to OpenRLHF 0.9.8 and of their {n} responses since 0.9.9, and the "
        "log does not say which: --set pass_rate_of=prompts or --set pass_rate_of=responses"
    )


def _scores(metrics: Mapping[str, float], samples: int) -> dict[str, Score]:
    by_set: dict[str, dict[str, float]] = {}
    for name, value in metrics.items():
        if match := METRIC.match(name):
            k = int(match["k"])
            by_set.setdefault(match["set"], {})[f"avg_at_{samples}" if k == 1 else f"best_at_{k}"] = value
    by_set = {name: scores for name, scores in by_set.items() if f"avg_at_{samples}" in scores}
    # Since 0.11 it covers all sets together.
    responses = metrics.get(RESPONSES, 0.0) if len(by_set) == 1 else 0.0
    return {
        name: Score(
            samples=samples,
            scores=scores,
            metric=f"eval/eval_{name}_pass1",
            spread=Spread(size=samples),
            questions=exact_quotient(int(responses), samples),
        )
        for name, scores in by_set.items()
    }


OPENRLHF = Trainer(
    name="openrlhf",
    title="OpenRLHF",
    style="dashes",
    write=_write,
    parse=_parse,
    logs=LogReader(
        layout=LogLayout(
            # In W&B, evaluations are separate rows with their own step.
            steps=("train/global_step", "eval/global_step", "global_step", "step"),
            needed=re.compile(rf"{METRIC.pattern}|{RATE}$|{LENGTH}$"),
        ),
        marks=re.compile(rf"{METRIC.pattern}|{RATE}$|{LENGTH}$"),
        seeds=("train.seed",),
        learning_rates=("actor.adam.lr", "actor_learning_rate"),
        evaluations=evaluations,
        progress=lambda log, settings, _: _counting(log, settings).progress(),
        understands=("rollouts_per_step", "pass_rate_of"),
    ),
    parallelism=("tensor", "context"),
)
