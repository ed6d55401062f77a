"""From the rollouts of a step to the responses of each update."""

import hypothesis
import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from isocompute.learner.config import BatchConfig, KLConfig, LearnerConfig, ObjectiveConfig
from isocompute.learner.errors import LearnerError
from isocompute.learner.objective.advantages import with_cohorts
from isocompute.learner.objective.prepare import minibatches, prepare, sampled_counts

REWARDS = {"a": [1.0, 0.0, 0.0, 1.0], "b": [1.0, 1.0, 1.0, 1.0], "c": [0.0, 0.5, 1.0, 0.0]}


def config(algorithm: str = "grpo", **more: object) -> LearnerConfig:
    settings = {name: more.pop(name) for name in ("kl", "batch") if name in more}
    return LearnerConfig(learning_rate=1.0, objective=ObjectiveConfig(algorithm=algorithm, **more), **settings)


def table(rewards: dict[str, list[float]] = REWARDS, batch: BatchConfig | None = None) -> pl.DataFrame:
    """Groups of responses of 1, 2, 3, … tokens; each number per token is 0.25 in float32."""
    rows = [(problem, sample, reward) for problem, group in rewards.items() for sample, reward in enumerate(group)]
    problems, samples, given = zip(*rows, strict=True)
    ids = [[1] * (1 + sample) for sample in samples]
    plain = pl.DataFrame(
        {
            "problem_id": problems,
            "sample": samples,
            "reward": given,
            "response_ids": ids,
            "finish_reason": ["stop"] * len(rows),
        }
    )
    measured = {
        name: pl.Series([[value] * len(row) for row in ids], dtype=pl.List(pl.Float32))
        for name, value in (("old_logprobs", -1.0), ("reference_logprobs", -1.25), ("values", 0.5))
    }
    return with_cohorts(plain.with_columns(**measured), batch or BatchConfig())


def test_groups_that_are_filtered_are_left_out_of_the_normaliser_and_of_the_batchs_scale() -> None:
    batch = BatchConfig(filter_zero_variance=True)
    found = prepare(table(batch=batch), config(scale="batch", batch=batch))
    without = prepare(table({name: REWARDS[name] for name in "ac"}), config(scale="batch"))
    assert found["problem_id"].unique().sort().to_list() == ["a", "c"]
    for column in ("advantage", "loss_weight"):
        assert found[column].to_list() == pytest.approx(without[column].to_list())
    kept = prepare(table(), config(scale="batch"))
    assert abs(kept["advantage"][0]) > abs(found["advantage"][0])


def test_responses_that_are_not_trained_on_sharpen_the_baseline() -> None:
    batch = BatchConfig(trained_rollouts=2)
    found = prepare(table(batch=batch), config(batch=batch))
    whole = prepare(table(), config())
    half = 0.5 / (3**-0.5)
    assert whole["advantage"].to_list()[:8] == pytest.approx([half, -half, -half, half, 0, 0, 0, 0], abs=1e-5)
    # Of all 30 tokens, those of equal rewards included, and of the 9 that are trained on.
    assert whole["loss_weight"].to_list() == pytest.approx([1 / 30] * 12)
    first = pl.col("sample") < 2
    assert found["advantage"].to_list() == whole.filter(first)["advantage"].to_list()
    assert found["loss_weight"].to_list() == pytest.approx([1 / 9] * 6)


def test_the_order_of_rows_does_not_matter() -> None:
    shuffled = table()[[5, 0, 3, 1, 2, 4, 7, 6, 11, 9, 8, 10]]
    for chosen, column in (
        (config(), "advantage"),
        (config(scale="batch"), "advantage"),
        (config("ppo"), "advantages"),
    ):
        one, other = (prepare(rows, chosen).sort("problem_id", "sample") for rows in (table(), shuffled))
        for name in ("loss_weight", column):
            assert np.hstack(one[name].to_list()) == pytest.approx(np.hstack(other[name].to_list()))


def test_a_kl_in_the_reward_lowers_it_by_the_responses_own() -> None:
    """Each token is 0.25 nats from the base model, so longer responses of equal reward have lower advantages."""
    kl = KLConfig(coefficient=0.1, estimator="k1", place="reward")
    found = prepare(table(), config(scale="none", kl=kl))
    assert found["kl"].to_list() == pytest.approx([0.25 * (1 + i) for i in range(4)] * 3)
    equal = found.filter(problem_id="b")["advantage"].to_list()
    assert equal == pytest.approx([0.0375, 0.0125, -0.0125, -0.0375])


def test_a_kl_in_the_reward_lowers_that_of_each_token_where_a_critic_judges_it() -> None:
    """Each token is 0.25 nats from the base model: 0.025 less, and the rewards are those of the last tokens."""
    kl = KLConfig(coefficient=0.1, estimator="k1", place="reward")
    found = prepare(table({"a": [1.0, 0.0], "b": [1.0]}), config("ppo", scale="none", kl=kl))
    assert found["kl"].to_list() == pytest.approx([0.25, 0.5, 0.25])
    assert found["returns"].explode().to_list() == pytest.approx([0.975, -0.05, -0.025, 0.975])
    assert found["advantages"].explode().to_list() == pytest.approx([0.475, -0.55, -0.525, 0.475])
    assert "advantage" not in found.columns


