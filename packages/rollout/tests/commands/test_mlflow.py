"""From problems to a split through MLflow alone: what makes rollouts and what reads them are processes of their own."""

import contextlib
import io
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from isocompute.rollout.cli import main

pytest.importorskip("mlflow")
pytest.importorskip("transformers")


class Shell:
    """Runs the console script in one new, empty folder after another, as a process of its own or in this one."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.runs = 0

    def __call__(self, *arguments: str, apart: bool = False, code: int = 0) -> str:
        """Run a command and return what it said; its file, if it makes one, is ``made.parquet``."""
        self.runs += 1
        self.folder = self.home / f"folder{self.runs}"
        self.folder.mkdir()
        store = {"MLFLOW_TRACKING_URI": f"sqlite:///{self.home}/store/mlflow.db"}
        said = self._apart(arguments, store, code) if apart else self._here(arguments, store, code)
        assert "Traceback" not in said
        return said

    def _apart(self, arguments: tuple[str, ...], store: dict[str, str], code: int) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "isocompute.rollout.cli", *arguments, "--out", "made.parquet"],
            cwd=self.folder, capture_output=True, text=True, check=False,
            env={**os.environ, **store, "OMP_NUM_THREADS": "1"},
        )  # fmt: skip
        assert done.returncode == code, done.stderr
        return done.stdout if code == 0 else done.stderr

    def _here(self, arguments: tuple[str, ...], store: dict[str, str], code: int) -> str:
        said = {"out": io.StringIO(), "err": io.StringIO()}
        with (
            pytest.MonkeyPatch.context() as patch,
            contextlib.redirect_stdout(said["out"]),
            contextlib.redirect_stderr(said["err"]),
        ):
            patch.chdir(self.folder)
            for name, value in store.items():
                patch.setenv(name, value)
            assert main([*arguments, "--out", "made.parquet"]) == code
        return said["out" if code == 0 else "err"].getvalue()

    @property
    def made(self) -> Path:
        """The file of the latest command."""
        return self.folder / "made.parquet"


def test_mlflow_connects_the_commands_as_files_do(tiny: Any, tmp_path: Path) -> None:
    run, model = Shell(tmp_path), str(tiny.folder)
    source = tmp_path / "own.jsonl"
    questions = pl.DataFrame({"prompt": [f"{i % 9 + 1}+{i // 9 + 1}=" for i in range(36)], "answer": "2"})
    questions.write_ndjson(source)
    config = tmp_path / "problems.yaml"
    config.write_text(f"kind: file\npath: {source}\ntrain: 24\nvalidation: 12\n")
    answering = ("--model", model, "--sampler", "transformers", "--samples", "8", "--max-new-tokens", "2")
    interval = ("--interval", "0", "1", "--train", "10", "--validation", "5")

    said = run("problems", str(config), "--log", "set")
    assert "logged as runs:/" in said
    problems = run.made
    run("generate", *answering, "--problems", "mlflow:set", "--log", "base", apart=True)
    rollouts = run.made
    assert pl.read_parquet(rollouts)["reward"].sum() > 0
    run("score", "mlflow:base", "--problems", "mlflow:set", "--model", model, "--log", "scored", apart=True)
    scored = run.made
    run("difficulty", "mlflow:scored", "--problems", "mlflow:set", "--log", "measured")
    measured = run.made
    said = run("split", "mlflow:measured", *interval, "--log", "easy")
    easy = run.made

    # What one run made is a source too, by the address that the command printed.
    run("split", said.rpartition("logged as ")[2].strip(), *interval)
    assert run.made.read_bytes() == easy.read_bytes()
    refused = run("split", "mlflow:nothing", *interval, code=2)
    assert "error: mlflow:nothing: the store" in refused
    assert "has no such experiment (it has Default, base, easy, measured, scored, set)" in refused

    def by_files(*arguments: str) -> Path:
        made = tmp_path / f"{arguments[0]}.parquet"
        assert main([*arguments, "--out", str(made)]) == 0
        return made

    again = by_files("generate", *answering, "--problems", str(problems))
    assert again.read_bytes() == rollouts.read_bytes()
    again = by_files("score", str(again), "--problems", str(problems), "--model", model)
    assert again.read_bytes() == scored.read_bytes() == rollouts.read_bytes()
    again = by_files("difficulty", str(again), "--problems", str(problems))
    assert again.read_bytes() == measured.read_bytes()
    again = by_files("split", str(again), *interval)
    assert again.read_bytes() == easy.read_bytes()
