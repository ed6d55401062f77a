"""prime-rl: ``progress/rollouts`` is of one step, and ``progress/total_…`` leaves the current step out."""

from __future__ import annotations

import re
from typing import Any

from ..errors import FrontierError
from .history import Run
from .settings import Settings

METRIC = re.compile(r"^(?:eval/)?(?P<env>.+?)/(?P<what>avg@|pass@|pass\^)(?P<k>\d+)$")
COLUMNS = {"avg@": "avg", "pass@": "best", "pass^": "worst"}


def rows(run: Run, settings: Settings) -> tuple[list[dict[str, Any]], list[str]]:
    """Rows of ``evals``; pass^k, all of k right, is the unbiased worst@k."""
    n = settings.whole("rollouts_per_problem", "rollouts_per_example", "orchestrator.rollouts_per_example")
    batch = settings.whole("batch_rollouts", "batch_size", "orchestrator.batch_size",
                           meaning="rollouts in a step")  # fmt: skip
    if batch % n:
        raise FrontierError(f"{run.name}: a batch of {batch} rollouts is no multiple of {n} rollouts per example")
    common = settings.common(n=n, problems=batch // n, seed_keys=("seed", "orchestrator.seed"))
    found, notes = [], []
    rollouts = tokens = 0.0
    last = 0
    for step, metrics in run.rows:
        missed = max(step - last - 1, 0)
        own = metrics.get("progress/rollouts")
        if step > last:
            rollouts += missed * batch + (batch if own is None else own)
            tokens += metrics.get("progress/tokens", 0.0)
            if missed or own is None:
                notes.append("steps without progress/rollouts are counted as full batches")
            last = step
        by_env: dict[str, dict[str, float]] = {}
        for name, value in metrics.items():
            match = METRIC.match(name)
            if match:
                by_env.setdefault(match["env"], {})[f"{COLUMNS[match['what']]}_at_{match['k']}"] = value
        for env, scores in by_env.items():
            samples = max(int(name.split("_")[2]) for name in scores)
            found.append(
                {**common, "step": step, "rollouts": int(rollouts), "tokens": int(tokens), "problem_set": env,
                 "samples": samples, **scores}
            )  # fmt: skip
    if found:
        notes.append("tokens are progress/tokens, which counts prompts too")
    return found, sorted(set(notes))
