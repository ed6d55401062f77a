"""slime's logs, against a simulation of how it samples, drops and evaluates."""

import json
import random
from pathlib import Path
from statistics import mean
from tempfile import TemporaryDirectory

import polars as pl
import pytest
from hypothesis import given
from hypothesis import settings as profile
from hypothesis import strategies as st
from isocompute.budget import BudgetError
from isocompute.budget.cli import main
from isocompute.budget.trainers.evals import ingest
from isocompute.budget.trainers.registry import convert, read, trainer
from isocompute.budget.trainers.settings import render
from reading_logs import lines, run_of

quick = profile(max_examples=40, deadline=None)
QUESTIONS = {"questions.aime": "16", "questions.math": "16"}
FILTER = "slime.rollout.filter_hub.dynamic_sampling_filters.check_reward_nonzero_std"


class Run:
    """A run, logged as slime logs it.

    Attributes:
        truth: Of each evaluation the optimizer steps, the rollouts that were finished, and those that were started,
            and its rate and best of four.
    """

    def __init__(
        self, folder, seed, *, groups=4, n=2, updates=1, interval=2, filters=False, at_once=0, steps=5, **other
    ):
        self.rng, self.folder = random.Random(seed), folder
        self.finished = self.started = self.tokens = 0
        self.settings = {
            "rollout_batch_size": groups,
            "n_samples_per_prompt": n,
            "global_batch_size": groups * n // updates,
            "num_rollout": steps,
            "eval_interval": interval,
            "over_sampling_batch_size": at_once or groups,
            "dynamic_sampling_filter_path": FILTER if filters else None,
            "n_samples_per_eval_prompt": 4,
            "rollout_seed": 5,
            "lr": 1e-6,
            **other,
        }
        self.rows, self.truth = [], []
        clock = updates if other.get("wandb_always_use_train_step") else 1
        for rollout in range(steps):
            if rollout == 0 and not other.get("skip_eval_before_train"):
                self.evaluate(rollout * clock, 0)
            self.rollout(rollout * clock, groups, n, filters, at_once or groups)
            self.rows += [{"train/step": rollout * updates + k, "train/loss": 0.1} for k in range(updates)]
            if (rollout + 1) % interval == 0:
                self.evaluate(rollout * clock, (rollout + 1) * updates)
        self.log = lines(folder / "wandb.jsonl", self.rows)

    def evaluate(self, logged, steps):
        row = {"eval/step": logged}
        for name in ("aime", "math"):
            right = [[self.rng.random() < 0.4 for _ in range(4)] for _ in range(16)]
            rate, best = mean(map(mean, right)), mean(map(any, right))
            row |= {f"eval/{name}": rate, f"eval/{name}-truncated_ratio": 0.1, f"eval/{name}/response_len/mean": 9.0}
            row |= {f"eval/{name}-pass@1": rate, f"eval/{name}-pass@4": best}
            self.truth.append((steps, self.finished, self.started, rate, best))
        self.rows.append(row)

    def rollout(self, logged, groups, n, filters, at_once):
        submitted = finished = dropped = kept = 0
        while kept < groups:
            while submitted - dropped < groups:
                submitted += at_once
            finished += 1
            if filters and self.rng.random() < 0.4:
                dropped += 1
            else:
                kept += 1
        self.finished += finished * n
        self.started += submitted * n
        length = self.rng.randint(1, 9)
        self.tokens += finished * n * length
        row = {"rollout/step": logged, "rollout/response_len/mean": float(length), "rollout/truncated_ratio": 0.0}
        if dropped:
            first = self.rng.randint(0, dropped)
            row["rollout/dynamic_filter/drop_zero_std_0.0"] = first
            row["rollout/dynamic_filter/drop_zero_std_1.0"] = dropped - first
        self.rows.append(row)

    def read(self, **given):
        asked = {"questions": "16"} if "metric" in given else QUESTIONS
        config = self.folder / "config.json"
        config.write_text(json.dumps(self.settings))
        return ingest("slime", [str(self.log)], config=config, constants={**asked, **given})


@quick
@given(
    seed=st.integers(0, 10**6),
    groups=st.integers(1, 6),
    n=st.integers(2, 4),
    updates=st.sampled_from([1, 2]),
    interval=st.integers(2, 4),
    filters=st.booleans(),
    more=st.integers(0, 4),
    steps=st.integers(1, 7),
    wandb_always_use_train_step=st.booleans(),
)
def test_what_was_finished_is_counted_and_what_was_aborted_is_the_error(groups, n, more, updates, **sizes):
    with TemporaryDirectory() as folder:
        run = Run(Path(folder), groups=groups, n=2 * n, updates=updates, at_once=groups + more, **sizes)
        evals, _ = run.read()
        found = evals.select("step", "rollouts", "rollouts_error", "avg_at_4").rows()
        assert len(found) == len(run.truth)
        for (step, rollouts, error, rate), (taken, finished, started, success, _) in zip(found, run.truth, strict=True):
            assert (step, rollouts, rate) == (taken, finished, success)
            assert finished <= started <= finished + error
        assert evals["count_source"].to_list()[-1] == ("log" if sizes["filters"] and found[-1][0] else "formula")
        last = max(step for step, *_ in found)
        if last == sizes["steps"] * updates:
            assert evals["tokens"].max() == run.tokens


