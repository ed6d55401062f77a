"""The console script: what it says of errors, and what it makes."""

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from isocompute.rollout.cli import main


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


BROKEN, KNOWN = '{"settings": {"nonsense": 1}}', '{"metadata": {"solution": 2}}'


@pytest.fixture
def problems(tiny: Any, tmp_path: Path) -> Path:
    pytest.importorskip("reasoning_gym")
    metadata = pl.Series([KNOWN, BROKEN, KNOWN, KNOWN, KNOWN, BROKEN])
    path = tmp_path / "problems.parquet"
    tiny.problems.with_columns(verifier=pl.lit("reasoning_gym:number_format"), metadata=metadata).write_parquet(path)
    return path


def sampling(tiny: Any) -> list[str]:
    return ["--model", str(tiny.folder), "--sampler", "transformers", "--samples", "8", "--max-new-tokens", "2"]


@pytest.mark.slow
@pytest.mark.parametrize("command", ["difficulty", "evaluate"])
def test_a_command_drops_counts_and_lists_problems_that_cannot_be_scored(
    command: str, tiny: Any, problems: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / ("out.json" if command == "evaluate" else "out.parquet")
    asked = [command, *sampling(tiny), "--problems", str(problems), "--out", str(out)]
    assert main(asked) == 0
    printed = capsys.readouterr().out
    assert "2 problems dropped that cannot be scored, such as p1 (reasoning-gym refuses the task" in printed
    assert "responses were aborted" not in printed
    listed = json.loads((tmp_path / "out.dropped.json").read_text())
    assert [row["problem_id"] for row in listed] == ["p1", "p5"]
    assert all("nonsense" in row["reason"] for row in listed)
    if command == "evaluate":
        assert json.loads(out.read_text())["questions"] == 4
    else:
        assert set(pl.read_parquet(out)["problem_id"]) == {"p0", "p2", "p3", "p4"}
    pl.read_parquet(problems).filter(pl.col("metadata") == BROKEN).write_parquet(problems)
    assert main([*asked, "--overwrite"]) == 2
    assert "none of the 2 problems can be scored, such as p1, since" in capsys.readouterr().err


@pytest.mark.slow
def test_score_uses_metadata_and_drops_the_responses_to_problems_that_cannot_be_scored(
    tiny: Any, problems: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny.problems.write_parquet(tmp_path / "exact.parquet")
    files = [str(tmp_path / "rollouts.parquet"), str(tmp_path / "scored.parquet")]
    asked = ["generate", *sampling(tiny), "--keep-text", "--problems", str(tmp_path / "exact.parquet")]
    assert main([*asked, "--out", files[0]]) == 0
    assert main(["score", files[0], "--problems", str(problems), "--out", files[1]]) == 0
    assert "2 problems dropped that cannot be scored, such as p1" in capsys.readouterr().out
    scored = pl.read_parquet(files[1])
    assert set(scored["problem_id"]) == {"p0", "p2", "p3", "p4"}
    # The scorer finds the solution in the metadata alone.
    assert 0 < scored["reward"].sum() < len(scored)
    assert len(json.loads((tmp_path / "scored.dropped.json").read_text())) == 2
