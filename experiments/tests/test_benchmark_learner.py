"""What the comparison with TRL rests on: equal coin flips on both sides, and ratios over pairs of blocks."""

import ast
from pathlib import Path

import numpy as np
import pytest

from experiments.benchmarks.learner import compare, recorded, theirs


def test_the_same_step_has_the_same_coin_flips_and_another_has_others() -> None:
    first = theirs.coin_flips(0, 8, 16)
    assert (first == theirs.coin_flips(0, 8, 16)).all()
    assert (first != theirs.coin_flips(1, 8, 16)).any()
    assert set(np.unique(first)) == {0.0, 1.0}


def test_nine_groups_of_ten_have_equal_rewards() -> None:
    rewards = theirs.coin_flips(3, 20, 16, equal=0.9)
    assert int((rewards == rewards[:, :1]).all(axis=1).sum()) == 18


def test_trl_counts_what_it_was_given_and_gives_the_coin_flips_of_its_step() -> None:
    tally = theirs.Tally(samples=2)
    ids = [[1, 2, 3], [4]] * 8
    assert tally(completion_ids=ids) == theirs.coin_flips(0, 8, 2).reshape(-1).tolist()
    assert tally(completion_ids=ids) == theirs.coin_flips(1, 8, 2).reshape(-1).tolist()
    assert (tally.rollouts, tally.tokens) == (32, 64)


def test_a_ratio_is_of_mean_times_per_rollout() -> None:
    fast = [compare.Block(seconds=1.0, rollouts=100, tokens=1, zero_variance=0.0)] * 3
    slow = [compare.Block(seconds=3.0, rollouts=200, tokens=1, zero_variance=0.0)] * 3
    assert compare.ratio(fast, slow) == pytest.approx((1.5, 1.5, 1.5))


def test_too_slow_is_said_of_trl_with_its_own_defaults_only() -> None:
    block = compare.Block(seconds=1.0, rollouts=100, tokens=1, zero_variance=0.0)
    slower = compare.Block(seconds=2.0, rollouts=100, tokens=1, zero_variance=0.0)
    found = {compare.OURS: [block], compare.TRL: [slower], compare.PLAIN: [block]}
    assert compare.verdict(found, samples=16, new_tokens=16) == []
    (message,) = compare.verdict({**found, compare.TRL: [block]}, samples=16, new_tokens=16)
    assert "it must be at least 1.2" in message


def test_recorded_responses_share_their_prompts_and_have_the_lengths_asked_for() -> None:
    table = recorded.responses(64, prompt=4, lengths=(3, 5))
    assert table.unique(["problem_id", "prompt_ids"]).height == table["problem_id"].n_unique() == 4
    assert table["prompt_ids"].list.len().unique().to_list() == [4]
    assert set(table["response_ids"].list.len()) == {3, 4, 5}
    prepared = recorded.batch(table)
    assert {"advantage", "loss_weight"} <= set(prepared.columns)


def test_trl_s_side_needs_nothing_of_this_project() -> None:
    tree = ast.parse(Path(theirs.__file__).read_text())
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    imported |= {str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and not node.level}
    assert not [name for name in imported if name.startswith(("isocompute", "experiments"))]
    assert not [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.level]
