"""Logs of Tinker's cookbook, against a simulation of how it generates, counts and writes."""

import json
import random
from pathlib import Path
from statistics import mean
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import settings as profile
from hypothesis import strategies as st
from isocompute.budget import BudgetError
from isocompute.budget.trainers.doctor import ingest
from reading_logs import asked, lines

quick = profile(max_examples=20, deadline=None)


class Run:
    """A run: groups of random rewards, written as the cookbook writes them.

    Attributes:
        truth: Rollouts and tokens before each iteration, and the mean success of its evaluation.
    """

    def __init__(self, folder, seed, *, n, groups, iterations, removes=False, mode="sync", summaries=True, test=2):
        self.rng, self.folder, self.mode, self.n = random.Random(seed), folder, mode, n
        self.groups, self.removes, self.summaries, self.test = groups, removes, summaries, test
        self.rows, self.truth, self.skipped = [], [], 0
        self.rollouts = self.tokens = 0
        for step in range(iterations):
            self.iteration(step, iterations)
        self.write()

    def group(self, size):
        """A group: a reward and the tokens of each turn, for each trajectory."""
        chance = self.rng.choice([0.0, 0.5, 1.0])
        made = range(size)
        return [(float(self.rng.random() < chance), [self.rng.randint(1, 9) for _ in "ab"]) for _ in made]

    def metrics(self, prefix, groups):
        flat = [t for group in groups for t in group]
        mixed = [len({reward for reward, _ in group}) > 1 for group in groups]
        return {
            f"{prefix}env/all/total_episodes": len(flat),
            f"{prefix}env/all/total_ac_tokens": sum(sum(turns) for _, turns in flat),
            f"{prefix}env/all/reward/total": mean(reward for reward, _ in flat),
            f"{prefix}env/all/by_group/frac_mixed": mean(mixed),
        }

    def summary(self, step, name, groups):
        if not self.summaries:
            return
        records = [
            {
                "split": name,
                "iteration": step,
                "group_idx": index,
                "traj_idx": number,
                "tags": ["problems"],
                "total_reward": reward,
                "final_reward": 0.0,
                "trajectory_metrics": {},
                "steps": [{"step_idx": k, "ob_len": 7, "ac_len": a, "metrics": {}} for k, a in enumerate(turns)],
            }
            for index, group in enumerate(groups)
            for number, (reward, turns) in enumerate(group)
        ]
        lines(self.folder / f"iteration_{step:06d}" / f"{name}_rollout_summaries.jsonl", records)

    def iteration(self, step, iterations):
        row = {"step": step, "progress/batch": step, "progress/done_frac": (step + 1) / iterations}
        test = [self.group(self.test) for _ in range(5)]
        success = mean(reward for group in test for reward, _ in group)
        self.truth.append((self.rollouts, self.tokens, success))
        self.summary(step, "eval_test", test)
        row |= self.metrics("test/", test)
        made, kept = [], []
        while not made or (self.mode == "async" and len(kept) < self.groups):
            batch = [self.group(self.n) for _ in range(1 if self.mode == "async" else self.groups)]
            made += batch
            kept += [g for g in batch if not self.removes or len({reward for reward, _ in g}) > 1]
        self.summary(step, "train", made if self.mode == "sync" else kept)
        self.skipped += len(made) - len(kept)
        if self.mode == "async":
            row |= {"training_client/step": step, "sampling_client/step_max": step}
            row |= {"rollout_errors/total": 0.0, "rollout_errors/groups_skipped": self.skipped} if self.skipped else {}
        self.rollouts += len(made) * self.n
        self.tokens += sum(sum(turns) for group in made for _, turns in group)
        self.rows.append(row | self.metrics("", kept or made[:1]))

    def write(self):
        self.log = lines(self.folder / "metrics.jsonl", self.rows)
        config = {
            "learning_rate": 1e-5,
            "num_substeps": 1,
            "remove_constant_reward_groups": self.removes,
            "dataset_builder": {"batch_size": self.groups, "group_size": self.n, "seed": 3},
            "async_config": {"groups_per_batch": self.groups, "max_steps_off_policy": 3}
            if self.mode == "async"
            else None,
        }
        (self.folder / "config.json").write_text(json.dumps(config))

    def read(self, **given):
        return ingest("tinker", [str(self.log)], config=self.folder / "config.json", constants=given)


