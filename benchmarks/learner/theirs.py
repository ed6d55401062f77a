"""TRL's side of the comparison: takes as many steps as it is asked for, in a process of its own.

    PYTHON benchmarks/learner/theirs.py MODEL --samples 16 --new-tokens 16 [--checkpointing] [--cuda]

It runs with the interpreter of an environment that has TRL 1.16 and need not have this project, so that each framework
has the versions that it wants. Each line of standard input is a number of steps; the answer is one line of JSON with
the CPU-seconds that they took and what was sampled. The training loop is TRL's own, halted between steps.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from time import perf_counter
from typing import Any, TextIO

import numpy as np

PROBLEMS_PER_BATCH = 8
LEARNING_RATE = 1e-6
"""So small that the policies stay what they were, and with them the lengths of responses."""
WARMUP_STEPS = 10
ENGINE_SHARE = 0.15
"""Of the GPU's memory, for the engine of either side: both sides are on it."""
PROMPT = 8
"""Most tokens of a prompt."""


def prompts(count: int) -> list[str]:
    """Sums of two digits: every prompt has the same number of tokens."""
    return [f"{1 + i % 9}+{1 + i // 9 % 9}=" for i in range(count)]


def coin_flips(step: int, groups: int, samples: int, *, equal: float = 0.0) -> np.ndarray:
    """Rewards of 0 or 1 that know nothing of the responses; both sides have the same.

    Args:
        groups: Problems of its batch.
        samples: Responses per problem.
        equal: Share of groups, the first ones, whose responses all have the same reward.

    Returns:
        Shape ``(groups, samples)``.
    """
    generator = np.random.default_rng([7, step])
    rewards = generator.integers(0, 2, (groups, samples)).astype(np.float64)
    same = round(equal * groups)
    rewards[:same] = rewards[:same, :1]
    return rewards


def cpu_seconds() -> float:
    """CPU-seconds of this process and of the children that have ended."""
    own = os.times()
    return own.user + own.system + own.children_user + own.children_system


def gpu_seconds() -> float:
    """The time on the wall once the GPU has done what it was given."""
    import torch

    torch.cuda.synchronize()
    return perf_counter()


