"""From problems to a split through MLflow: each command finds what another, perhaps on another machine, has logged."""

from pathlib import Path
from typing import Any

import polars as pl
import pytest
from isocompute.rollout import tracking
from isocompute.rollout.cli import main
from isocompute.rollout.commands.output import read
from isocompute.rollout.contract import tables

pytestmark = pytest.mark.slow("MLflow in processes of its own")

pytest.importorskip("mlflow")
pytest.importorskip("transformers")


class Shell:
    """Runs commands in one new, empty folder after another, as on other machines; each makes ``made.parquet``."""

    def __init__(self, home: Path, patch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self.home, self.patch, self.capsys, self.runs = home, patch, capsys, 0
        patch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{home}/store/mlflow.db")

    def __call__(self, *arguments: str, code: int = 0) -> str:
        """Run a command and return what it printed."""
        self.runs += 1
        folder = self.home / f"folder{self.runs}"
        folder.mkdir()
        self.made = folder / "made.parquet"
        self.patch.chdir(folder)
        assert main([*arguments, "--out", "made.parquet"]) == code
        printed = self.capsys.readouterr()
        return printed.out if code == 0 else printed.err


def test_mlflow_connects_the_commands_as_files_do(
    tiny: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run, model = Shell(tmp_path, monkeypatch, capsys), str(tiny.folder)
    source = tmp_path / "own.jsonl"
    questions = pl.DataFrame({"prompt": [f"{i % 9 + 1}+{i // 9 + 1}=" for i in range(36)], "answer": "2"})
    questions.write_ndjson(source)
    config = tmp_path / "problems.yaml"
    config.write_text(f"kind: file\npath: {source}\ntrain: 24\nvalidation: 12\n")
    answering = ("--model", model, "--sampler", "transformers", "--samples", "8", "--max-new-tokens", "2")
    interval = ("--interval", "0", "1", "--train", "10", "--validation", "5")

    assert "logged as runs:/" in run("problems", str(config), "--log", "set")
    problems = run.made
    run("generate", *answering, "--problems", "mlflow:set", "--log", "base")
    rollouts = run.made
    assert pl.read_parquet(rollouts)["reward"].sum() > 0
    run("score", "mlflow:base", "--problems", "mlflow:set", "--model", model, "--log", "scored")
    scored = run.made
    run("difficulty", "mlflow:scored", "--problems", "mlflow:set", "--log", "measured")
    measured = run.made
    printed = run("split", "mlflow:measured", *interval, "--log", "easy")
    easy = run.made

    # What one run made is a source too, by the address that the command printed.
    run("split", printed.rpartition("logged as ")[2].strip(), *interval)
    assert run.made.read_bytes() == easy.read_bytes()
    refused = run("split", "mlflow:nothing", *interval, code=2)
    assert "error: mlflow:nothing: the store" in refused
    assert "has no such experiment (it has Default, base, easy, measured, scored, set)" in refused
    assert_linked_by_content(tmp_path, {"base": "set", "scored": "base", "measured": "scored", "easy": "measured"})
    assert scored.read_bytes() == rollouts.read_bytes()
    made = tmp_path / "measured.parquet"
    assert main(["difficulty", str(scored), "--problems", str(problems), "--out", str(made)]) == 0
    assert made.read_bytes() == measured.read_bytes()


def assert_linked_by_content(home: Path, producers: dict[str, str]) -> None:
    """What each experiment's run has read is what another's has made, by the hashes in their tags."""
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{home}/store/mlflow.db")

    def hashes(experiment: str, kind: str) -> set[str]:
        found = client.get_experiment_by_name(experiment)
        assert found is not None
        tags = client.search_runs([found.experiment_id])[0].data.tags
        return {value for name, value in tags.items() if name.startswith(f"isocompute.{kind}.")}

    for consumer, producer in producers.items():
        assert hashes(producer, "artifact") <= hashes(consumer, "input"), consumer


@pytest.fixture
def sampling(tiny: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Flags of a command that samples and logs, in a folder with problems and a store."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    tiny.problems.write_parquet("problems.parquet")
    flags = "--sampler transformers --problems problems.parquet --samples 2 --max-new-tokens 4 --log base"
    return f"--model {tiny.folder} {flags}"


def test_a_store_that_fails_at_the_end_costs_no_sampling(
    sampling: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = f"difficulty {sampling} --out m.parquet".split()

    def failing(*given: Any, **named: Any) -> str:
        raise tracking.TrackingError("the store is full")

    with monkeypatch.context() as patch:
        patch.setattr(tracking, "log_artifacts", failing)
        assert main(asked) == 2
    said = capsys.readouterr().err
    assert "error: the store is full; m.parquet is written, and the same command with --overwrite logs it" in said
    before = Path("m.parquet").read_bytes()
    assert main([*asked, "--overwrite"]) == 0
    printed = capsys.readouterr()
    assert "logged as runs:/" in printed.out
    assert "tokens/s" not in printed.err
    assert Path("m.parquet").read_bytes() == before
    assert not list(tmp_path.glob("*.partial"))


def test_runs_of_two_seeds_in_one_experiment_read_as_one_table(sampling: str) -> None:
    asked = f"generate {sampling}".split()
    for number, more in enumerate([["--seed", "0"], ["--seed", "1"], ["--seed", "0"], ["--phase", "eval"]]):
        assert main([*asked, *more, "--out", f"{number}.parquet"]) == 0
    assert Path("0.parquet").read_bytes() == Path("2.parquet").read_bytes()
    joined = tables.read("mlflow:base", "rollouts")
    assert joined["run_id"].n_unique() == 3
    assert len(joined) == 3 * 12
    assert set(joined["phase"]) == {"difficulty", "eval"}
    assert main(["difficulty", "mlflow:base", "--problems", "problems.parquet", "--out", "measured.parquet"]) == 0
    assert set(pl.read_parquet("measured.parquet")["pass_rate_samples"]) == {6}
    logged = read("mlflow:base", "rollouts")
    assert sorted(map(tracking.content_hash, logged.files)) == sorted(
        tracking.content_hash(Path(f"{number}.parquet")) for number in range(4)
    )
    fresh = ["difficulty", "3.parquet", "--fresh", "--problems", "measured.parquet", "--out", "fresh.parquet"]
    assert main(fresh) == 0
    assert {"pass_rate", "fresh_pass_rate"} <= set(pl.read_parquet("fresh.parquet").columns)
