"""Sampling that is killed, interrupted or split, and what comes of it: the same table."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import hashed
import polars as pl
import pytest
from isocompute.rollout.cli import main
from isocompute.rollout.contract import tables

pytestmark = pytest.mark.slow("processes that sample and are killed")

PROBLEMS = 120


def asked(tiny: Any, problems: Path, out: Path, *, command: str = "generate") -> list[str]:
    # Few at a time, so that there is something to kill.
    flags = "--sampler transformers --samples 2 --max-new-tokens 4 --engine batch_size=4"
    return [command, *flags.split(), *f"--model {tiny.folder} --problems {problems} --out {out}".split()]


def stopped(arguments: list[str], out: Path, *, after: int, by: signal.Signals) -> tuple[int, str]:
    """Start a command, send it a signal once it has kept groups, and return its exit code and stderr."""
    kept = out.with_name(f"{out.name}.partial")
    # More than an earlier process has left.
    least = max(after, kept.stat().st_size + 1) if kept.exists() else after
    process = subprocess.Popen(
        [sys.executable, "-m", "isocompute.rollout.cli", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        # A shell's job in the background ignores it, and so do its children.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    while not kept.exists() or kept.stat().st_size < least:
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.01)
    process.send_signal(by)
    stderr = process.communicate()[1]
    return process.returncode, stderr


def assert_same(found: pl.DataFrame, expected: pl.DataFrame) -> None:
    """Compare rollouts; the last bit of a log-probability depends on how many prompts transformers has in a batch."""
    assert found.drop("logprobs").equals(expected.drop("logprobs"))
    assert found["logprobs"].list.len().equals(expected["logprobs"].list.len())
    difference = found["logprobs"].explode().to_numpy() - expected["logprobs"].explode().to_numpy()
    assert abs(difference).max() < 1e-5


def test_killed_and_interrupted_a_run_gives_the_table_of_one_that_was_not(
    tiny: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    problems, whole, whole_rollouts = (tmp_path / f"{name}.parquet" for name in ("problems", "whole", "whole_rollouts"))
    tables.write(hashed.problems(PROBLEMS), "problems", problems)
    assert main([*asked(tiny, problems, whole, command="difficulty"), "--rollouts-out", str(whole_rollouts)]) == 0
    assert f"{PROBLEMS}/{PROBLEMS} groups" in capsys.readouterr().err
    out, rollouts = tmp_path / "killed.parquet", tmp_path / "killed_rollouts.parquet"
    command = [*asked(tiny, problems, out, command="difficulty"), "--rollouts-out", str(rollouts)]
    draw = random.Random()
    code, _ = stopped(command, out, after=draw.randint(40_000, 200_000), by=signal.SIGKILL)
    assert code == -signal.SIGKILL
    assert not out.exists()
    assert not rollouts.exists()
    code, said = stopped(command, out, after=40_000, by=signal.SIGINT)
    assert code == 130
    last = said.strip().splitlines()[-1]
    assert last.startswith("interrupted; ")
    kept = int(last.removeprefix("interrupted; ").split()[0])
    assert 0 < kept < PROBLEMS
    assert f"{out}.partial" in last
    assert "Traceback" not in said
    assert main(command) == 0
    assert out.read_bytes() == whole.read_bytes()
    assert_same(pl.read_parquet(rollouts), pl.read_parquet(whole_rollouts))
    assert set(tmp_path.iterdir()) == {problems, whole, whole_rollouts, out, rollouts}


def test_shards_in_one_folder_and_a_limit_that_is_raised_give_the_table_of_the_whole(tiny: Any, tmp_path: Path) -> None:
    few, whole, short = (tmp_path / f"{name}.parquet" for name in ("few", "whole", "short"))
    tables.write(hashed.problems(PROBLEMS).sample(20, seed=0), "problems", few)
    assert main(asked(tiny, few, whole)) == 0
    expected = tables.read(whole, "rollouts")
    sizes = []
    for part in ("1/3", "2/3", "3/3"):
        assert main([*asked(tiny, few, tmp_path / "shards"), "--shard", part]) == 0
        sizes.append(len(pl.read_parquet(tmp_path / "shards" / part.replace("/", "-of-") / "rollouts.parquet")))
    assert sum(sizes) == 40
    assert min(sizes) > 0
    assert_same(tables.read(tmp_path / "shards", "rollouts"), expected)
    assert main([*asked(tiny, few, short), "--limit", "5"]) == 0
    first = pl.read_parquet(few).sort("problem_id")["problem_id"].head(5).to_list()
    assert pl.read_parquet(short)["problem_id"].unique().sort().to_list() == first
    assert main([*asked(tiny, few, short), "--limit", "6"]) == 2
    assert main([*asked(tiny, few, short), "--overwrite"]) == 0
    assert_same(pl.read_parquet(short), expected)
