"""slime's logs, against a simulation of how it samples, drops and evaluates."""

import random
from statistics import mean

import pytest
from hypothesis import given
from hypothesis import settings as profile
from hypothesis import strategies as st
from isocompute.budget import BudgetError
from isocompute.budget.trainers.registry import convert, trainer
from isocompute.budget.trainers.settings import render
from reading_logs import asked, ingested, lines, run_of, settings

QUESTIONS = {"questions.aime": "16", "questions.math": "16"}
FILTER = "slime.rollout.filter_hub.dynamic_sampling_filters.check_reward_nonzero_std"


class Run:
    """A run, logged as slime logs it.

    Attributes:
        truth: Of each evaluation the optimizer steps, the rollouts that were finished, and those that were started,
            and its rate and best of four.
    """

    def __init__(self, seed, *, groups=4, n=2, updates=1, interval=2, filters=False, at_once=0, steps=5, **other):
        self.rng = random.Random(seed)
        self.finished = self.started = self.tokens = 0
        said = (
            f"rollout_batch_size={groups} n_samples_per_prompt={n} global_batch_size={groups * n // updates} "
            f"num_rollout={steps} eval_interval={interval} over_sampling_batch_size={at_once or groups} "
            f"dynamic_sampling_filter_path={FILTER if filters else None} n_samples_per_eval_prompt=4"
        )
        self.settings = settings(said) | other
        self.rows, self.truth = [], []
        clock = updates if other.get("wandb_always_use_train_step") else 1
        for rollout in range(steps):
            if rollout == 0 and not other.get("skip_eval_before_train"):
                self.evaluate(rollout * clock, 0)
            self.rollout(rollout * clock, groups, n, filters, at_once or groups)
            self.rows += [{"train/step": rollout * updates + k, "train/loss": 0.1} for k in range(updates)]
            if (rollout + 1) % interval == 0:
                self.evaluate(rollout * clock, (rollout + 1) * updates)

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
        asked = {"questions": "16"} if "metric" in given else {"questions": None, **QUESTIONS}
        return ingested("slime", self.rows, self.settings, **asked, **given)


@profile(max_examples=20, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    groups=st.integers(1, 6),
    n=st.integers(2, 4),
    updates=st.sampled_from([1, 2]),
    interval=st.integers(1, 4),
    filters=st.booleans(),
    more=st.integers(0, 4),
    steps=st.integers(1, 7),
    wandb_always_use_train_step=st.booleans(),
)
def test_what_was_finished_is_counted_and_what_was_aborted_is_the_error(groups, n, more, updates, interval, **sizes):
    # With an interval of one every evaluation is after its rollout, and there is none before training.
    sizes |= {"interval": interval, "skip_eval_before_train": interval == 1}
    run = Run(groups=groups, n=2 * n, updates=updates, at_once=groups + more, **sizes)
    evals, _ = run.read()
    found = evals.select("step", "rollouts", "avg_at_4", "best_at_4").rows()
    assert found == [(taken, finished, rate, best) for taken, finished, _, rate, best in run.truth]
    for error, (_, finished, started, *_) in zip(evals["rollouts_error"], run.truth, strict=True):
        assert finished <= started <= finished + error
    last = evals["step"].max()
    assert evals["count_source"].to_list()[-1] == ("log" if sizes["filters"] and last else "formula")
    if last == sizes["steps"] * updates:
        assert evals["tokens"].max() == run.tokens


def scaled(run, low, high):
    """The run with rewards of failure and success other than 0 and 1, and without pass@k."""
    shown = [{k: v for k, v in row.items() if "pass@" not in k} for row in run.rows]
    rewards = ("eval/aime", "eval/math")
    other = Run(0)
    other.rows = [{k: low + (high - low) * v if k in rewards else v for k, v in row.items()} for row in shown]
    return other


def test_without_pass_at_k_the_scale_is_that_of_the_verifier_or_declared():
    run = Run(0)
    rates = pytest.approx([rate for *_, rate, _ in run.truth])
    verified = scaled(run, -1, 1)
    verified.settings |= {"rm_type": "dapo", "reward_key": "score"}
    assert verified.read()[0]["avg_at_4"].to_list() == rates
    evals, _ = scaled(run, 0, 100).read(scale="percent", metric="aime")
    assert evals["avg_at_4"].to_list() == pytest.approx([rate for *_, rate, _ in run.truth][::2])


def test_a_filter_that_gives_no_reason_is_asked_about():
    run = Run(0, steps=4)
    run.settings["dynamic_sampling_filter_path"] = "mine.py.drop"
    with pytest.raises(BudgetError, match="--set rollouts_per_step="):
        run.read()
    assert sorted({*run.read(rollouts_per_step="20")[0]["rollouts"].to_list()}) == [0, 40, 80]


def test_all_that_is_missing_is_asked_at_once(tmp_path):
    run = Run(0, filters=True)
    given = {"n_samples_per_prompt": 2, "rollout_batch_size": 4, "global_batch_size": 8, "eval_interval": 2}
    given |= {"n_samples_per_eval_prompt": 4, **QUESTIONS}
    found = asked(lines(tmp_path / "wandb.jsonl", run.rows), given)
    assert found == ("slime", set(given), [finished for _, finished, *_ in run.truth])


def test_settings_are_written_with_hyphens():
    assert render(convert("slime", run_of(8, 4, 10)), trainer("slime").style)[0] == "--rollout-batch-size 8"
