"""veRL: the step is ``training/global_step``, a batch of ``data.train_batch_size`` prompts."""

from __future__ import annotations

import re
from typing import Any

from .history import Run
from .settings import Settings

# MLflow refuses @, and veRL writes _at_ there. worst@k is only ever under val-aux.
METRIC = re.compile(r"^val-(?:core|aux)/(?P<source>.+)/(?P<kind>acc|reward|score)/(?P<what>mean|best|worst)"
                    r"(?:@|_at_)(?P<k>\d+)(?P<mean>/mean)?$")  # fmt: skip
BIASED = (
    "veRL resamples with replacement for best@k and worst@k, which is biased (one success in four logs best@4 = "
    "0.687, exactly 1): they are kept as best_at_k_biased and worst_at_k_biased"
)


def rows(run: Run, settings: Settings) -> tuple[list[dict[str, Any]], list[str]]:
    """Rows of ``evals``; ``acc`` goes before ``reward`` where both are logged."""
    n = settings.whole("rollouts_per_problem", "actor_rollout_ref.rollout.n")
    problems = settings.whole("problems_per_batch", "data.train_batch_size")
    mini = settings.whole("ppo_mini_batch_size", "actor_rollout_ref.actor.ppo_mini_batch_size", default=problems)
    epochs = settings.whole("ppo_epochs", "actor_rollout_ref.actor.ppo_epochs", default=1)
    common = settings.common(
        n=n, problems=problems, seed_keys=("data.seed", "actor_rollout_ref.actor.data_loader_seed")
    )
    updates = max(problems // mini, 1) * epochs
    found, notes = [], []
    rollouts = tokens = last = 0
    for step, metrics in run.rows:
        # Steps that were not logged generated as many as the others.
        new = (step - last) * problems * n
        evicted = metrics.get("training/filter_groups/evicted_samples", 0.0)
        rollouts += new + int(evicted)
        tokens += int((new + evicted) * metrics.get("response_length/mean", 0.0))
        last = step
        for source, scores in _scores(metrics).items():
            if any(name.endswith("_biased") for name in scores):
                notes.append(BIASED)
            samples = max((int(name.split("_")[2]) for name in scores if name.startswith("avg")), default=None)
            if samples is None:
                continue
            found.append(
                {**common, "step": step * updates, "rollouts": rollouts, "tokens": tokens,
                 "problem_set": source, "samples": samples, **scores}
            )  # fmt: skip
    if tokens == 0 and found:
        notes.append("response_length/mean is not logged: tokens are 0 and cannot be fitted in")
    return found, notes


def _scores(metrics: dict[str, float]) -> dict[str, dict[str, float]]:
    """Metric columns by data source."""
    by_source: dict[str, dict[str, float]] = {}
    for kind in ("score", "reward", "acc"):
        for name, value in metrics.items():
            match = METRIC.match(name)
            if match is None or match["kind"] != kind:
                continue
            column = {"mean": "avg", "best": "best", "worst": "worst"}[match["what"]] + f"_at_{match['k']}"
            if match["what"] != "mean":
                column += "_biased"
            by_source.setdefault(match["source"], {})[column] = value
    return by_source
