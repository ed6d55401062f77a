"""Five updates on a fixed batch report what was stored in ``trajectory.json``; see the parity chain in ``sync``.

The model and the batch are written out as formulas, so that nothing depends on a generator of random numbers. On
policy the loss of a batch is its mean advantage whatever the policy; the entropy, the KL and the norm of the gradient
show where the updates have led. They were stored in float64, whose rounding no processor or build of torch makes as
large as 1e-8; float32 is compared to 1e-4, which another objective, schedule or optimizer exceeds. Where the numbers
are meant to change, this writes them again:

    python packages/learner/tests/updates/test_trajectory.py
"""

import json
import tempfile
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch
from isocompute.learner.config import (
    BatchConfig,
    ComputeConfig,
    EntropyConfig,
    KLConfig,
    LearnerConfig,
    ObjectiveConfig,
    OptimizerConfig,
)
from isocompute.learner.objective.cohorts import with_cohorts
from isocompute.learner.objective.prepare import prepare
from isocompute.learner.updates.learner import Learner
from transformers import LlamaConfig, LlamaForCausalLM

pytestmark = pytest.mark.slow("a run that trains")

REPORTED = ("loss", "kl", "entropy", "importance_weight", "gradient_norm", "learning_rate")
STORED = Path(__file__).with_name("trajectory.json")
TRAJECTORIES = {
    "plain": LearnerConfig(
        learning_rate=2e-3, optimizer=OptimizerConfig(warmup_steps=2), entropy=EntropyConfig(measured=True)
    ),
    "kl and entropy": LearnerConfig(
        learning_rate=2e-3, optimizer=OptimizerConfig(warmup_steps=0), kl=KLConfig(coefficient=0.05),
        entropy=EntropyConfig(coefficient=0.02), compute=ComputeConfig(micro_batch_tokens=20),
    ),
    "filtered, clipped and decaying": LearnerConfig(
        learning_rate=1e-3, temperature=0.8, objective=ObjectiveConfig(std="population"),
        optimizer=OptimizerConfig(warmup_steps=1, decay="cosine", decay_steps=5, weight_decay=0.1, gradient_clip=0.5),
        batch=BatchConfig(filter_zero_variance=True), entropy=EntropyConfig(measured=True),
    ),
}  # fmt: skip


def written_out_model(folder: Path) -> Path:
    """A Llama of one layer whose weights are sines."""
    config = LlamaConfig(
        vocab_size=8, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
        max_position_embeddings=32, tie_word_embeddings=False,
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        for number, (_, weight) in enumerate(sorted(model.named_parameters())):
            if weight.dim() == 2:
                places = torch.arange(weight.numel(), dtype=torch.float64)
                weight.copy_((0.4 * torch.sin(1.0 + number + 1.7 * places)).reshape(weight.shape))
    model.save_pretrained(folder)
    return folder


def written_out_rollouts() -> pl.DataFrame:
    """Four groups of four responses of one to six tokens; all rewards of the last group are equal."""
    return pl.DataFrame([
        {
            "problem_id": f"p{g}", "sample": s, "prompt_ids": [1 + g, 2 + s % 2],
            "response_ids": [(3 * g + 5 * s + i * i) % 8 for i in range(1 + (g + 2 * s) % 6)],
            "reward": 1.0 if g == 3 else [0.0, 0.25, 1.0, 0.5][(g + s) % 4], "finish_reason": "stop",
        }
        for g in range(4) for s in range(4)
    ])  # fmt: skip


def on_policy(policy: Any, rollouts: pl.DataFrame, *, temperature: float, version: int) -> pl.DataFrame:
    """The batch with the log-probabilities of the policy as it is, one response at a time."""
    logprobs = []
    for prompt, response in rollouts.select("prompt_ids", "response_ids").iter_rows():
        with torch.no_grad():
            scores = torch.log_softmax(policy(torch.tensor([prompt + response])).logits[0] / temperature, -1)
        logprobs.append([float(scores[len(prompt) + i - 1, token]) for i, token in enumerate(response)])
    return rollouts.with_columns(logprobs=pl.Series(logprobs), weights_version=pl.lit(version, dtype=pl.Int64))


def trajectory(folder: Path, config: LearnerConfig, *, double: bool = False) -> list[dict[str, float]]:
    """What five updates report."""
    learner = Learner(folder, config, dtype=torch.float64 if double else torch.float32)
    batch = prepare(with_cohorts(written_out_rollouts(), config.batch), config)
    reports = []
    for version in range(5):
        rollouts = on_policy(learner.policy, batch, temperature=config.temperature, version=version)
        report = learner.update(rollouts).metrics()
        # How far the two ways of computing log-probabilities differ is rounding and nothing else.
        reports.append({name: value for name, value in report.items() if name in REPORTED})
    return reports


@pytest.mark.parametrize("name", TRAJECTORIES)
@pytest.mark.parametrize(("double", "most"), [(False, 1e-4), (True, 1e-8)], ids=["float32", "float64"])
def test_five_updates_report_what_was_stored(name: str, double: bool, most: float, tmp_path: Path) -> None:
    stored = json.loads(STORED.read_text())[name]
    found = trajectory(written_out_model(tmp_path), TRAJECTORIES[name], double=double)
    for report, expected in zip(found, stored, strict=True):
        assert report == pytest.approx(expected, rel=most, abs=most / 10)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as home:
        model = written_out_model(Path(home))
        document = {name: trajectory(model, config, double=True) for name, config in TRAJECTORIES.items()}
    STORED.write_text(json.dumps(document, indent=1) + "\n")
