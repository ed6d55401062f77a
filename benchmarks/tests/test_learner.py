"""What the comparison with TRL rests on: equal coin flips on both sides, and ratios over pairs of blocks."""

import ast
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.learner import __main__ as command
from benchmarks.learner import compare, recorded, theirs
from experiments.errors import ExperimentError


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


BLOCK = compare.Block(seconds=1.0, rollouts=100, tokens=1000, zero_variance=0.25)


def blocks(*seconds: float, **other: float) -> list[compare.Block]:
    """Blocks that took so long."""
    return [replace(BLOCK, seconds=each, **other) for each in seconds]  # type: ignore[arg-type]


def missed(trl: list[compare.Block], plain: list[compare.Block], new_tokens: int = 16) -> list[str]:
    """What is wrong beside these, where ours took a second for each block."""
    found = {compare.OURS: blocks(*[1.0] * len(trl)), compare.TRL: trl, compare.PLAIN: plain}
    return compare.verdict(found, samples=16, new_tokens=new_tokens)


def test_too_slow_is_said_of_trl_with_its_own_defaults_and_of_trl_without_checkpointing() -> None:
    assert missed(blocks(1.3, 1.3), blocks(1.3, 1.3)) == []
    (slow,) = missed(blocks(1.29, 1.29), blocks(1.3, 1.3))
    assert "1.29 times the speed of TRL (95 %: 1.29 to 1.29), and the lower end must be at least 1.3" in slow
    (slow,) = missed(blocks(1.3, 1.3), blocks(1.29, 1.29))
    assert "1.29 times the speed of TRL without gradient checkpointing" in slow
    # By luck only.
    (slow,) = missed(blocks(1.0, 1.2, 2.0, 1.0, 1.2, 2.0), blocks(*[1.4] * 6))
    assert "1.40 times the speed of TRL" in slow
    assert missed(blocks(1.4, 1.4), blocks(1.35, 1.35), new_tokens=64) != []
    assert missed(blocks(1.0, 1.0), blocks(1.0, 1.0), new_tokens=32) == []


def test_a_comparison_of_different_work_fails_however_fast() -> None:
    """Other coin flips, and responses that are longer by 3 %; 1 % is let pass, and a wide interval around 3 %."""
    fast = blocks(2.0, 2.0)
    (said,) = missed(blocks(2.0, 2.0, zero_variance=0.5), fast)
    assert "beside TRL shares of groups of equal rewards are 0.250 and 0.500, and must be equal" in said
    (said,) = missed(fast, blocks(2.0, 2.0, tokens=970))
    assert "beside TRL without gradient checkpointing mean response lengths differ by +3.1%" in said
    assert missed(fast, blocks(2.0, 2.0, tokens=990)) == []
    assert missed(fast, [*blocks(2.0, tokens=1030), *blocks(2.0, tokens=910)]) == []


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--blocks", "0"], "--blocks is 0; it must be at least 1"),
        (["--samples", "16", "0"], "--samples is 0; it must be at least 2"),
        (["--new-tokens", "-4"], "--new-tokens is -4; it must be at least 1"),
        (["--trl", "params.yaml"], "--trl is params.yaml, which cannot be run"),
        (["--largest"], "--largest needs a GPU, and PyTorch"),
        (["--cuda"], "--cuda needs a GPU, and PyTorch"),
    ],
)
def test_what_cannot_be_run_is_one_line_and_exit_code_2(
    given: list[str], said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if "GPU" in said and torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    monkeypatch.setattr("sys.argv", ["learner", *given])
    assert command.main() == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: {said}")
    assert error.count("\n") == 1


@pytest.mark.slow
def test_an_interpreter_without_trl_is_named_with_what_it_said(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho \"ModuleNotFoundError: No module named 'trl'\" >&2\nexit 1\n")
    python.chmod(0o755)
    with (
        compare.Process(python, tmp_path, samples=2, new_tokens=2, checkpointing=False) as process,
        pytest.raises(
            ExperimentError, match=r"TRL's process ended \(.*'trl'\); --trl must be an interpreter with trl==1\.16"
        ),
    ):
        process.take(1)
    with pytest.raises(ExperimentError, match="cannot be run"):
        compare.Process(tmp_path / "none", tmp_path, samples=2, new_tokens=2, checkpointing=False)


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
