"""OpenRLHF: ``train/global_step`` counts rollout batches."""

from __future__ import annotations

import re
from typing import Any

from .history import Run
from .settings import Settings

METRIC = re.compile(r"^eval/(?:eval_)?(?P<set>.+)_pass(?:@)?(?P<k>\d+)$")


def rows(run: Run, settings: Settings) -> tuple[list[dict[str, Any]], list[str]]:
    """Rows of ``evals``: pass1 is the mean over the evaluation's samples, pass-k its best of k.

    With dynamic filtering a batch of B_p·n was chosen from B_p·n divided by the pass rate.
    """
    n = settings.whole("rollouts_per_problem", "rollout.n_samples_per_prompt", "n_samples_per_prompt")
    problems = settings.whole("problems_per_batch", "rollout.batch_size", "rollout_batch_size")
    train = settings.whole("train_batch_size", "train.batch_size", "train_batch_size", default=problems * n)
    epochs = settings.whole("max_epochs", "train.max_epochs", "max_epochs", default=1)
    samples = settings.whole("samples", "eval.n_samples_per_prompt", "eval_n_samples_per_prompt",
                             meaning="responses to each validation problem")  # fmt: skip
    common = settings.common(n=n, problems=problems, seed_keys=("train.seed", "seed"))
    updates = max(problems * n // train, 1) * epochs
    found, notes = [], []
    rollouts = tokens = 0.0
    last = 0
    for step, metrics in run.rows:
        rate = metrics.get("train/dynamic_filtering_pass_rate", 1.0)
        # The rate is logged in percent by some versions.
        rate = rate / 100 if rate > 1 else rate
        new = (step - last) * problems * n / (rate if rate > 0 else 1.0)
        if rate < 1:
            notes.append("rollouts count what dynamic filtering threw away: B_p·n over the pass rate")
        rollouts += new
        tokens += new * metrics.get("train/response_length", 0.0)
        last = step
        for source, scores in _scores(metrics, samples).items():
            found.append(
                {**common, "step": step * updates, "rollouts": round(rollouts), "tokens": int(tokens),
                 "problem_set": source, "samples": samples, **scores}
            )  # fmt: skip
    if tokens == 0 and found:
        notes.append("train/response_length is not logged: tokens are 0 and cannot be fitted in")
    return found, sorted(set(notes))


def _scores(metrics: dict[str, float], samples: int) -> dict[str, dict[str, float]]:
    by_set: dict[str, dict[str, float]] = {}
    for name, value in metrics.items():
        match = METRIC.match(name)
        if match:
            k = int(match["k"])
            column = f"avg_at_{samples}" if k == 1 else f"best_at_{k}"
            by_set.setdefault(match["set"], {})[column] = value
    return {name: scores for name, scores in by_set.items() if f"avg_at_{samples}" in scores}
