"""Where each value of the preset ``paper`` comes from in *IsoCompute Playbook* (arXiv 2603.12151).

``ours`` is what the paper does not state. Sections are those of the paper; the text read is its authors' web version,
whose appendices are numbered otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

OURS = "ours: not stated in the paper"
SECTIONS: dict[str, str] = {
    "problems.kind": "section 3, Factor 1: Guru-Math",
    "problems.dataset": "section 3, Factor 1: Guru-Math; its place on the hub is inferred",
    "problems.revision": "ours: a public commit that holds this file; the paper names none",
    "problems.files": "section 3, Factor 1: Guru-Math; the file is inferred",
    "problems.split": "layout of the dataset",
    "problems.prompt": "layout of the dataset",
    "problems.answer": "layout of the dataset",
    "problems.verifier": "section 2: binary reward of the final answer; the verifier is ours",
    "problems.train": "ours: candidates that the sets of section 3 are cut from",
    "problems.validation": "ours: candidates that the sets of section 3 are cut from",
    "problems.seed": OURS,
    "base.kind": "section 4, setup",
    "base.model": "section 4, setup",
    "base.revision": "ours: a public commit; the paper names none",
    "sampling.temperature": "section 4, setup",
    "sampling.top_p": "section 4, setup",
    "sampling.max_new_tokens": "section 3, Factor 2, and section 4, setup",
    "sampling.max_prompt_tokens": OURS,
    "prompting.template": "ours: the base model's own chat template",
    "scoring.seconds": OURS,
    "evaluation.samples": "section 4.1: avg@4",
    "evaluation.metric": "section 4.1: avg@4",
    "difficulty.samples": "section 3, Factor 1, Figure 2: avg@16",
    "difficulty.fresh_samples": "ours: the paper does not measure its sets again",
    "difficulty.seed": OURS,
    "difficulty.sets.easy.lowest": "section 3, Factor 1",
    "difficulty.sets.easy.highest": "section 3, Factor 1",
    "difficulty.sets.easy.train": "section 3, Factor 1: 6k",
    "difficulty.sets.easy.validation": "section 3, Factor 1: 300",
    "difficulty.sets.hard.lowest": "section 3, Factor 1",
    "difficulty.sets.hard.highest": "section 3, Factor 1",
    "difficulty.sets.hard.train": "section 3, Factor 1: 5k",
    "difficulty.sets.hard.validation": "section 3, Factor 1: 300",
    "sweep.*.rollouts_per_problem": "section 4, setup: 8, 16, … 2,048",
    "sweep.*.problems_per_batch": "section 4, setup: 32, 64, … 1,024",
    "sweep.easy.max_batch_rollouts": "section 4, setup: B_max of Easy",
    "sweep.hard.max_batch_rollouts": "section 4, setup: B_max of Hard",
    "sweep.*.seeds": OURS,
    "sweep.*.rollouts": "ours: the lines of Figure 5 end near 4.1 million",
    "sweep.*.evaluate_every": OURS,
    "sweep.easy.learner.kl.coefficient": "section 3, Factor 2, Table 1: on for Easy; its weight is ours",
    "sweep.easy.learner.entropy.coefficient": "section 3, Factor 2, Table 1: on for Easy; its weight is ours",
    "sweep.*.learner.importance.cap": "section 4, setup: TIS; its cap is ours",
    "sweep.*.learner.compute.precision": OURS,
    "sweep.*.learner.compute.gradient_checkpointing": "ours: it changes no gradient",
    "sweep.*.learner.batch.filter_zero_variance": "section 3, Table 1: off",
    "sweep.*.learner.optimizer.warmup_steps": "section 3, Factor 3: linear over 10 steps, then constant",
    "sweep.*.learner.optimizer.weight_decay": "section 3, Factor 3: AdamW; the default of PyTorch and veRL",
    "sweep.*.learner.sync.tolerance": "ours: off, since one stray token of a sampler in bfloat16 may differ by much",
    "sweep.*.learner.sync.mean": OURS,
    "sweep.*.learner.sync.k3": OURS,
    "sweep.*.learner.sync.quantile": OURS,
    "sweep.*.learning_rate.rule": "section 3, Factor 3: the square root of the batch",
    "sweep.easy.learning_rate.learning_rates": (
        "section 3, Factor 3, Figure 4: a grid that finds 1e-6; the rest of it is ours"
    ),
    "sweep.hard.learning_rate.learning_rates": "ours: the paper takes the anchor found on Easy",
    "sweep.*.learning_rate.rollouts_per_problem": "section 3, Factor 3: n = 8",
    "sweep.*.learning_rate.problems_per_batch": "section 3, Factor 3: B_p = 128",
    "sweep.*.learning_rate.rollouts": OURS,
    "sweep.*.learning_rate.evaluate_every": OURS,
    "sweep.*.learning_rate.seeds": OURS,
    "frontier.seed": OURS,
    "prescribe": "ours: the paper does not test its prescription",
    "resources": OURS,
}


def leaves(values: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """Every setting of a preset by its dotted name; the sources of problems share one name.

    Args:
        before: Dotted path of these settings with its last dot; empty for a whole preset.
    """
    for key, value in values.items():
        name = f"{before}{key}"
        if isinstance(value, Mapping):
            yield from leaves(value, f"{name}.")
        elif isinstance(value, list) and value and isinstance(value[0], Mapping):
            for each in value:
                yield from leaves(each, f"{name}.")
        else:
            yield name, value


def section_of(name: str) -> str | None:
    """Where the paper says what a setting is, or None for a setting that is not listed."""
    parts = name.split(".")
    generic = ".".join([parts[0], "*", *parts[2:]]) if len(parts) > 2 else name
    return SECTIONS.get(name) or SECTIONS.get(generic) or SECTIONS.get(parts[0])
