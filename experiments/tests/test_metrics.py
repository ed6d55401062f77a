"""The glossary of metrics has a row for every name that a run logs, and no other rows."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from isocompute.learner import (
    EntropyConfig,
    EvaluationRecord,
    KLConfig,
    LearnerConfig,
    ObjectiveConfig,
    ResponseStatistics,
    StepRecord,
    UpdateReport,
)
from isocompute.learner.objective.loss import loss_metrics
from isocompute.learner.records.steps import AdvantageStatistics, Average
from isocompute.rollout import evaluate
from isocompute.rollout.cli import main
from isocompute.rollout.commands.output import rewarded
from isocompute.rollout.contract import tracking

GLOSSARY = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text()
# The settings with which everything is measured that can be.
CONFIG = LearnerConfig(
    learning_rate=1.0,
    objective=ObjectiveConfig(algorithm="ppo"),
    kl=KLConfig(coefficient=1.0),
    entropy=EntropyConfig(coefficient=1.0),
)
UPDATE = UpdateReport(
    # Returns that differ, so that there is a variance to be explained.
    objective={name: Average(total=1.0 + (name == "return_square"), count=1.0) for name in loss_metrics(CONFIG)},
    gradient_norm=0.0,
    learning_rate=0.0,
    trained_tokens=1,
    skipped=Average(total=0.0, count=1.0),
    operations=1.0,
    machine_rate=1.0,
)
RESPONSES = ResponseStatistics(
    reward=0.0,
    reward_std=0.0,
    zero_variance_share=0.0,
    response_length=0.0,
    truncated_share=0.0,
    response_length_max=1,
    sampled_entropy=0.0,
)
STEP = StepRecord(
    step=1,
    rollouts=8,
    sample_seconds=1.0,
    update_seconds=1.0,
    sync_seconds=0.0,
    responses=RESPONSES,
    advantages=AdvantageStatistics(advantage=0.0, advantage_std=0.0),
    update=UPDATE,
    gradient_retries=1,
    sampled_tokens=1,
    dropped_problems=1,
)


class Answered:
    """A sampler whose responses are all right."""

    def sample(self, problems: pl.DataFrame, *, samples: int, **asked: Any) -> pl.DataFrame:
        responses = pl.DataFrame({"sample": range(samples)}).with_columns(reward=1.0, finish_reason=pl.lit("stop"))
        return problems.join(responses, how="cross")


def evaluation(samples: int) -> EvaluationRecord:
    """What the loop makes of an evaluation."""
    found = evaluate(Answered(), pl.DataFrame({"problem_id": ["p"]}), samples=samples, seed=0, at=0, run_id="r")
    return EvaluationRecord(step=0, rollouts=0, scores=found.metrics, evaluate_seconds=0.0)


def rows(section: str) -> set[str]:
    """The names in the first column of a section's table."""
    text = GLOSSARY.split(f"\n## {section}")[1].split("\n## ")[0]
    first = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `")]
    return {name for cell in first for name in re.findall(r"`([\w/]+)`", cell)}


def named(values: Mapping[str, float], *, seconds: bool) -> set[str]:
    return {name for name in values if name.endswith("_seconds") == seconds}


@pytest.mark.parametrize("samples", [2, 4])
def test_every_score_of_an_evaluation_is_in_the_glossary_and_no_other(samples: int) -> None:
    found = named(evaluation(samples).metrics(), seconds=False)
    assert {name.replace(f"_at_{samples}", "_at_k") for name in found} == rows("Evaluation")


def test_every_metric_of_a_step_is_in_the_glossary_and_no_other() -> None:
    assert named(STEP.metrics(), seconds=False) == rows("Training")


def test_every_duration_is_in_the_glossary_and_no_other() -> None:
    timed = STEP.metrics() | evaluation(4).metrics()
    assert named(timed, seconds=True) == rows("Time")
    assert {name.removeprefix("perf/").removesuffix("_seconds") for name in rows("Time")} == {
        *STEP.seconds(),
        *evaluation(4).seconds(),
    }


def test_every_metric_of_the_rollout_commands_is_in_the_glossary_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    logged: set[str] = set()

    def log(*_: Any, metrics: Mapping[str, float], **details: Any) -> str:
        logged.update(metrics)
        return "run"

    monkeypatch.setattr(tracking, "ensure_store", lambda: None)
    monkeypatch.setattr(tracking, "log_artifacts", log)
    pl.DataFrame({"prompt": ["1+1=", "1+2="], "answer": ["2", "3"]}).write_ndjson("own.jsonl")
    Path("own.yaml").write_text("kind: file\npath: own.jsonl\ntrain: 1\nvalidation: 1\n")
    assert main(["problems", "own.yaml", "--out", "problems.parquet", "--log", "a"]) == 0
    rollouts = pl.read_parquet("problems.parquet").select(
        "problem_id",
        run_id=pl.lit("r"),
        step=pl.lit(0),
        phase=pl.lit("eval"),
        sample=pl.lit(0, dtype=pl.Int32),
        prompt_ids=[1],
        response_ids=[1],
        logprobs=[0.0],
        reward=pl.lit(1.0),
        finish_reason=pl.lit("stop"),
        weights_version=pl.lit(0),
    )
    rollouts.write_parquet("rollouts.parquet")
    # The metric of generate and score, which need a model.
    logged |= set(rewarded(rollouts).metrics)
    for flags in ([], ["--fresh"]):
        asked = ["difficulty", "rollouts.parquet", "--problems", "problems.parquet", *flags]
        assert main([*asked, "--out", "measured.parquet", "--log", "a"]) == 0
    assert main(["evaluate", "--rollouts", "rollouts.parquet", "--out", "evaluation.json", "--log", "a"]) == 0
    assert {re.sub(r"_at_\d+$", "_at_k", name) for name in logged} == rows("Of the rollout commands")