sizes = {"seed": st.integers(0, 10**6), "n": st.integers(1, 6), "groups": st.integers(1, 5)}
sizes["iterations"] = st.integers(1, 5)


@quick
@given(**sizes, removes=st.booleans(), test=st.integers(1, 3))
def test_rollouts_tokens_and_successes_are_those_of_the_summaries(test, **sizes):
    with TemporaryDirectory() as folder:
        run = Run(Path(folder), test=test, **sizes)
        evals, _ = run.read()
        found = evals.select("rollouts", "tokens", f"avg_at_{test}").rows()
        assert [(r, t) for r, t, _ in found] == [(r, t) for r, t, _ in run.truth]
        assert [s for *_, s in found] == pytest.approx([s for *_, s in run.truth])
        assert evals["questions"].unique().to_list() == [5]
        assert evals["rollouts_error"].unique().to_list() == [0]
        assert (evals["rollouts_per_problem"][0], evals["seed"][0]) == (sizes["n"], 3)


@quick
@given(**sizes, removes=st.booleans())
def test_groups_that_were_removed_are_counted_without_summaries_too(**sizes):
    with TemporaryDirectory() as folder:
        run = Run(Path(folder), summaries=False, test=1, **sizes)
        evals, _ = run.read()
        assert evals["rollouts"].to_list() == [r for r, *_ in run.truth]
        # What is left says the length of all; where none was left, that of the first.
        if not sizes["removes"]:
            assert evals["tokens"].to_list() == [t for _, t, _ in run.truth]


@quick
@given(seed=st.integers(0, 10**6), n=st.integers(2, 6), groups=st.integers(1, 5), removes=st.booleans())
def test_an_asynchronous_run_counts_what_it_replaced_and_says_what_was_under_way(seed, n, groups, removes):
    with TemporaryDirectory() as folder:
        run = Run(Path(folder), seed, n=n, groups=groups, iterations=4, removes=removes, mode="async")
        if removes and not run.skipped:
            with pytest.raises(BudgetError, match="--set rollouts_per_step="):
                run.read()
            return
        evals, notes = run.read()
        assert evals["rollouts"].to_list() == [r for r, *_ in run.truth]
        assert evals["rollouts_error"].to_list() == [0, *[n * groups] * 3]
        assert any("under way" in note for note in notes)


def test_a_run_that_was_resumed_is_that_of_its_later_attempt(tmp_path):
    first = Run(tmp_path, 1, n=4, groups=3, iterations=5)
    again = Run(tmp_path, 1, n=4, groups=3, iterations=3)
    for step in range(3, 6):
        again.iteration(step, 6)
    lines(tmp_path / "metrics.jsonl", first.rows + again.rows[3:])
    evals, notes = again.read()
    assert evals["tokens"].to_list() == [t for _, t, _ in again.truth]
    assert any("went back to step 3" in note for note in notes)


@pytest.mark.parametrize("name", ["train", "eval_test"])
@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[: text.rindex("\n", 0, -1) + 1],
        lambda text: text[: len(text) // 2],
        lambda text: text + "{}\n",
        lambda text: text.replace('"ac_len": ', '"ac_len": -', 1),
    ],
    ids=["a line short", "cut", "a line of nothing", "a length below 0"],
)
def test_a_damaged_summary_is_refused_with_its_step(tmp_path, damage, name):
    run = Run(tmp_path, 1, n=4, groups=3, iterations=3)
    path = tmp_path / "iteration_000001" / f"{name}_rollout_summaries.jsonl"
    path.write_text(damage(path.read_text()))
    with pytest.raises(BudgetError, match="iteration_000001"):
        run.read()


