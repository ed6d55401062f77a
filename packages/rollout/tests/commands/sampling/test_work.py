"""Runs that a command does or goes on with: lost responses, files that are there already, what the flags open."""

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from isocompute.rollout import open_sampler
from isocompute.rollout.cli import main
from isocompute.rollout.commands.sampling import asked as asked_module
from isocompute.rollout.commands.sampling import flags
from isocompute.rollout.contract import tables
from isocompute.rollout.samplers.prompts import Prompting, PromptMaker
from isocompute.rollout.samplers.sampling import aborted

Run = Callable[..., list[int]]


@pytest.fixture
def run(tiny: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs a command with an engine that loses the responses to certain requests of a call."""
    tiny.problems.write_parquet(tmp_path / "problems.parquet")
    flags = ["--sampler", "transformers", "--samples", "4", "--max-new-tokens", "8", "--model", str(tiny.folder)]

    def run(command: str, *more: str, lost: set[int], code: int = 0) -> list[int]:
        calls: list[int] = []

        def opened(*given: Any, **options: Any) -> Any:
            sampler: Any = open_sampler(*given, **options)
            generate = sampler._generate

            def unsteady(requests: Any, control: Any) -> Any:
                calls.append(len(requests))
                for i, response in generate(requests, control):
                    yield i, aborted("the engine failed") if i in lost else response

            sampler._generate = unsteady
            return sampler

        monkeypatch.setattr(asked_module, "open_sampler", opened)
        problems, out = str(tmp_path / "problems.parquet"), str(tmp_path / f"{command}.parquet")
        assert main([command, *flags, "--problems", problems, "--out", out, *more]) == code
        return calls

    return run


def test_lost_responses_are_asked_again_at_once(run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("difficulty", lost={1}) == [24, 1]
    assert set(pl.read_parquet(tmp_path / "difficulty.parquet")["pass_rate_samples"]) == {4}
    assert "fewer than" not in capsys.readouterr().err
    assert not list(tmp_path.glob("*.partial"))


@pytest.mark.slow
@pytest.mark.parametrize("command", ["generate", "difficulty"])
def test_a_run_that_lacks_responses_says_so_and_goes_on_with_the_problems_that_lack_them(
    command: str, run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # The first request of every call: one response of a single problem, three times.
    assert run(command, lost={0}) == [24, 1, 1]
    assert "note: 1 of 6 problems have fewer than 4 responses" in capsys.readouterr().err
    assert run(command, "--overwrite", lost=set()) == [4]
    assert "fewer than" not in capsys.readouterr().err
    whole = pl.read_parquet(tmp_path / f"{command}.parquet")
    assert not list(tmp_path.glob("*.partial"))
    assert run(command, "--overwrite", lost=set()) == [24]
    again = pl.read_parquet(tmp_path / f"{command}.parquet")
    assert whole.drop("logprobs", strict=False).equals(again.drop("logprobs", strict=False))


def test_the_rendered_prompts_are_recorded_with_the_run(run: Run, tiny: Any, tmp_path: Path) -> None:
    run("generate", lost={0})
    [asked] = tmp_path.glob("generate.parquet.partial/*/asked.json")
    maker = PromptMaker(tiny.tokenizer, Prompting(), max_prompt_tokens=8)
    assert json.loads(asked.read_text())["prompts"] == maker.digest(tiny.problems)


@pytest.mark.slow
def test_a_finished_table_with_lost_responses_is_completed_and_one_without_is_final(run: Run, tmp_path: Path) -> None:
    run("generate", lost={0})
    out = tmp_path / "generate.parquet"
    for path in sorted(tmp_path.glob("*.partial/**/*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    assert run("generate", lost=set()) == [4]
    found = tables.read(out, "rollouts")
    assert (len(found), found["finish_reason"].is_in(["aborted"]).sum()) == (24, 0)
    assert run("generate", lost=set()) == []


def test_a_kill_between_two_files_is_gone_on_from(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    besides = tmp_path / "besides.parquet"
    write = tables.write

    def killed(table: pl.DataFrame, name: str, path: Path) -> None:
        if name == "problems":
            raise KeyboardInterrupt
        write(table, name, path)

    with monkeypatch.context() as patch:
        patch.setattr("isocompute.rollout.contract.tables.write", killed)
        run("difficulty", "--rollouts-out", str(besides), lost=set(), code=130)
    before = besides.read_bytes()
    assert run("difficulty", "--rollouts-out", str(besides), "--seed", "1", lost=set(), code=2) == []
    assert run("difficulty", "--rollouts-out", str(besides), lost=set()) == []
    assert besides.read_bytes() == before
    assert (tmp_path / "difficulty.parquet").exists()


def test_addresses_and_protocol_of_servers_reach_the_sampler(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
    monkeypatch.setattr(asked_module, "open_sampler", lambda *given, **named: opened.append((given, named)))
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    parser = argparse.ArgumentParser()
    flags.add_sampling(parser, required=True, samples=4)
    given = "--model m --sampler openai --base-url http://a/v1 --base-url http://b/v1 --protocol chat --top-k 5"
    asked_module.asked_from(parser.parse_args(given.split())).open()
    [((kind, model, sampling), options)] = opened
    assert (kind, model, sampling.top_k) == ("openai", "m", 5)
    urls = ["http://a/v1", "http://b/v1"]
    assert options == {"base_urls": urls, "protocol": "chat", "api_key": "secret"}
