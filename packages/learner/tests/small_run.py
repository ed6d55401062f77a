"""Runs of the loop that take a second: recorded rollouts, a meter of steps, evaluations of likelihood."""

import os
import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from isocompute.learner.config import LearnerConfig
from isocompute.learner.saving import checkpoint
from isocompute.learner.saving.checkpoint import Checkpoints
from isocompute.learner.training import loop
from isocompute.learner.training.run import branch, restore
from isocompute.learner.updates.learner import Learner
from transformers import LlamaForCausalLM


def recorded(*, groups: int = 4, n: int = 4, version: int = 0, step: int = 1, seed: int = 0) -> pl.DataFrame:
    """Rollouts with random tokens and rewards; their log-probabilities are for ``scored`` to fill in."""
    rng = np.random.default_rng([seed, step])
    prompts = [rng.integers(0, 12, rng.integers(2, 6)).tolist() for _ in range(groups)]
    return pl.DataFrame(
        [
            {
                "run_id": "r",
                "step": step,
                "phase": "train",
                "problem_id": f"p{g}",
                "sample": s,
                "prompt_ids": prompts[g],
                "response_ids": rng.integers(0, 12, rng.integers(1, 8)).tolist(),
                "reward": float(s < 1 + g % 2),
                "finish_reason": "stop",
                "weights_version": version,
            }
            for g in range(groups)
            for s in range(n)
        ]
    )


def scored(
    policy: torch.nn.Module, rollouts: pl.DataFrame, numbers: type[pl.DataType] = pl.Float32, temperature: float = 1.0
) -> pl.DataFrame:
    """Rollouts with the log-probabilities that a model gives them, one response at a time."""
    logprobs = []
    for prompt, response in rollouts.select("prompt_ids", "response_ids").iter_rows():
        with torch.no_grad():
            scores = torch.log_softmax(policy(torch.tensor([prompt + response])).logits[0] / temperature, -1)
        logprobs.append([float(scores[len(prompt) + i - 1, token]) for i, token in enumerate(response)])
    return rollouts.with_columns(pl.Series("logprobs", logprobs, dtype=pl.List(numbers)))


def moved(model: torch.nn.Module, size: float) -> torch.nn.Module:
    """A model whose weights are all a little off, in place."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += size * torch.sin(torch.arange(parameter.numel())).view_as(parameter)
    return model


class Replay:
    """A sampler whose answers were recorded: it scores them with the weights that it was last synced with."""

    def __init__(self, model: Path) -> None:
        self._policy = LlamaForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
        self.weights_version = 0

    def sync(self, weights: Iterable[tuple[str, torch.Tensor]], version: int) -> None:
        tied = self._policy.config.tie_word_embeddings
        self._policy.load_state_dict(dict(weights), strict=not tied)
        self.weights_version = version

    def sample(
        self, problems: pl.DataFrame, *, samples: int, seed: int, step: int, phase: str, **_: Any
    ) -> pl.DataFrame:
        """The same tokens for the same seed and step, whatever the weights."""
        rows = recorded(groups=len(problems), n=samples, version=self.weights_version, step=step, seed=seed)
        names = {f"p{place}": name for place, name in enumerate(problems["problem_id"])}
        return scored(self._policy, rows.with_columns(pl.col("problem_id").replace(names), phase=pl.lit(phase)))


PROBLEMS = pl.DataFrame({"problem_id": [f"p{i}" for i in range(8)]})
RUN = loop.RunConfig(run_id="r", rollouts_per_problem=4, problems_per_batch=4, seed=3, evaluate_every=32)


@dataclass
class Steps:
    """A meter that admits a number of steps."""

    limit: int
    charged: list[tuple[int, dict[str, Any]]] = field(default_factory=list)
    reserved: int = 0

    def admit(self, *, step: int, rollouts: int) -> bool:
        return step <= self.limit

    def reserve(self, rollouts: int) -> None:
        self.reserved = rollouts

    def charge(self, step: int, rollouts: pl.DataFrame) -> None:
        self.charged.append((step, dict(rollouts["cohort"].value_counts().sort("count", descending=True).iter_rows())))


class Killed(BaseException):
    """Ends a run where it is, as a kill does."""


def counted_writes(patch: pytest.MonkeyPatch, dies_at: int, die: Callable[[], object]) -> Callable[[], int]:
    """Count the calls that write, flush, rename or delete, and die in the middle of one; none after it does anything.

    Args:
        dies_at: The call, counted from 1; 0 for none.

    Returns:
        A function that says how many there were.
    """
    calls = 0

    def mortal(function: Callable[..., Any], torn: Callable[..., object] = lambda *_: None) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == dies_at:
                torn(*arguments)
            if 0 < dies_at <= calls:
                die()
            return function(*arguments, **named)

        return call

    def half_deleted(folder: Path) -> None:
        for file in sorted(Path(folder).glob("*"))[:1]:
            file.unlink()

    patch.setattr(checkpoint, "save_file", mortal(checkpoint.save_file, lambda _, path: path.write_bytes(b"\x08")))
    patch.setattr(shutil, "rmtree", mortal(shutil.rmtree, half_deleted))
    patch.setattr(os, "fsync", mortal(os.fsync))
    for name in ("mkdir", "rename"):
        patch.setattr(Path, name, mortal(getattr(Path, name)))
    return lambda: calls


@dataclass
class Mortal(Steps):
    """A meter whose process is killed after a number of steps, before the next one."""

    def admit(self, *, step: int, rollouts: int) -> bool:
        if step > self.limit:
            raise Killed
        return True


@dataclass
class LogLikelihood:
    """An evaluator: what the policy thinks of recorded answers, which a change of any weight changes."""

    sampler: Any

    def __call__(self, *, step: int, at: int, rollouts: int, tokens: int) -> Any:
        table = self.sampler.sample(PROBLEMS.head(2), samples=2, seed=99, step=0, phase="eval", run_id="r")
        score = float(table["logprobs"].explode().mean())
        row = {"step": step, "rollouts": rollouts, "tokens": tokens, "at": at, "avg_at_2": score}
        return Evaluated(row, {"avg_at_2": score}, table)


@dataclass
class Evaluated:
    row: dict[str, Any]
    scores: dict[str, float]
    rollouts_table: pl.DataFrame


def run(
    learner: Any,
    sampler: Any,
    folder: Path,
    *,
    steps: int,
    records: list[Any] | None = None,
    meter: Steps | None = None,
    every: dict[str, Any] | None = None,
    cell: loop.RunConfig = RUN,
    trunk: Path | None = None,
) -> loop.Progress:
    """Train, or go on training, for so many steps in all; begin as a branch of a trunk if there is one."""
    store = Checkpoints(folder, **every or {})
    if trunk is not None and store.newest() is None:
        progress = branch(learner=learner, trunk=Checkpoints(trunk), run=cell, problems=PROBLEMS)
    else:
        progress = restore(learner=learner, checkpoints=store, run=cell, problems=PROBLEMS)
    loop.sync_and_check(learner=learner, sampler=sampler, problems=PROBLEMS, run_id="r")
    return loop.train(
        run=cell,
        problems=PROBLEMS,
        sampler=sampler,
        learner=learner,
        evaluator=LogLikelihood(sampler),
        meter=meter or Steps(steps),
        checkpoints=store,
        progress=progress,
        watch=[].append if records is None else records.append,
    )


@dataclass
class Trial:
    """Runs of one model, each in a folder of its own; ``learner`` is the last one's."""

    model: Path
    config: LearnerConfig
    home: Path
    learner: Any = None

    def __post_init__(self) -> None:
        self.sampler = Replay(self.model)

    def run(self, name: str, *, of: type[Learner] = Learner, **settings: Any) -> loop.Progress:
        """Train with a new learner, or go on where there are checkpoints."""
        self.learner = of(self.model, self.config)
        return run(self.learner, self.sampler, self.home / name, **settings)

    def kill(self, name: str, *, after: int, **settings: Any) -> None:
        with pytest.raises(Killed):
            self.run(name, steps=0, meter=Mortal(after), **settings)

    def weights(self) -> torch.Tensor:
        return weights(self.learner)


