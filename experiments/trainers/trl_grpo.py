"""A run of TRL's GRPOTrainer as a cell of a sweep. Copy it, and change what is yours.

The preset `trl` of params.yaml starts it. Its flags are those of `CellArguments` and all of TRL's `GRPOConfig`. A run
that is killed and started again ends as one that was left alone does, because

* its problems are one epoch, in an order that the seed alone decides: TRL's own shuffle begins anew with a resume;
* it goes on from the newest checkpoint that is whole, and does not evaluate there again;
* the budget counts what is used, so that what a kill cost does not end the run early.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from datasets import Dataset
from isocompute.budget.trl import attach
from isocompute.rollout import Scorer
from isocompute.rollout.scoring.scorer import Item
from transformers import AutoModelForCausalLM, AutoTokenizer, HfArgumentParser
from trl import GRPOConfig, GRPOTrainer

SCORER = Scorer()


@dataclass
class CellArguments:
    """Arguments of one cell."""

    base_model: str
    train: str
    validation: str
    ledger: str
    rollouts: int


def right(
    prompts: list[str],
    completions: list[str],
    verifier: list[str],
    answer: list[str],
    metadata: list[str] | None = None,
    **_: Any,
) -> list[float]:
    """1 for a response that its verifier takes for right; the one reward, so that its mean is the success rate."""
    notes = metadata or [""] * len(completions)
    items = [
        Item(verifier=rule, response=text, answer=expected, metadata=note or "")
        for rule, text, expected, note in zip(verifier, completions, answer, notes, strict=True)
    ]
    return [verdict.reward for verdict in SCORER.submit(items).result()]


def problems_of(path: str) -> list[dict[str, Any]]:
    """Problems of a file."""
    return [json.loads(line) for line in Path(path).read_text().splitlines()]


def in_order(problems: list[dict[str, Any]], *, count: int, seed: int) -> list[dict[str, Any]]:
    """So many problems, in an order that the seed decides; a longer run begins as a shorter one."""
    drawn, order = random.Random(seed), list[dict[str, Any]]()
    while len(order) < count:
        order += drawn.sample(problems, len(problems))
    return order[:count]


def newest_checkpoint(folder: str) -> str | None:
    """The newest checkpoint that is whole: its state is written last, and a kill may have cut it."""
    for path in sorted(Path(folder).glob("checkpoint-*"), key=lambda path: -int(path.name.rpartition("-")[2])):
        try:
            json.loads((path / "trainer_state.json").read_text())
        except (OSError, ValueError):
            continue
        return str(path)
    return None


def main() -> None:
    """Train, from the newest checkpoint on where there is one."""
    cell, config = HfArgumentParser((CellArguments, GRPOConfig)).parse_args_into_dataclasses()
    checkpoint = newest_checkpoint(config.output_dir)
    config.eval_on_start, config.shuffle_dataset = checkpoint is None, False
    count = config.max_steps * config.generation_batch_size // config.num_generations
    trainer = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(cell.base_model, dtype="bfloat16" if config.bf16 else "float32"),
        processing_class=AutoTokenizer.from_pretrained(cell.base_model),
        reward_funcs=right,
        args=config,
        train_dataset=Dataset.from_list(in_order(problems_of(cell.train), count=count, seed=config.seed)),
        eval_dataset=Dataset.from_list(problems_of(cell.validation)),
    )
    attach(trainer, cell.ledger, rollouts=cell.rollouts, counted="used")
    trainer.train(resume_from_checkpoint=checkpoint)


if __name__ == "__main__":
    main()
