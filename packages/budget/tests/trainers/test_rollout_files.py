"""Responses that trainers wrote to files."""

import json
from pathlib import Path

import polars as pl
import pytest
from isocompute.budget.cli import main


@pytest.fixture
def completions(tmp_path: Path) -> Path:
    """What TRL's ``log_completions`` writes: two steps of two problems with four responses each."""
    folder = tmp_path / "out" / "completions"
    folder.mkdir(parents=True)
    for step in (1, 2):
        right = [1.0, 0.0, 0.0, 0.0] + [1.0] * 4
        pl.DataFrame({"step": [step] * 8, "prompt": ["a="] * 4 + ["b="] * 4, "completion": [str(step)] * 8,
                      "accuracy": right, "style": [0.5] * 8, "advantage": [0.0] * 8}
        ).write_parquet(folder / f"completions_{step:05d}.parquet")  # fmt: skip
    return folder.parent


def test_trls_completions_become_pass_rates_and_waste(
    completions: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "tables"
    assert main(["rollouts", "trl", str(completions), "--out", str(out)]) == 2
    assert "which of accuracy, style is the reward is not known: --metric" in capsys.readouterr().err
    assert main(["rollouts", "trl", str(completions), "--out", str(out), "--metric", "accuracy"]) == 0
    assert "16 responses to 2 problems in 2 steps, groups of 4 to 4" in capsys.readouterr().out
    rates = pl.read_parquet(out / "pass_rates.parquet")
    assert sorted(rates["successes"].to_list()) == [1, 1, 4, 4]
    assert main(["waste", str(out / "rollouts.parquet")]) == 0
    assert "50.0% of 4 groups, 2 of them all correct" in capsys.readouterr().out


def test_verls_rollouts_become_pass_rates(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for step in (1, 2):
        rows = [
            {"input": f"p{k % 2}", "output": "x", "gts": "1", "score": float(k < 2), "step": step} for k in range(4)
        ]
        (tmp_path / f"{step}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert main(["rollouts", "verl", str(tmp_path), "--out", str(tmp_path / "tables")]) == 0
    assert "8 responses to 2 problems in 2 steps, groups of 2 to 2" in capsys.readouterr().out
    assert pl.read_parquet(tmp_path / "tables" / "pass_rates.parquet")["successes"].to_list() == [1] * 4


def test_a_folder_without_such_files_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rollouts", "trl", str(tmp_path), "--out", str(tmp_path / "t")]) == 2
    assert "holds no completions_*.parquet" in capsys.readouterr().err
    (tmp_path / "completions_1.parquet").write_bytes(b"PAR")
    assert main(["rollouts", "trl", str(tmp_path), "--out", str(tmp_path / "t")]) == 2
    assert "completions_1.parquet: cannot be read" in capsys.readouterr().err


def test_steps_that_generated_nothing_are_not_counted(
    completions: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """TRL writes its last generation batch again at every entry of the log."""
    folder = completions / "completions"
    second = pl.read_parquet(folder / "completions_00002.parquet")
    for step in (3, 4):
        second.with_columns(step=pl.lit(step, dtype=pl.Int64)).write_parquet(folder / f"completions_{step:05d}.parquet")
    arguments = ["--out", str(tmp_path / "t"), "--metric", "accuracy"]
    assert main(["rollouts", "trl", str(completions), *arguments]) == 0
    said = capsys.readouterr().out
    assert "16 responses to 2 problems in 2 steps" in said
    assert "2 of 4 files hold what the one before them holds" in said


def test_chats_that_begin_alike_are_different_problems(tmp_path: Path) -> None:
    folder = tmp_path / "completions"
    folder.mkdir()
    system = {"role": "system", "content": "a" * 500}
    chats = [[system, {"role": "user", "content": text}] for text in ("1+1=", "2+2=")]
    replies = [[{"role": "assistant", "content": text}] for text in ("2", "4")]
    table = {"step": [1, 1], "prompt": chats, "completion": replies, "right": [1.0, 0.0]}
    pl.DataFrame(table).write_parquet(folder / "completions_00001.parquet")
    assert main(["rollouts", "trl", str(tmp_path), "--out", str(tmp_path / "t")]) == 0
    rollouts = pl.read_parquet(tmp_path / "t" / "rollouts.parquet")
    assert rollouts["problem_id"].n_unique() == 2
    assert sorted(rollouts["text"]) == ["2", "4"]
