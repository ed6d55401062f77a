"""``train`` with a run, problems, a sampler and a learner alone."""

import io
import re
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from isocompute.learner import Checkpoints, LearnerError, RunConfig, UpdateSteps, train
from isocompute.learner.records.steps import EvaluationRecord, StepRecord
from isocompute.learner.training.loop import print_record
from isocompute.learner.updates.learner import Learner
from small_run import PROBLEMS, LogLikelihood, Steps

pytestmark = pytest.mark.slow("runs that train")

RUN = RunConfig(problems_per_batch=4, rollouts_per_problem=4)


def changed(sampler: Any, **columns: pl.Expr) -> Any:
    """Let a sampler answer with other columns."""
    answered = sampler.sample
    sampler.sample = lambda *args, **settings: answered(*args, **settings).with_columns(**columns)
    return sampler


def test_it_takes_one_pass_and_prints_a_line_for_each_step(
    learner: Learner, replay: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    progress = train(run=RUN, problems=PROBLEMS, sampler=replay, learner=learner)
    assert (progress.step, progress.rollouts, progress.evals) == (2, 32, [])
    lines = capfd.readouterr().err.splitlines()
    pattern = r"step \d: [\d,]+ rollouts, reward \S+, gradient norm \S+, [\d.]+ s"
    assert len(lines) == 2
    assert all(re.fullmatch(pattern, line) for line in lines), lines


def test_with_checkpoints_it_continues_where_it_was(learner: Learner, replay: Any, tmp_path: Path) -> None:
    settings = {"run": RUN, "problems": PROBLEMS, "sampler": replay, "checkpoints": Checkpoints(tmp_path)}
    train(**settings, learner=learner, meter=UpdateSteps(limit=1))
    records: list[Any] = []
    progress = train(**settings, learner=learner, meter=UpdateSteps(limit=3), watch=records.append)
    assert progress.step == 3
    assert [record.step for record in records] == [2, 3]


def test_the_comparison_before_the_first_step_is_charged_as_an_evaluation(learner: Learner, replay: Any) -> None:
    meter = Steps(1)
    train(run=RUN, problems=PROBLEMS, sampler=replay, learner=learner, meter=meter)
    assert meter.charged == [(0, {"eval": 8}), (1, {"trained": 16})]


def test_an_evaluator_without_a_grid_is_refused(learner: Learner, replay: Any) -> None:
    with pytest.raises(LearnerError, match="evaluate_every is None"):
        train(run=RUN, problems=PROBLEMS, sampler=replay, learner=learner, evaluator=LogLikelihood(replay))


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"reward": pl.lit("1")}, "the column reward of what Replay.sample returned is of the type String; it must be"),
        ({"logprobs": pl.lit(-1.0)}, "the column logprobs of .* must be a list of numbers, the log-probability of"),
        ({"weights_version": pl.lit("0")}, "the column weights_version of .* must be a whole number"),
        ({"problem_id": pl.lit("p99")}, "Replay.sample returned answers problem p99, which was not among those"),
    ],
)
def test_a_wrong_column_of_the_sampler_is_named_before_anything_is_learnt(
    learner: Learner, replay: Any, columns: dict[str, pl.Expr], message: str
) -> None:
    with pytest.raises(LearnerError, match=message):
        train(run=RUN, problems=PROBLEMS, sampler=changed(replay, **columns), learner=learner)
    assert learner.version == 0


def test_a_column_that_the_sampler_does_not_report_is_named(learner: Learner, replay: Any) -> None:
    answered = replay.sample
    for column in ("finish_reason", "reward", "sample", "logprobs"):
        replay.sample = lambda *args, _column=column, **settings: answered(*args, **settings).drop(_column)
        with pytest.raises(LearnerError, match=rf"no column {column} \("):
            train(run=RUN, problems=PROBLEMS, sampler=replay, learner=learner)


def test_a_sampler_that_returns_no_table_is_refused(learner: Learner, replay: Any) -> None:
    replay.sample = lambda *args, **settings: [{"problem_id": "p0"}]
    with pytest.raises(LearnerError, match=r"Replay.sample.* a list"):
        train(run=RUN, problems=PROBLEMS, sampler=replay, learner=learner)


def test_a_run_without_steps_is_refused() -> None:
    with pytest.raises(LearnerError, match="limit is 0"):
        UpdateSteps(limit=0)


def test_a_step_without_an_update_and_an_evaluation_have_lines_of_their_own() -> None:
    stream = io.StringIO()
    print_record(StepRecord(step=3, rollouts=4096, sample_seconds=1.0, update_seconds=0.5), stream)
    print_record(EvaluationRecord(step=3, rollouts=4096, scores={"avg_at_4": 0.25}, evaluate_seconds=2.0), stream)
    assert stream.getvalue().splitlines() == [
        "step 3: 4,096 rollouts, 1.5 s",
        "evaluation after step 3: 4,096 rollouts, avg_at_4 0.250, 2.0 s",
    ]