def test_with_an_interval_of_one_an_evaluation_is_after_its_rollout(tmp_path):
    run = Run(tmp_path, 0, interval=1, skip_eval_before_train=True)
    evals, _ = run.read()
    assert evals["rollouts"].to_list() == [finished for _, finished, *_ in run.truth]
    assert evals["rollouts"].to_list()[0] == 8


def scaled(run, low, high, *, passes=True):
    """The run's log with rewards of failure and success other than 0 and 1."""
    lines(
        run.log,
        [
            {
                k: low + (high - low) * v if k in ("eval/aime", "eval/math") else v
                for k, v in row.items()
                if passes or "pass@" not in k
            }
            for row in run.rows
        ],
    )


def test_pass_at_k_tells_the_scale_of_rewards(tmp_path):
    run = Run(tmp_path, 0)
    rates = [rate for *_, rate, _ in run.truth]
    for low, said in ((0, {}), (-1, {}), (-1, {"scale": "sign"})):
        scaled(run, low, 1)
        evals, _ = run.read(**said)
        assert evals["avg_at_4"].to_list() == pytest.approx(rates)
        if not said:
            assert evals["best_at_4"].to_list() == [best for *_, best in run.truth]
    scaled(run, 0.1, 1.1)
    with pytest.raises(BudgetError, match=r"eval/aime is .* and eval/aime-pass@1 .* other than 0 and 1"):
        run.read()


def test_without_pass_at_k_the_scale_is_that_of_the_verifier_or_declared(tmp_path):
    run = Run(tmp_path, 0)
    scaled(run, -2, 0, passes=False)
    with pytest.raises(BudgetError, match=r"eval/.* is -.* which is not a success rate"):
        run.read()
    scaled(run, -1, 1, passes=False)
    run.settings |= {"rm_type": "dapo", "reward_key": "score"}
    assert run.read()[0]["avg_at_4"].to_list() == pytest.approx([rate for *_, rate, _ in run.truth])
    scaled(run, 0, 100, passes=False)
    evals, _ = run.read(scale="percent", metric="aime")
    assert evals["avg_at_4"].to_list() == pytest.approx([rate for *_, rate, _ in run.truth][::2])
    with pytest.raises(BudgetError, match="there is no metric eval/gsm8k; there are aime, math"):
        run.read(metric="eval/gsm8k")


def test_a_filter_that_gives_no_reason_is_asked_about(tmp_path):
    run = Run(tmp_path, 0, steps=4)
    run.settings["dynamic_sampling_filter_path"] = "mine.py.drop"
    with pytest.raises(BudgetError, match="--set rollouts_per_step="):
        run.read()
    assert sorted({*run.read(rollouts_per_step="20")[0]["rollouts"].to_list()}) == [0, 40, 80]


def test_a_run_that_was_resumed_goes_on_with_its_count(tmp_path):
    run = Run(tmp_path, 3, filters=True, steps=6)
    start = next(k for k, row in enumerate(run.rows) if row.get("rollout/step") == 3)
    stop = next(k for k, row in enumerate(run.rows) if row.get("rollout/step") == 5)
    lost = [
        {**row, "rollout/response_len/mean": 99.0} if "rollout/step" in row else row for row in run.rows[start:stop]
    ]
    lost = [{k: v / 2 if k == "eval/aime" else v for k, v in row.items()} for row in lost]
    lines(run.log, [*run.rows[:start], *lost, *run.rows[start:]])
    evals, notes = run.read()
    assert evals["rollouts"].to_list() == [finished for _, finished, *_ in run.truth]
    assert evals["tokens"].max() == run.tokens
    assert any("went back" in note for note in notes)


def test_all_that_is_missing_is_asked_at_once(tmp_path, capsys):
    run = Run(tmp_path / "run", 0, filters=True)
    assert main(["doctor", str(tmp_path / "run"), "--out", str(tmp_path / "out")]) == 1
    said = capsys.readouterr().out
    assert ": slime\n" in said
    asked = {"n_samples_per_prompt": 2, "rollout_batch_size": 4, "global_batch_size": 8, "eval_interval": 2}
    asked |= {"n_samples_per_eval_prompt": 4, **QUESTIONS}
    for name in asked:
        assert f"--set {name}=VALUE" in said
    given = [word for name, value in asked.items() for word in ("--set", f"{name}={value}")]
    assert main(["doctor", str(tmp_path / "run"), "--out", str(tmp_path / "out"), *given]) == 0
    evals = pl.read_parquet(tmp_path / "out" / "evals.parquet")
    assert evals["rollouts"].to_list() == [finished for _, finished, *_ in run.truth]


def test_settings_are_written_with_hyphens_and_steps_of_a_rollout_are_read():
    made = convert("slime", run_of(8, 4, 10))
    assert render(made, trainer("slime").style)[0] == "--rollout-batch-size 8"
    sizes = {"rollout_batch_size": 8, "n_samples_per_prompt": 4, "num_rollout": 10}
    assert read("slime", {**sizes, "num_steps_per_rollout": 4}).update_steps == 40
    assert read("slime", {**sizes, "global_batch_size": 16}).problems_per_batch == 4
    wrong = read("slime", {**sizes, "global_batch_size": 12})
    assert any("counts samples" in told for told in wrong.inconsistent)
    assert any("global_batch_size is not set" in told for told in read("slime", sizes).unknown)