@pytest.mark.parametrize("algorithm", ["grpo", "cispo"])
@given(
    groups=st.lists(st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=2, max_size=4), min_size=1, max_size=3),
    lone=st.lists(st.sampled_from([0.0, 1.0]), min_size=1, max_size=3),
)
@hypothesis.settings(max_examples=10)
def test_the_rest_of_a_batch_is_as_if_groups_of_one_were_not_there(
    algorithm: str, groups: list[list[float]], lone: list[float]
) -> None:
    """Advantages, scaled by the group or by the batch, weights in the loss, and the cohorts that are charged."""
    named = {f"g{i}": group for i, group in enumerate(groups)}
    chosen = config(algorithm)
    rest = prepare(table(named), chosen)
    rows = table({"a": [lone[0]], **named, **{f"z{i}": [reward] for i, reward in enumerate(lone)}})
    rows = with_cohorts(rows.drop("cohort", "zero_variance"), BatchConfig(), baseline="group")
    alone = ["a", *(f"z{i}" for i in range(len(lone)))]
    assert rows.filter(pl.col("cohort") == "filtered")["problem_id"].to_list() == alone
    found = prepare(rows, chosen)
    assert found["problem_id"].to_list() == rest["problem_id"].to_list()
    for name in ("advantage", "loss_weight"):
        assert found[name].to_list() == pytest.approx(rest[name].to_list(), rel=1e-9)


def test_tokens_that_were_not_sampled_do_not_count_and_a_response_without_tokens_has_a_reward_and_no_weight() -> None:
    def of(ids: list[list[int]], values: list[list[float]]) -> pl.DataFrame:
        lists = pl.Series(ids, dtype=pl.List(pl.Int64)), pl.Series(values, dtype=pl.List(pl.Float32))
        return table({"a": [1.0, 0.0]}).with_columns(response_ids=lists[0], values=lists[1])

    marks = pl.Series([None, [True, False]], dtype=pl.List(pl.Boolean))
    rows = of([[1], [1, 1]], [[0.5], [0.25]]).with_columns(sampled=marks)
    assert sampled_counts(rows).tolist() == [1, 1]
    assert prepare(rows, config())["loss_weight"].to_list() == [0.5, 0.5]
    assert prepare(rows, config("ppo", scale="none"))["advantages"].to_list() == [[0.5], [-0.25]]
    rows = of([[], [1, 1]], [[], [0.5, 0.5]])
    found = prepare(rows, config(aggregation="sequence"))
    assert found["advantage"][0] > 0
    assert found["loss_weight"].to_list() == [0.0, 0.5]
    assert prepare(rows, config("ppo", scale="none"))["returns"].to_list() == [[], [0.0, 0.0]]


def test_what_is_missing_or_no_number_is_named() -> None:
    with pytest.raises(LearnerError, match="no column values"):
        prepare(table().drop("values"), config("ppo"))
    in_reward = config(kl=KLConfig(coefficient=0.1, place="reward"))
    with pytest.raises(LearnerError, match="reference_logprobs"):
        prepare(table().drop("reference_logprobs"), in_reward)
    for chosen in (config(), config("ppo")):
        with pytest.raises(LearnerError, match="response 1 to problem a"):
            prepare(table({"a": [1.0, np.nan]}), chosen)


def in_updates(updates: int, epochs: int = 1, aggregation: str = "token") -> LearnerConfig:
    return config(updates_per_batch=updates, epochs=epochs, aggregation=aggregation)


def groups_of(groups: int, n: int = 3) -> pl.DataFrame:
    return pl.DataFrame(
        {
            "problem_id": [f"p{g}" for g in range(groups) for _ in range(n)],
            "sample": [s for _ in range(groups) for s in range(n)],
            "response_ids": [[1] * (1 + g + s) for g in range(groups) for s in range(n)],
            "loss_weight": [9.0] * groups * n,
        }
    )


@pytest.mark.slow
@given(st.integers(1, 9), st.integers(1, 6), st.integers(1, 3), st.integers(0, 99))
@hypothesis.settings(max_examples=40)
def test_each_pass_has_every_group_once_and_whole(groups: int, updates: int, epochs: int, seed: int) -> None:
    batch = groups_of(groups)
    parts = list(minibatches(batch, in_updates(updates, epochs), seed=seed, step=3))
    count = min(updates, groups) if updates * epochs > 1 else 1
    assert len(parts) == count * epochs
    whole = batch.select("problem_id", "sample").rows()
    for epoch in range(epochs):
        of_epoch = parts[epoch * count : (epoch + 1) * count]
        rows = [part.select("problem_id", "sample").rows() for part in of_epoch]
        assert sorted(row for part in rows for row in part) == sorted(whole)
        # Rows keep their order, and with it the prompt that a group shares.
        assert all(part == sorted(part) for part in rows)
        sizes = [part["problem_id"].n_unique() for part in of_epoch]
        assert max(sizes) - min(sizes) <= 1


def test_the_split_depends_on_seed_step_and_pass_alone() -> None:
    def split(seed: int, step: int, epochs: int = 2) -> list[list[str]]:
        return [part["problem_id"].to_list() for part in minibatches(groups_of(8), in_updates(4, epochs), seed, step)]

    assert split(1, 2) == split(1, 2)
    assert len({str(split(seed, step)) for seed in (1, 2) for step in (1, 2)}) == 4
    first, second = split(1, 2)[:4], split(1, 2)[4:]
    assert first != second
    assert split(1, 2, epochs=1) == first


def test_each_update_has_weights_of_its_own() -> None:
    for aggregation in ("token", "sequence", "prompt"):
        for part in minibatches(groups_of(5), in_updates(2, aggregation=aggregation), seed=0, step=1):
            assert (part["loss_weight"] * part["response_ids"].list.len()).sum() == pytest.approx(1.0)
