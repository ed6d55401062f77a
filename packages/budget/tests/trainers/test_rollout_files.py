"""Responses that trainers wrote to files."""

import json
import sys
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from isocompute.budget.cli import main

CHARACTERS = ["<unk>", "<eos>", *"0123456789+=ab"]


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


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    """A tokenizer of characters, whose file says that texts are to be cut, filled up and begun with a special token."""
    library = pytest.importorskip("tokenizers")
    known = library.Tokenizer(library.models.WordLevel({c: k for k, c in enumerate(CHARACTERS)}, unk_token="<unk>"))
    known.pre_tokenizer = library.pre_tokenizers.Split("", "isolated")
    known.post_processor = library.processors.TemplateProcessing(single="<eos> $A", special_tokens=[("<eos>", 1)])
    known.enable_truncation(2)
    known.enable_padding(length=9)
    known.save(str(tmp_path / "tokenizer.json"))
    return tmp_path


def dumped(folder: Path, step: int, rows: list[dict[str, Any]]) -> None:
    """A file of veRL's, with further columns."""
    folder.mkdir(parents=True, exist_ok=True)
    common = {"gts": "1", "step": step}
    (folder / f"{step}.jsonl").write_text("".join(json.dumps({**common, **row}) + "\n" for row in rows))


def answers(*texts: str, **more: Any) -> list[dict[str, Any]]:
    return [{"input": "12+3=", "output": text, "score": float(text == "15"), **more} for text in texts]


def test_a_tokenizer_counts_the_tokens_of_a_ledger(
    tokenizer: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dumped(tmp_path / "run", 1, answers("15", "1", "15", ""))
    dumped(tmp_path / "run", 2, answers("15", "15", "15", "15"))
    out = tmp_path / "tables"
    assert main(["rollouts", "verl", str(tmp_path / "run"), "--out", str(out), "--tokenizer", str(tokenizer)]) == 0
    said = capsys.readouterr().out
    assert "40 prompt tokens and 13 response tokens in " in said
    assert "counted from the texts, which lack special tokens" in said
    ledger = pl.read_parquet(out / "ledger.parquet")
    assert ledger["cohort"].to_list() == ["trained"] * 2
    assert ledger.select("step", "rollouts", "prompt_tokens", "response_tokens").rows() == [
        (1, 4, 20, 5),
        (2, 4, 20, 8),
    ]
    rollouts = pl.read_parquet(out / "rollouts.parquet")
    assert rollouts["response_ids"][0].to_list() == [3, 7]
    assert rollouts["retokenized"].all()
    file = tokenizer / "tokenizer.json"
    assert (
        main(["rollouts", "verl", str(tmp_path / "run"), "--out", str(tmp_path / "b"), "--tokenizer", str(file)]) == 0
    )
    assert pl.read_parquet(tmp_path / "b" / "ledger.parquet").equals(ledger)
    capsys.readouterr()
    assert main(["waste", str(out / "rollouts.parquet"), "--ledger", str(out / "ledger.parquet")]) == 0
    said = capsys.readouterr().out
    assert "generated for training    8 rollouts, 13 response tokens" in said
    assert "without gradient          4 rollouts (50.0%), 8 tokens (61.5%)" in said


def test_without_a_tokenizer_tokens_are_unknown_and_no_ledger_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dumped(tmp_path / "run", 1, answers("15", "1"))
    assert main(["rollouts", "verl", str(tmp_path / "run"), "--out", str(tmp_path / "t")]) == 0
    assert "tokens are unknown, so no ledger is written" in capsys.readouterr().out
    assert sorted(path.name for path in (tmp_path / "t").iterdir()) == ["pass_rates.parquet", "rollouts.parquet"]
    assert "response_ids" not in pl.read_parquet(tmp_path / "t" / "rollouts.parquet").columns


@pytest.mark.parametrize(
    ("column", "value"), [("response_ids", [3, 7, 1]), ("completion_length", 3), ("response_tokens", 3.0)]
)
def test_tokens_of_the_files_themselves_need_no_tokenizer(tmp_path: Path, column: str, value: Any) -> None:
    dumped(tmp_path / "run", 1, answers("15", "1", prompt_tokens=9, **{column: value}))
    assert main(["rollouts", "verl", str(tmp_path / "run"), "--out", str(tmp_path / "t")]) == 0
    (row,) = pl.read_parquet(tmp_path / "t" / "ledger.parquet").iter_rows(named=True)
    assert (row["rollouts"], row["prompt_tokens"], row["response_tokens"]) == (2, 18, 6)
    rollouts = pl.read_parquet(tmp_path / "t" / "rollouts.parquet")
    assert ("response_ids" in rollouts.columns) == (column == "response_ids")
    assert "retokenized" not in rollouts.columns


def test_tokens_of_responses_only_leave_those_of_prompts_to_the_tokenizer(
    tokenizer: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dumped(tmp_path / "run", 1, answers("15", "1", response_ids=[3, 7, 1]))
    assert main(["rollouts", "verl", str(tmp_path / "run"), "--out", str(tmp_path / "a")]) == 0
    assert not (tmp_path / "a" / "ledger.parquet").exists()
    arguments = ["--out", str(tmp_path / "b"), "--tokenizer", str(tokenizer)]
    assert main(["rollouts", "verl", str(tmp_path / "run"), *arguments]) == 0
    assert "10 prompt tokens and 6 response tokens" in capsys.readouterr().out


@pytest.mark.parametrize("value", ["many", 2.5, -1])
def test_a_column_of_tokens_that_are_none_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], value: Any
) -> None:
    dumped(tmp_path / "run", 1, answers("15", "1", response_length=value))
    assert main(["rollouts", "verl", str(tmp_path / "run"), "--out", str(tmp_path / "t")]) == 2
    assert "response_length holds neither token ids nor numbers of tokens" in capsys.readouterr().err