def test_a_summary_of_other_tokens_or_another_reward_is_of_another_run(tmp_path):
    run = Run(tmp_path, 1, n=4, groups=3, iterations=3)
    for name, old, new in (("train", '"ac_len": ', '"ac_len": 1'), ("eval_test", 'reward": 1.0', 'reward": 0.5')):
        path = tmp_path / "iteration_000001" / f"{name}_rollout_summaries.jsonl"
        good = path.read_text()
        path.write_text(good.replace(old, new, 1))
        with pytest.raises(BudgetError, match="they are not of one run"):
            run.read()
        path.write_text(good)


def test_groups_that_failed_are_not_taken_for_removed_ones_unless_they_stream(tmp_path):
    run = Run(tmp_path, 1, n=4, groups=3, iterations=3, removes=True)
    path = tmp_path / "iteration_000000" / "train_rollout_summaries.jsonl"
    left = [json.loads(line) for line in path.read_text().splitlines()][:8]
    lines(path, left)
    run.rows[0] |= {"env/all/total_episodes": 8, "env/all/by_group/frac_mixed": 1.0}
    run.rows[0]["env/all/total_ac_tokens"] = sum(turn["ac_len"] for t in left for turn in t["steps"])
    # An evaluation alone is no iteration, and one without trajectories is one all of which failed.
    alone = {"step": 3, "test/env/all/total_episodes": 10, "test/env/all/reward/total": 0.5}
    run.rows += [{"step": 3, "progress/done_frac": 1.0}, {**alone, "step": 4}, {**alone, "step": 5}]
    run.write()
    evals, _ = run.read()
    assert evals["rollouts"].to_list() == [0, 8, 20, 32, 44]


def test_rewards_other_than_of_successes_are_refused_and_the_metric_is_asked_for(tmp_path):
    run = Run(tmp_path, 1, n=4, groups=3, iterations=3, summaries=False, test=1)
    for row in run.rows:
        row["test/env/all/correct"] = row["test/env/all/reward/total"]
        row["test/env/all/reward/total"] -= 0.037
    run.write()
    assert run.read()[0]["avg_at_1"].to_list() == pytest.approx([s for *_, s in run.truth])
    for row in run.rows:
        del row["env/all/total_ac_tokens"]
    run.write()
    assert set(run.read()[0]["tokens"]) == {0}
    with pytest.raises(BudgetError, match="is not a success rate"):
        run.read(metric="reward/total")


def test_parts_of_a_set_are_sets(tmp_path):
    run = Run(tmp_path, 1, n=4, groups=3, iterations=2, summaries=False, test=1)
    for row in run.rows:
        row |= {"test/env/easy/reward/total": 0.5, "test/env/easy/total_episodes": 2}
        row |= {"other/env/all/reward/total": 0.25, "other/env/all/total_episodes": 4}
    run.write()
    evals, _ = run.read()
    found = dict(evals.select("problem_set", "questions").iter_rows())
    assert found == {"test": 5, "test/easy": 2, "other": 4}


def test_the_reward_of_training_is_of_all_groups(tmp_path):
    run = Run(tmp_path, 2, n=4, groups=6, iterations=4, removes=True)
    for row in run.rows:
        for key in [key for key in row if key.startswith("test/")]:
            del row[key]
    run.write()
    evals, notes = run.read(train_reward="true")
    every = [
        [json.loads(line)["total_reward"] for line in path.read_text().splitlines()]
        for path in sorted(tmp_path.glob("iteration_*/train_*.jsonl"))
    ]
    assert evals["avg_at_4"].to_list() == pytest.approx([mean(rewards) for rewards in every])
    assert evals["rollouts"].to_list() == [r for r, *_ in run.truth]
    assert evals["split"].unique().to_list() == ["train"]
    assert any(note.startswith("TRAINING REWARD") for note in notes)


def test_all_that_is_missing_is_asked_at_once_and_no_summary_is_taken_for_a_log(tmp_path):
    run = Run(tmp_path, 1, n=4, groups=3, iterations=4)
    (tmp_path / "config.json").unlink()
    trainer, missing, rollouts = asked(tmp_path, {"group_size": 4, "groups_per_batch": 3})
    assert trainer == "tinker"
    assert missing >= {"group_size", "groups_per_batch"}
    assert rollouts == [r for r, *_ in run.truth]