def paid(meter: Steps) -> list[tuple[int, dict[str, Any]]]:
    return [(step, counts) for step, counts in meter.charged if "eval" not in counts]


def weights(learner: Any) -> torch.Tensor:
    return torch.cat([tensor.flatten() for _, tensor in learner.weights()])


def distance(found: torch.Tensor, expected: torch.Tensor) -> float:
    """Relative to the length of what is expected."""
    return float((found - expected).norm() / expected.norm())


def written_out(
    policy: Any, base: Any, batch: pl.DataFrame, config: LearnerConfig
) -> tuple[torch.Tensor, float, float]:
    """The gradient token by token, without padding or micro-batches; see the parity chain in ``sync``.

    Args:
        policy: The policy, whose gradients are filled in: its call returns logits.
        base: The base model.
        batch: Prepared rollouts.
        config: The coefficients, and the cap of the importance weight.

    Returns:
        The gradient, the mean entropy (nats), and the largest difference from the sampler's log-probabilities (nats).
    """
    marks = batch["sampled"] if "sampled" in batch.columns else [[True] * len(r) for r in batch["response_ids"]]
    tokens = sum(map(sum, marks))
    entropy, worst = 0.0, 0.0
    for row, sampled in zip(batch.iter_rows(named=True), marks, strict=True):
        ids = torch.tensor([row["prompt_ids"] + row["response_ids"]])
        scores, known = (torch.log_softmax(m(ids).logits[0], -1) for m in (policy, base))
        for place, token in enumerate(row["response_ids"]):
            if not sampled[place]:
                continue
            i = len(row["prompt_ids"]) + place - 1
            own, spread = scores[i, token], -(scores[i].exp() * scores[i]).sum()
            weight = (own.detach() - row["logprobs"][place]).exp().clamp(max=config.importance.cap)
            apart = known[i, token].detach() - own
            term = -weight * row["advantage"] * own
            term += config.kl.coefficient * (apart.exp() - apart - 1) - config.entropy.coefficient * spread
            (term / tokens).backward(retain_graph=True)
            entropy += float(spread.detach()) / tokens
            worst = max(worst, abs(float(own.detach()) - row["logprobs"][place]))
    return torch.cat([p.grad.flatten() for p in policy.parameters()]), entropy, worst


def exact_norm(norm: Any, hidden: torch.Tensor) -> torch.Tensor:
    """The forward pass of a norm, in the type of its input; transformers computes it in float32."""
    scaled: torch.Tensor = norm.weight * hidden
    return scaled * torch.rsqrt(hidden.pow(2).mean(-1, keepdim=True) + norm.variance_epsilon)