class Tally:
    """Counts of what was sampled since the last read; as a reward function it flips the coins."""

    __name__ = "coin_flips"

    def __init__(self, samples: int) -> None:
        self._samples, self._calls = samples, 0
        self.clear()

    def __call__(self, *, completion_ids: Sequence[Sequence[int]], **rest: Any) -> list[float]:
        """Return the rewards of a step's responses, group by group."""
        del rest
        rewards = coin_flips(self._calls, len(completion_ids) // self._samples, self._samples)
        self._calls += 1
        self.rollouts += len(completion_ids)
        self.tokens += sum(len(ids) for ids in completion_ids)
        self.equal += int((rewards == rewards[:, :1]).all(axis=1).sum())
        flat: list[float] = rewards.reshape(-1).tolist()
        return flat

    def clear(self) -> None:
        """Begin to count again."""
        self.rollouts = self.tokens = self.equal = 0


def on_cpu(samples: int) -> dict[str, Any]:
    """Return the settings of a step on CPU: float32, and all responses in one pass.

    Args:
        samples: Responses per problem.
    """
    return {"use_cpu": True, "bf16": False, "per_device_train_batch_size": PROBLEMS_PER_BATCH * samples}


def on_cuda(samples: int, new_tokens: int) -> dict[str, Any]:
    """Return the settings of a step on a GPU: bfloat16, and vLLM in the same process.

    Weights and moments have the type of the model's file, bfloat16, as TRL has them by default.

    Args:
        samples: Responses per problem.
        new_tokens: Most tokens of a response.
    """
    together = 16
    steps = PROBLEMS_PER_BATCH * samples // together
    return {
        "bf16": True,
        "per_device_train_batch_size": together,
        "gradient_accumulation_steps": steps,
        "use_vllm": True,
        "vllm_mode": "colocate",
        "vllm_gpu_memory_utilization": ENGINE_SHARE,
        "vllm_max_model_length": PROMPT + new_tokens,
    }


def trainer(model: str, *, samples: int, new_tokens: int, tally: Tally, folder: str, device: dict[str, Any]) -> Any:
    """Make TRL's trainer with the settings of the comparison.

    Args:
        model: Folder of the model and its tokenizer.
        samples: Responses per problem.
        new_tokens: Most tokens of a response.
        tally: Gives the rewards.
        folder: Where the trainer may write.
        device: From ``on_cpu`` or ``on_cuda``.
    """
    from datasets import Dataset  # type: ignore[import-untyped,unused-ignore]
    from trl import GRPOConfig, GRPOTrainer  # type: ignore[import-not-found,import-untyped,unused-ignore]

    settings = GRPOConfig(
        output_dir=folder,
        seed=0,
        max_steps=10**6,
        report_to=[],
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
        shuffle_dataset=False,
        num_generations=samples,
        max_completion_length=new_tokens,
        temperature=1.0,
        beta=0.0,
        num_iterations=1,
        learning_rate=LEARNING_RATE,
        lr_scheduler_type="constant_with_warmup",
        warmup_steps=WARMUP_STEPS,
        **device,
    )
    dataset = Dataset.from_dict({"prompt": prompts(8 * PROBLEMS_PER_BATCH)})
    return GRPOTrainer(model=model, args=settings, train_dataset=dataset, reward_funcs=[tally])


def serve(asked: argparse.Namespace, answers: TextIO) -> None:
    """Take steps as standard input asks for them, until there is nothing more to read.

    Args:
        asked: The command's settings.
    """
    import torch
    from transformers import TrainerCallback

    torch.set_num_threads(1)
    tally, samples = Tally(asked.samples), asked.samples
    clock = gpu_seconds if asked.cuda else cpu_seconds

    class Paced(TrainerCallback):  # type: ignore[misc]
        """Halts the training loop between the steps that were asked for."""

        left = 0

        def on_step_begin(self, *arguments: Any, **rest: Any) -> None:
            """Wait for the next number where none is left."""
            del arguments, rest
            if not self.left:
                if asked.cuda:
                    # The other side takes its steps meanwhile.
                    torch.cuda.empty_cache()
                line = sys.stdin.readline()
                if not line.strip():
                    raise SystemExit(0)
                tally.clear()
                self.steps = self.left = int(line)
                self.began = clock()

        def on_step_end(self, *arguments: Any, **rest: Any) -> None:
            """Answer after the last step."""
            del arguments, rest
            self.left -= 1
            if not self.left:
                took = clock() - self.began
                share = tally.equal * samples / tally.rollouts
                found = {"seconds": took, "rollouts": tally.rollouts, "tokens": tally.tokens, "zero_variance": share}
                print(json.dumps(found), file=answers, flush=True)

    with tempfile.TemporaryDirectory() as folder:
        device = on_cuda(samples, asked.new_tokens) if asked.cuda else on_cpu(samples)
        device["gradient_checkpointing"] = asked.checkpointing
        made = trainer(
            asked.model, samples=samples, new_tokens=asked.new_tokens, tally=tally, folder=folder, device=device
        )
        made.add_callback(Paced())
        made.train()


def main() -> None:
    """Serve on standard input and output."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--samples", type=int, required=True)
    parser.add_argument("--new-tokens", type=int, required=True)
    parser.add_argument("--checkpointing", action="store_true", help="compute activations again, TRL's default")
    parser.add_argument("--cuda", action="store_true", help="on a GPU, with vLLM, in seconds of wall time")
    asked = parser.parse_args()
    # Whatever the libraries print must not be taken for an answer.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    serve(asked, answers)


if __name__ == "__main__":
    main()
