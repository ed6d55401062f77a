"""Problems that cannot be scored: every command drops, counts and lists them before anything is sampled."""

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from isocompute.rollout.cli import main

pytestmark = pytest.mark.slow("sandboxes, one after another")

BROKEN = '{"settings": {"nonsense": 1}}'


@pytest.fixture
def problems(tiny: Any, tmp_path: Path) -> Path:
    pytest.importorskip("reasoning_gym")
    metadata = ["", BROKEN, "", "", "", BROKEN]
    path = tmp_path / "problems.parquet"
    tiny.problems.with_columns(verifier=pl.lit("reasoning_gym:gcd"), metadata=pl.Series(metadata)).write_parquet(path)
    return path


def sampling(tiny: Any) -> list[str]:
    return ["--model", str(tiny.folder), "--sampler", "transformers", "--samples", "2", "--max-new-tokens", "2"]


@pytest.mark.parametrize("command", ["generate", "difficulty", "evaluate"])
def test_a_command_drops_counts_and_lists_problems_that_cannot_be_scored(
    command: str, tiny: Any, problems: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / ("out.json" if command == "evaluate" else "out.parquet")
    asked = [command, *sampling(tiny), "--problems", str(problems), "--out", str(out)]
    assert main(asked) == 0
    printed = capsys.readouterr().out
    assert "2 problems dropped that cannot be scored, such as p1 (reasoning-gym refuses the task 'gcd'" in printed
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


def test_score_drops_the_responses_to_problems_that_cannot_be_scored(
    tiny: Any, problems: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny.problems.write_parquet(tmp_path / "exact.parquet")
    files = [str(tmp_path / "rollouts.parquet"), str(tmp_path / "scored.parquet")]
    asked = ["generate", *sampling(tiny), "--keep-text", "--problems", str(tmp_path / "exact.parquet")]
    assert main([*asked, "--out", files[0]]) == 0
    assert main(["score", files[0], "--problems", str(problems), "--out", files[1]]) == 0
    assert "2 problems dropped that cannot be scored, such as p1" in capsys.readouterr().out
    assert set(pl.read_parquet(files[1])["problem_id"]) == {"p0", "p2", "p3", "p4"}
    assert len(json.loads((tmp_path / "scored.dropped.json").read_text())) == 2
