"""prime-rl: ``progress/rollouts`` is of one step, and an evaluation's step has not been taken yet."""

from __future__ import annotations

import re
from typing import Any

from ...errors import FrontierError
from .counting import Tally
from .run import Layout, Run
from .settings import Settings

METRIC = re.compile(r"^eval/(?P<env>.+?)(?:/(?P<subset>all|effective)(?P<agent>/[^/]+)?)?/"
                    r"(?P<what>avg@|pass@|pass\^)(?P<k>\d+)$")  # fmt: skip
COLUMNS = {"avg@": "avg", "pass@": "best", "pass^": "worst"}
ROLLOUTS = "progress/rollouts"
LAYOUT = Layout(steps=("step",), needed=re.compile(rf"{METRIC.pattern}|{ROLLOUTS}$"))


def rows(run: Run, settings: Settings) -> tuple[list[dict[str, Any]], list[str]]:
    """Rows of ``evals``; pass^k, all of k right, is the unbiased worst@k.

    An evaluation logged at step s began when the batches of the steps before s had been shipped.

    Args:
        run: The run's logs.
        settings: What its configuration and ``--set`` say.

    Returns:
        The rows, and notes on defaults used and on what is biased; both empty where the run has no evaluation.

    Raises:
        FrontierError: A setting that is needed is missing, or the batch is not a multiple of the group size.
    """
    scored = {step: scores for step, scores in ((s, _scores(metrics)) for s, metrics in run.rows) if scores}
    if not scored:
        return [], []
    n = _group_size(settings)
    batch = settings.whole("batch_rollouts", "batch_size", "orchestrator.batch_size")
    if batch % n:
        raise FrontierError(f"{run.name}: a batch of {batch} rollouts is not a multiple of {n} rollouts per example")
    common = settings.common(n=n, problems=batch // n, seed_keys=("seed", "orchestrator.seed"))
    tally, first = _counting(run, settings, min(scored))
    found, notes = [], set(settings.notes)
    tokens = 0.0
    for step, metrics in run.rows:
        if step > max(scored):
            break
        tally.advance(step - 1, None, 0.0)
        for env, (subset, scores) in scored.get(step, {}).items():
            if subset:
                notes.add(f"of each evaluation the {subset} rollouts are read")
            samples = max(int(name.split("_")[2]) for name in scores)
            found.append(
                {**common, "step": step - first, "rollouts": tally.rollouts, "tokens": int(tokens),
                 "problem_set": env, "samples": samples, **scores}
            )  # fmt: skip
        if ROLLOUTS in metrics:
            tally.advance(step, int(metrics[ROLLOUTS]), 0.0)
            tokens += metrics.get("progress/tokens", 0.0)
    notes.add(f"{ROLLOUTS} counts what came back: rollouts cancelled on their way are not in it")
    notes.add("tokens are progress/tokens, which counts prompts too")
    return found, sorted(notes)


def _counting(run: Run, settings: Settings, evaluated: int) -> tuple[Tally, int]:
    """The run's count, and its first step: 0 before prime-rl 0.7, then 1.

    A batch takes what trains; groups whose rewards are all equal are discarded and replaced, so that more is
    generated than the batch holds.
    """
    logged = {key for _, metrics in run.rows for key in metrics}
    reason_unknown = f"its log holds no {ROLLOUTS}, which counts discarded groups too, where the batch does not"
    if ROLLOUTS not in logged and "progress/samples" in logged:
        reason_unknown = (
            f"progress/samples counts what was trained on, and {ROLLOUTS} (since prime-rl 0.7) is not logged"
        )
    trained = [step for step, metrics in run.rows if ROLLOUTS in metrics or "progress/samples" in metrics]
    first = min([evaluated, *trained, 1])
    per_step = settings.optional("rollouts_per_step")
    return Tally(where=run.name, per_step=per_step, reason_unknown=reason_unknown, step=first - 1), first


def _group_size(settings: Settings) -> int:
    """Rollouts per example: of the sources where they have their own, else of the orchestrator.

    Raises:
        FrontierError: The sources differ, or nothing says it.
    """
    names = ("group_size", "rollouts_per_example")
    keys = [f"{place}{name}" for place in ("", "orchestrator.", "train.", "orchestrator.train.") for name in names]
    own = settings.matching(rf"(?:orchestrator\.)?train\.(?:source|env)\.\d+\.(?:{'|'.join(names)})")
    if own and not settings.is_given("rollouts_per_problem"):
        sizes = sorted({int(size) for size in own.values()})
        if len(sizes) > 1:
            raise FrontierError(
                f"{settings.where}: its sources have the group sizes {', '.join(map(str, sizes))}: a run of several n "
                "is not one point of a curve; name one with --set rollouts_per_problem=NUMBER if it stands for all"
            )
        return sizes[0]
    return settings.whole("rollouts_per_problem", *keys)


def _scores(metrics: dict[str, float]) -> dict[str, tuple[str, dict[str, float]]]:
    """Metric columns by environment, and the subset they are of: the clean rollouts where there are two."""
    found: dict[str, dict[str, dict[str, float]]] = {}
    for name, value in metrics.items():
        match = METRIC.match(name)
        if match:
            env, subset = match["env"] + (match["agent"] or ""), match["subset"] or ""
            found.setdefault(env, {}).setdefault(subset, {})[f"{COLUMNS[match['what']]}_at_{match['k']}"] = value
    best = {env: max(subsets, key=["", "all", "effective"].index) for env, subsets in found.items()}
    return {env: (subset, found[env][subset]) for env, subset in best.items()}
