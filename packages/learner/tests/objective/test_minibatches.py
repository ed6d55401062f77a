import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from isocompute.learner.config import LearnerConfig, ObjectiveConfig
from isocompute.learner.objective.prepare import minibatches


def config(updates: int, epochs: int = 1, **more: object) -> LearnerConfig:
    objective = ObjectiveConfig(updates_per_batch=updates, epochs=epochs, **more)
    return LearnerConfig(learning_rate=1.0, objective=objective)


def table(groups: int, n: int = 3) -> pl.DataFrame:
    return pl.DataFrame(
        {
            "problem_id": [f"p{g}" for g in range(groups) for _ in range(n)],
            "sample": [s for _ in range(groups) for s in range(n)],
            "response_ids": [[1] * (1 + g + s) for g in range(groups) for s in range(n)],
            "loss_weight": [9.0] * groups * n,
        }
    )


def test_a_batch_of_one_update_is_left_as_it_is() -> None:
    batch = table(4)
    (found,) = minibatches(batch, config(1), seed=0, step=1)
    assert found is batch


@pytest.mark.slow
@given(st.integers(1, 9), st.integers(1, 6), st.integers(1, 3), st.integers(0, 99))
def test_each_pass_has_every_group_once_and_whole(groups: int, updates: int, epochs: int, seed: int) -> None:
    batch = table(groups)
    parts = list(minibatches(batch, config(updates, epochs), seed=seed, step=3))
    count = min(updates, groups) if updates * epochs > 1 else 1
    assert len(parts) == count * epochs
    for epoch in range(epochs):
        of_epoch = parts[epoch * count : (epoch + 1) * count]
        assert sorted(row for part in of_epoch for row in part.select("problem_id", "sample").rows()) == sorted(
            batch.select("problem_id", "sample").rows()
        )
        sizes = [part["problem_id"].n_unique() for part in of_epoch]
        assert max(sizes) - min(sizes) <= 1
    for part in parts:
        # Rows keep their order, and with it the prompt that a group shares.
        assert part.select("problem_id", "sample").rows() == sorted(part.select("problem_id", "sample").rows())


def test_the_split_depends_on_seed_step_and_pass_alone() -> None:
    def split(seed: int, step: int, epochs: int = 2) -> list[list[str]]:
        return [part["problem_id"].to_list() for part in minibatches(table(8), config(4, epochs), seed, step)]

    assert split(1, 2) == split(1, 2)
    assert len({str(split(seed, step)) for seed in (1, 2) for step in (1, 2)}) == 4
    first, second = split(1, 2)[:4], split(1, 2)[4:]
    assert first != second
    assert split(1, 2, epochs=1) == first


@pytest.mark.parametrize("aggregation", ["token", "sequence", "prompt"])
def test_each_update_has_weights_of_its_own(aggregation: str) -> None:
    for part in minibatches(table(5), config(2, aggregation=aggregation), seed=0, step=1):
        assert (part["loss_weight"] * part["response_ids"].list.len()).sum() == pytest.approx(1.0)


def test_a_batch_without_groups_has_no_updates() -> None:
    assert list(minibatches(table(2).clear(), config(2), seed=0, step=1)) == []
