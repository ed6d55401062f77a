"""The console script, where things go wrong."""

import shutil
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from isocompute.rollout import tables
from isocompute.rollout.cli import main


def damaged(tiny: Any, folder: Path, how: str) -> Path:
    """A base model that cannot be loaded."""
    model = folder / "model"
    if how == "missing":
        return model
    shutil.copytree(tiny.folder, model)
    if how == "without a config":
        (model / "config.json").unlink()
    else:
        weights = model / "model.safetensors"
        weights.write_bytes(b"\xff" * 100 + weights.read_bytes()[100:])
    return model


@pytest.mark.parametrize("sampler", ["transformers", "vllm"])
@pytest.mark.parametrize("how", ["missing", "without a config", "corrupted"])
def test_a_base_model_that_cannot_be_loaded_is_one_line(
    sampler: str, how: str, tiny: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    if sampler == "vllm":
        pytest.importorskip("vllm")
    model = damaged(tiny, tmp_path, how)
    tiny.problems.write_parquet(tmp_path / "problems.parquet")
    asked = ["generate", "--model", str(model), "--sampler", sampler, "--problems", str(tmp_path / "problems.parquet"),
             "--out", str(tmp_path / "rollouts.parquet")]  # fmt: skip
    assert main(asked) == 2
    said = capfd.readouterr().err
    assert "Traceback" not in said
    assert [line for line in said.splitlines() if line.startswith(f"error: the base model {model} cannot be loaded (")]
    assert not (tmp_path / "rollouts.parquet").exists()


def test_a_split_without_any_problem_inside_advises(
    tiny: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    measured = tiny.problems.with_columns(pass_rate=pl.lit(0.9), pass_rate_samples=pl.lit(4, dtype=pl.Int32))
    measured.write_parquet(tmp_path / "measured.parquet")
    asked = ["split", str(tmp_path / "measured.parquet"), "--interval", "0.3", "0.6", "--train", "2",
             "--validation", "1", "--out", str(tmp_path / "easy.parquet")]  # fmt: skip
    assert main(asked) == 2
    said = capsys.readouterr().err
    assert "0 of 4 measured ones have it (the mean pass rate is 0.90): generate other train problems" in said


def test_flags_of_a_server_go_with_the_openai_sampler(
    tiny: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny.problems.write_parquet(tmp_path / "problems.parquet")
    asked = ["generate", "--model", str(tiny.folder), "--problems", str(tmp_path / "problems.parquet"),
             "--out", str(tmp_path / "rollouts.parquet")]  # fmt: skip
    assert main([*asked, "--sampler", "openai"]) == 2
    assert "--sampler openai needs --base-url" in capsys.readouterr().err
    assert main([*asked, "--sampler", "transformers", "--base-url", "http://localhost:1/v1"]) == 2
    assert "--base-url goes with --sampler openai" in capsys.readouterr().err


def test_dropped_problems_are_counted_and_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    answers = [str(i) for i in range(300)]
    answers[5] = ""
    pl.DataFrame({"prompt": [f"q{i}" for i in range(300)], "answer": answers}).write_ndjson(tmp_path / "own.jsonl")
    config = tmp_path / "problems.yaml"
    config.write_text(f"kind: file\npath: {tmp_path / 'own.jsonl'}\ntrain: 199\nvalidation: 100\n")
    made = tmp_path / "made"
    assert main(["problems", str(config), "--out", str(made / "problems.parquet")]) == 0
    said = capsys.readouterr().out
    assert said.startswith("1 dropped, such as ")
    assert "(it has no reference answer: ''); 299 problems, in " in said
    assert [path.name for path in made.iterdir()] == ["problems.parquet"]
    config.write_text("kind: reasoning_gym\ntask: spiral_matrix\n")
    assert main(["problems", str(config), "--out", str(made / "other.parquet")]) == 2
    assert "error: reasoning-gym's task spiral_matrix is refused: " in capsys.readouterr().err


def test_runs_of_two_seeds_in_one_experiment_read_as_one_table(
    tiny: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("mlflow")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    tiny.problems.write_parquet("problems.parquet")
    asked = ["generate", "--model", str(tiny.folder), "--sampler", "transformers", "--problems", "problems.parquet",
             "--samples", "2", "--max-new-tokens", "4", "--log", "base"]  # fmt: skip
    for number, more in enumerate([["--seed", "0"], ["--seed", "1"], ["--seed", "0"], ["--phase", "eval"]]):
        assert main([*asked, *more, "--out", f"{number}.parquet"]) == 0
    assert Path("0.parquet").read_bytes() == Path("2.parquet").read_bytes()
    joined = tables.read("mlflow:base", "rollouts")
    assert joined["run_id"].n_unique() == 3
    assert len(joined) == 3 * 12
    assert set(joined["phase"]) == {"difficulty", "eval"}
    assert main(["difficulty", "mlflow:base", "--problems", "problems.parquet", "--out", "measured.parquet"]) == 0
    assert set(pl.read_parquet("measured.parquet")["pass_rate_samples"]) == {6}
    fresh = ["difficulty", "3.parquet", "--fresh", "--problems", "measured.parquet", "--out", "fresh.parquet"]
    assert main(fresh) == 0
    assert {"pass_rate", "fresh_pass_rate"} <= set(pl.read_parquet("fresh.parquet").columns)
    narrow = [*asked[:-2], "--top-p", "0.5", "--out", "narrow.parquet"]
    assert main(narrow) == 0
    assert pl.read_parquet("narrow.parquet")["run_id"].is_in(joined["run_id"].to_list()).sum() == 0


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


def test_a_write_that_was_cut_off_does_not_break_a_reader(
    tiny: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables.write(tiny.problems, "problems", tmp_path / "problems.parquet")

    def cut(_: int) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", cut)
        with pytest.raises(KeyboardInterrupt):
            tables.write(tiny.problems.head(1), "problems", tmp_path / "problems.parquet")
    assert len(list(tmp_path.iterdir())) == 2
    assert len(tables.read(tmp_path, "problems")) == 6
