"""The console script: what it says of errors, and what it makes."""

from pathlib import Path
from typing import Any

import polars as pl
import pytest
from isocompute.rollout.cli import main
from isocompute.rollout.scoring.rules import REFUSED


def test_a_split_without_any_problem_inside_advises(
    tiny: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    measured = tiny.problems.with_columns(pass_rate=pl.lit(0.9), pass_rate_samples=pl.lit(4, dtype=pl.Int32))
    measured.write_parquet(tmp_path / "measured.parquet")
    asked = [
        "split",
        str(tmp_path / "measured.parquet"),
        "--interval",
        "0.3",
        "0.6",
        "--train",
        "2",
        "--validation",
        "1",
        "--out",
        str(tmp_path / "easy.parquet"),
    ]
    assert main(asked) == 2
    stderr = capsys.readouterr().err
    assert "0 of 4 measured ones have it (the mean pass rate is 0.90): generate other train problems" in stderr


def test_flags_of_a_server_go_with_the_openai_sampler(
    tiny: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny.problems.write_parquet(tmp_path / "problems.parquet")
    asked = [
        "generate",
        "--model",
        str(tiny.folder),
        "--problems",
        str(tmp_path / "problems.parquet"),
        "--out",
        str(tmp_path / "rollouts.parquet"),
    ]
    assert main([*asked, "--sampler", "openai"]) == 2
    assert "--sampler openai needs --base-url" in capsys.readouterr().err
    assert main([*asked, "--sampler", "transformers", "--base-url", "http://localhost:1/v1"]) == 2
    assert "--base-url needs --sampler openai" in capsys.readouterr().err


def test_dropped_problems_are_counted_and_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    answers = [str(i) for i in range(300)]
    answers[5] = ""
    pl.DataFrame({"prompt": [f"q{i}" for i in range(300)], "answer": answers}).write_ndjson(tmp_path / "own.jsonl")
    config = tmp_path / "problems.yaml"
    config.write_text(f"kind: file\npath: {tmp_path / 'own.jsonl'}\ntrain: 199\nvalidation: 100\n")
    made = tmp_path / "made"
    assert main(["problems", str(config), "--out", str(made / "problems.parquet")]) == 0
    stdout = capsys.readouterr().out
    assert stdout.startswith("1 dropped, such as ")
    assert "(it has no reference answer: ''); 299 problems, in " in stdout
    assert [path.name for path in made.iterdir()] == ["problems.parquet"]
    refused = next(iter(REFUSED))
    config.write_text(f"kind: reasoning_gym\ntask: {refused}\n")
    assert main(["problems", str(config), "--out", str(made / "other.parquet")]) == 2
    assert f"error: reasoning-gym's task {refused} is refused: " in capsys.readouterr().err


def test_several_sources_make_one_table_in_which_every_problem_is_once(tmp_path: Path) -> None:
    for name, numbers in (("easy", range(6)), ("hard", range(4, 10))):
        rows = pl.DataFrame({"prompt": [f"Q{i}  " for i in numbers], "answer": [str(i) for i in numbers]})
        rows.write_ndjson(tmp_path / f"{name}.jsonl")
    config, out = tmp_path / "problems.yaml", tmp_path / "problems.parquet"
    each = f"- {{kind: file, path: {tmp_path}/NAME.jsonl, train: 4, validation: 2}}\n"
    config.write_text(each.replace("NAME", "easy") + each.replace("NAME", "hard"))
    assert main(["problems", str(config), "--out", str(out)]) == 0
    made = pl.read_parquet(out)
    assert sorted(made["answer"]) == [str(i) for i in range(10)]
    assert made["split"].to_list().count("validation") >= 3
    config.write_text("[]")
    assert main(["problems", str(config), "--out", str(tmp_path / "none.parquet")]) == 2


@pytest.mark.slow
def test_scoring_again_uses_metadata(tiny: Any, tmp_path: Path) -> None:
    pytest.importorskip("reasoning_gym")
    problems = tmp_path / "problems.parquet"
    known = '{"metadata": {"solution": 2}}'
    tiny.problems.with_columns(verifier=pl.lit("reasoning_gym:number_format"), metadata=pl.lit(known)).write_parquet(
        problems
    )
    files = ["--problems", str(problems), "--model", str(tiny.folder)]
    first, again = str(tmp_path / "first.parquet"), str(tmp_path / "again.parquet")
    assert main(["generate", *files, "--sampler", "transformers", "--max-new-tokens", "2", "--out", first]) == 0
    assert main(["score", first, *files, "--out", again]) == 0
    assert Path(again).read_bytes() == Path(first).read_bytes()
    assert pl.read_parquet(again)["reward"].sum() > 0


def test_the_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["--version"])
    assert capsys.readouterr().out.startswith("isocompute-rollout ")