def test_what_is_no_tokenizer_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    dumped(tmp_path / "run", 1, answers("15"))
    arguments = ["rollouts", "verl", str(tmp_path / "run"), "--out", str(tmp_path / "t"), "--tokenizer", str(tmp_path)]
    assert main(arguments) == 2
    assert "a tokenizer is a tokenizer.json or a folder that holds one" in capsys.readouterr().err
    (tmp_path / "tokenizer.json").write_text("{}")
    with monkeypatch.context() as without:
        without.setitem(sys.modules, "tokenizers", None)
        assert main(arguments) == 2
    assert 'needs tokenizers: pip install "isocompute-budget[tokenizers]"' in capsys.readouterr().err
    pytest.importorskip("tokenizers")
    assert main(arguments) == 2
    assert "tokenizer.json: is no tokenizer" in capsys.readouterr().err


def test_each_folder_of_files_is_a_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for seed in ("a", "b"):
        dumped(tmp_path / "runs" / seed, 1, answers("15", "1"))
    assert main(["rollouts", "verl", str(tmp_path / "runs"), str(tmp_path / "runs" / "a"), "--out", str(tmp_path)]) == 0
    assert "4 responses to 1 problems in 2 steps of 2 runs, groups of 2 to 2" in capsys.readouterr().out
    rollouts = pl.read_parquet(tmp_path / "rollouts.parquet")
    assert rollouts["run_id"].n_unique() == 2
    # A file is of the run of its folder, wherever that is named from.
    monkeypatch.chdir(tmp_path / "runs")
    assert main(["rollouts", "verl", "a/1.jsonl", "--out", str(tmp_path / "one")]) == 0
    one = pl.read_parquet(tmp_path / "one" / "rollouts.parquet")
    assert one.equals(rollouts.filter(pl.col("run_id") == one["run_id"][0]))


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


def test_chats_that_begin_alike_are_different_problems(tokenizer: Path, tmp_path: Path) -> None:
    folder = tmp_path / "completions"
    folder.mkdir()
    system = {"role": "system", "content": "a" * 500}
    chats = [[system, {"role": "user", "content": text}] for text in ("1+1=", "2+2=")]
    replies = [[{"role": "assistant", "content": text}] for text in ("2", "4")]
    table = {"step": [1, 1], "prompt": chats, "completion": replies, "right": [1.0, 0.0]}
    pl.DataFrame(table).write_parquet(folder / "completions_00001.parquet")
    assert main(["rollouts", "trl", str(tmp_path), "--out", str(tmp_path / "t"), "--tokenizer", str(tokenizer)]) == 0
    rollouts = pl.read_parquet(tmp_path / "t" / "rollouts.parquet")
    assert rollouts["problem_id"].n_unique() == 2
    assert sorted(rollouts["text"]) == ["2", "4"]
    assert rollouts["prompt_ids"].list.len().to_list() == [504, 504]
