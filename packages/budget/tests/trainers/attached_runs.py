"""TRL runs on a tiny model with a budget attached, killed and resumed, against what their hooked sampler made.

Run by torchrun with a file of cases, a folder for the runs and a file for what came of them.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from trl_runs import grpo, layout, problems_of, quiet


class KilledError(Exception):
    """The process would be dead by now."""


@dataclass
class Case:
    """A run: its limit in generation batches (or seconds), and the passes after which each process is killed."""

    limit: str
    batches: float
    counted: str = "paid"
    kills: list[int] = field(default_factory=list)
    save_steps: int = 1
    chosen: dict[str, Any] = field(default_factory=dict)


@dataclass
class Found:
    """Results of a run: ``truth`` is rollouts, prompt tokens and response tokens of the sampler, by mode."""

    truth: dict[str, list[int]]
    batch: int = 0
    limit: float = 0
    reason: str = ""
    steps: int = 0
    log: list[dict[str, Any]] = field(default_factory=list)
    saved: bool = False
    refused: str = ""
    resumed: list[int] = field(default_factory=list)


def random_case(rng, *, killed, world=1):
    """A layout with an evaluation, a limit, and places at which it is killed."""
    chosen = layout(rng)
    while chosen["rewards"] != "one" or "eval_strategy" not in chosen["args"]:
        chosen = layout(rng)
    chosen["args"]["max_completion_length"] = rng.choice([2, 4])
    chosen |= {"log": "state", "eval_problems": 4, "eval_sets": 1}
    if world > 1:
        k = chosen["args"]["num_generations_eval"] or chosen["args"]["num_generations"]
        chosen["args"]["per_device_eval_batch_size"] = k
    if killed:
        # Most checkpoints are within a generation batch then.
        chosen["args"]["num_iterations"] = rng.choice([1, 2, 3, 4])
    limit = rng.choice(["rollouts", "rollouts", "rollouts", "response_tokens", "response_tokens", "device_hours"])
    return Case(
        limit=limit,
        batches=rng.choice([2.5, 3, 4, 5.25] if killed else [1, 1.5, 2, 2.5, 3, 4, 5.25]),
        counted=rng.choice(["paid", "paid", "used"]),
        # The first after a checkpoint.
        kills=[chosen["args"]["gradient_accumulation_steps"] + rng.randint(1, 6), rng.randint(1, 9)] if killed else [],
        save_steps=1 if killed else rng.choice([1, 1, 2]),
        chosen=chosen,
    )


def train(case, folder):
    """Train until the run ends by itself, and count what is sampled on this rank.

    Raises:
        ValueError: TRL refuses the layout.
    """
    found = Found(truth=_read_truth(folder))
    folder.mkdir(parents=True, exist_ok=True)
    while True:
        killed_before = len(list(folder.glob("killed-*")))
        try:
            _live(case, folder, found, [*case.kills, 0][min(killed_before, len(case.kills))])
        except KilledError:
            _rank_zero_touches(folder / f"killed-{killed_before}")
            continue
        found.truth = _read_truth(folder)
        return found


def _live(case, folder, found, kill_after):
    """One process of a run."""
    from isocompute.budget import BudgetError
    from isocompute.budget.trl import attach
    from transformers import TrainerCallback
    from transformers.trainer_utils import get_last_checkpoint

    out = folder / "out"
    trainer = grpo(
        out,
        {"save_strategy": "steps", "save_steps": case.save_steps, **case.chosen["args"]},
        problems=case.chosen["problems"],
        eval_dataset=problems_of(case.chosen["eval_problems"], 100),
    )
    _hook(trainer, folder)

    class Killer(TrainerCallback):
        passes = 0

        def on_pre_optimizer_step(self, *_, **__):
            self.on_substep_end()

        def on_substep_end(self, *_, **__):
            self.passes += 1
            if self.passes == kill_after:
                raise KilledError

    trainer.add_callback(Killer())
    found.batch = trainer.args.generation_batch_size
    per_batch = {"rollouts": found.batch, "response_tokens": found.batch * 2.5, "device_hours": 1 / 3600}
    found.limit = case.batches * per_batch[case.limit]
    if case.limit in ("rollouts", "response_tokens"):
        found.limit = int(found.limit)
    budget = attach(trainer, folder / "run.ledger", **{case.limit: found.limit, "counted": case.counted})
    checkpoint = get_last_checkpoint(str(out)) if out.is_dir() else None
    if list(folder.glob("killed-*")):
        found.resumed.append(int(checkpoint.rsplit("-", 1)[1]) if checkpoint else 0)
    try:
        trainer.train(resume_from_checkpoint=checkpoint)
    except KilledError:
        budget.close()
        raise
    except BudgetError as error:
        found.refused = str(error)
    found.reason, found.steps, found.log = budget.reason, trainer.state.global_step, trainer.state.log_history
    found.saved = (out / f"checkpoint-{found.steps}").is_dir()


def _hook(trainer, folder):
    """Write down what the sampler makes on this rank, at once."""
    sample = trainer._generate_single_turn
    place = folder / f"truth-{trainer.accelerator.process_index}.jsonl"

    def hooked(prompt_ids, *args, **options):
        made = sample(prompt_ids, *args, **options)
        counts = [len(made[0]), sum(map(len, prompt_ids)), sum(map(len, made[0]))]
        with place.open("a") as stream:
            stream.write(json.dumps(["train" if trainer.model.training else "eval", *counts]) + "\n")
        return made

    trainer._generate_single_turn = hooked


def _read_truth(folder):
    truth = {"train": [0, 0, 0], "eval": [0, 0, 0]}
    for path in folder.glob("truth-*.jsonl"):
        for mode, *counts in map(json.loads, path.read_text().splitlines()):
            truth[mode] = [a + b for a, b in zip(truth[mode], counts, strict=True)]
    return truth


def _barrier():
    import torch

    if torch.distributed.is_initialized():
        torch.distributed.barrier()


def _rank_zero_touches(path):
    _barrier()
    if int(os.environ.get("RANK", "0")) == 0:
        path.touch()
    _barrier()


def main(cases, folder, out, wanted):
    """Train cases one after the other, until so many were trained; of those that TRL refuses, nothing is found."""
    found = []
    for number, case in enumerate(json.loads(Path(cases).read_text())):
        if sum("truth" in of_case and bool(of_case["steps"] or of_case["refused"]) for of_case in found) == int(wanted):
            break
        try:
            with quiet():
                of_case = asdict(train(Case(**case), Path(folder) / str(number)))
        except ValueError as error:
            of_case = {"illegal": str(error)[:200]}
        _barrier()
        found.append(of_case)
    if int(os.environ.get("RANK", "0")) == 0:
        # Only now have all ranks written what they sampled.
        for number, of_case in enumerate(found):
            if "truth" in of_case:
                of_case["truth"] = _read_truth(Path(folder) / str(number))
        Path(out).write_text(json.dumps(found))
    _barrier()


if __name__ == "__main__":
    main(*sys.argv[1:])
