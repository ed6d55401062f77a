"""Runs that a command does or goes on with: what is asked again, files that are there already, what the flags open."""

import argparse
import contextlib
import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from isocompute.rollout import RolloutError, open_sampler
from isocompute.rollout.cli import main
from isocompute.rollout.commands import settings
from isocompute.rollout.commands.run import ProgressLine
from isocompute.rollout.commands.settings import chosen
from isocompute.rollout.contract import tables
from isocompute.rollout.samplers.sampling import aborted

pytestmark = pytest.mark.slow("commands that sample")

Run = Callable[..., list[int]]


@given(st.sets(st.text(min_size=1, max_size=5), min_size=1, max_size=40), st.integers(1, 5), st.integers(1, 40))
def test_shards_are_a_partition_of_what_the_limit_leaves(ids: set[str], parts: int, limit: int) -> None:
    problems = pl.DataFrame({"problem_id": list(ids)})
    found: list[str] = []
    for part in range(1, parts + 1):
        with contextlib.suppress(RolloutError):
            found += chosen(problems, limit=limit, shard=f"{part}/{parts}")["problem_id"].to_list()
    assert sorted(found) == sorted(ids)[:limit]


@pytest.fixture
def run(tiny: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs a command; returns how many responses each call of its engine was asked for.

    The engine loses the responses to certain requests of a call, and may break down after some.
    """
    tiny.problems.write_parquet(tmp_path / "problems.parquet")
    flags = ["--sampler", "transformers", "--samples", "4", "--max-new-tokens", "8", "--model", str(tiny.folder)]

    def run(command: str, *more: str, lost: int | None = None, breaks_after: int | None = None, code: int = 0) -> Any:
        calls: list[int] = []

        def opened(*given: Any, **options: Any) -> Any:
            engine: Any = open_sampler(*given, **options)
            generate = engine._generate

            def unsteady(requests: Any, control: Any) -> Iterator[Any]:
                calls.append(len(requests))
                for done, (i, response) in enumerate(filter(None, generate(requests, control))):
                    if done == breaks_after:
                        raise RolloutError("the engine broke down")
                    yield i, aborted("the engine failed") if i == lost else response

            engine._generate = unsteady
            return engine

        monkeypatch.setattr(settings, "open_sampler", opened)
        problems, out = str(tmp_path / "problems.parquet"), str(tmp_path / f"{command}.parquet")
        assert main([command, *flags, "--problems", problems, "--out", out, *more]) == code
        return calls

    return run


def test_an_engine_that_breaks_down_loses_only_the_groups_in_flight(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run("generate", breaks_after=14, code=2)
    assert "of 6 groups are kept" in capsys.readouterr().err
    assert run("generate")[0] < 24
    found = pl.read_parquet(tmp_path / "generate.parquet")
    assert run("generate", "--overwrite") == [24]
    assert found.drop("logprobs").equals(pl.read_parquet(tmp_path / "generate.parquet").drop("logprobs"))


@pytest.mark.parametrize(("command", "again"), [("generate", []), ("difficulty", ["--overwrite"])])
def test_a_run_that_lacks_responses_says_so_and_goes_on_with_the_problems_that_lack_them(
    command: str, again: list[str], run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # The first request of every call: one response of a single problem, three times.
    assert run(command, lost=0) == [24, 1, 1]
    assert "1 of 6 problems have fewer" in capsys.readouterr().err
    assert run(command, *again) == [4]
    assert "fewer than" not in capsys.readouterr().err
    whole = pl.read_parquet(tmp_path / f"{command}.parquet")
    assert not list(tmp_path.glob("*.partial"))
    if command == "generate":
        # A finished table is this run's, and nothing of it is asked again.
        assert run(command) == []
    assert run(command, "--overwrite") == [24]
    anew = pl.read_parquet(tmp_path / f"{command}.parquet")
    assert whole.drop("logprobs", strict=False).equals(anew.drop("logprobs", strict=False))


def test_unfinished_work_with_other_settings_is_refused_and_stays(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run("generate", lost=0)
    for flags in (["--temperature", "0.5"], ["--phase", "eval"]):
        before = (tmp_path / "generate.parquet").read_bytes()
        assert run("generate", "--overwrite", *flags, code=2) == []
        assert flags[0].strip("-").replace("temperature", "sampling") in capsys.readouterr().err
        assert (tmp_path / "generate.parquet").read_bytes() == before
    assert run("generate") == [4]


def test_a_kill_between_two_files_is_gone_on_from(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    besides = tmp_path / "besides.parquet"
    write = tables.write

    def killed(table: pl.DataFrame, name: str, path: Path) -> None:
        if name == "problems":
            raise KeyboardInterrupt
        write(table, name, path)

    with monkeypatch.context() as patch:
        patch.setattr("isocompute.rollout.contract.tables.write", killed)
        run("difficulty", "--rollouts-out", str(besides), code=130)
    before = besides.read_bytes()
    assert run("difficulty", "--rollouts-out", str(besides), "--seed", "1", code=2) == []
    assert run("difficulty", "--rollouts-out", str(besides)) == []
    assert besides.read_bytes() == before
    assert (tmp_path / "difficulty.parquet").exists()


def test_addresses_and_protocol_of_servers_reach_the_sampler(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
    monkeypatch.setattr(settings, "open_sampler", lambda *given, **named: opened.append((given, named)))
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    parser = argparse.ArgumentParser()
    settings.add_sampling(parser, required=True, samples=4, shards=True)
    given = "--model m --sampler openai --base-url http://a/v1 --base-url http://b/v1 --protocol chat --top-k 5"
    settings.settings_from(parser.parse_args(given.split())).open(8)
    [((kind, model, sampling), options)] = opened
    assert (kind, model, sampling.top_k) == ("openai", "m", 5)
    urls = ["http://a/v1", "http://b/v1"]
    del options["prompting"], options["scorer"]
    assert options == {"base_urls": urls, "protocol": "chat", "api_key": "secret"}


def test_prompts_are_as_the_flags_say(tiny: Any, tmp_path: Path) -> None:
    problems, out = (str(tmp_path / f"{name}.parquet") for name in ("problems", "rollouts"))
    tiny.problems.write_parquet(problems)
    (tmp_path / "examples.jsonl").write_text('{"prompt": "3+3=", "answer": "6"}\n')
    asked = f"generate --model {tiny.folder} --sampler transformers --problems {problems} --samples 2 --out {out}"
    few = f"--max-new-tokens 4 --few-shot {tmp_path}/examples.jsonl --system 9 --separator +"
    assert main([*asked.split(), *few.split()]) == 0
    rollouts = pl.read_parquet(out)
    prompt = tiny.tokenizer.decode(rollouts.filter(pl.col("problem_id") == "p0")["prompt_ids"][0].to_list())
    assert prompt == "9+3+3=6+1+1="


def said(*, terminal: bool = False, kept: int = 0) -> list[str]:
    """The lines on 60 groups that take a second each, after some that an earlier process has sampled."""
    stream, seconds = io.StringIO(), iter(range(70))
    stream.isatty = lambda: terminal  # type: ignore[method-assign]
    progress = ProgressLine(stream=stream, clock=lambda: float(next(seconds)))
    progress.total += 60 + kept
    columns = {"finish_reason": ["aborted", "stop"], "score_error": [None, "timeout"], "response_ids": [[1] * 5] * 2}
    group = pa.record_batch({name: pa.array(values) for name, values in columns.items()})
    for _ in range(kept):
        progress.add(group, kept=True)
    progress.start()
    for _ in range(60):
        progress.add(group)
    progress.close()
    return stream.getvalue().split("\r" if terminal else "\n")


def test_progress_is_a_line_every_ten_seconds_and_one_that_is_rewritten_on_a_terminal() -> None:
    lines = said()
    assert lines[0] == "10/60 groups, 20 responses, 10 tokens/s, 10 aborted, 10 score errors, 50 s left"
    assert (len(lines), "left" in lines[-2], lines[-1]) == (8, False, "")
    assert len(said(terminal=True)) == 62
    # Groups that an earlier process sampled say nothing of the speed.
    assert said(kept=100)[0].startswith("110/160 groups, 220 responses, 10 tokens/s")
    assert said(kept=100)[0].endswith(" 50 s left")
