"""What is asked of a sampler again, and what is not."""

import contextlib
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from isocompute.rollout import RolloutError, evaluate, open_sampler
from isocompute.rollout.cli import main
from isocompute.rollout.commands.sampling.journaled import JournaledSampler
from isocompute.rollout.commands.sampling.progress import Progress
from isocompute.rollout.commands.values import chosen
from isocompute.rollout.journal import Journal
from isocompute.rollout.samplers.sampling import aborted

pytestmark = pytest.mark.slow("processes that sample and are killed")

ASKED: dict[str, Any] = {"seed": 1, "step": 0, "phase": "eval", "run_id": "r"}


class Unsteady:
    """A sampler whose engine loses responses or breaks down, and that remembers what it was asked."""

    def __init__(self, tiny: Any) -> None:
        self.inner = open_sampler("transformers", str(tiny.folder), tiny.sampling)
        self.generate = self.inner._generate
        self.inner._generate = self._generate
        self.asked: list[int] = []
        self.lost: set[int] = set()
        self.breaks_after: int | None = None

    def _generate(self, requests: Any, control: Any) -> Any:
        self.asked.append(len(requests))
        for done, (i, response) in enumerate(self.generate(requests, control)):
            if done == self.breaks_after:
                raise RolloutError("the engine broke down")
            yield i, aborted("the engine failed") if i in self.lost else response


@pytest.fixture
def engine(tiny: Any) -> Unsteady:
    return Unsteady(tiny)


@contextlib.contextmanager
def journaled(engine: Unsteady, out: Path) -> Iterator[JournaledSampler]:
    """What a process has."""
    with Journal(out, "r", {}) as journal:
        yield JournaledSampler(lambda: engine.inner, journal, Progress(stream=io.StringIO()))


def test_groups_with_aborted_responses_are_asked_again_and_others_are_not(
    engine: Unsteady, tiny: Any, tmp_path: Path
) -> None:
    engine.lost = {1, 9}
    with journaled(engine, tmp_path / "r.parquet") as sampler:
        first = sampler.sample(tiny.problems, samples=4, **ASKED)
    assert (first["finish_reason"] == "aborted").sum() == 2
    engine.lost = set()
    with journaled(engine, tmp_path / "r.parquet") as sampler:
        second = sampler.sample(tiny.problems, samples=4, **ASKED)
    with journaled(engine, tmp_path / "r.parquet") as sampler:
        third = sampler.sample(tiny.problems, samples=4, **ASKED)
    assert engine.asked == [24, 8]
    assert (second["finish_reason"] == "aborted").sum() == 0
    assert third.equals(second)


def test_an_engine_that_breaks_down_loses_only_the_groups_in_flight(
    engine: Unsteady, tiny: Any, tmp_path: Path
) -> None:
    engine.breaks_after = 14
    with (
        pytest.raises(RolloutError, match=r"broke down; \d of 6 groups are kept in .*r.parquet.partial, and the same"),
        journaled(engine, tmp_path / "r.parquet") as sampler,
    ):
        sampler.sample(tiny.problems, samples=4, **ASKED)
    engine.breaks_after = None
    with journaled(engine, tmp_path / "r.parquet") as sampler:
        found = sampler.sample(tiny.problems, samples=4, **ASKED)
    assert engine.asked[1] < 24
    assert found.drop("logprobs").equals(engine.inner.sample(tiny.problems, samples=4, **ASKED).drop("logprobs"))


def test_an_evaluation_that_asks_lost_responses_again_is_resumed_too(
    engine: Unsteady, tiny: Any, tmp_path: Path
) -> None:
    asked: dict[str, Any] = {"samples": 4, "seed": 1, "at": 0, "run_id": "r"}
    engine.lost = {1}
    with journaled(engine, tmp_path / "r.parquet") as sampler:
        first = evaluate(sampler, tiny.problems, **asked)
    assert engine.asked == [24, 1]
    engine.lost = set()
    with journaled(engine, tmp_path / "r.parquet") as sampler:
        second = evaluate(sampler, tiny.problems, **asked)
    assert engine.asked == [24, 1, 4]
    assert first.pass_rates.equals(second.pass_rates.with_columns(successes=first.pass_rates["successes"]))
    assert (len(first.rollouts), len(second.rollouts)) == (25, 24)


@given(st.sets(st.text(min_size=1, max_size=5), min_size=1, max_size=40), st.integers(1, 5), st.integers(1, 40))
def test_shards_are_a_partition_of_what_the_limit_leaves(ids: set[str], parts: int, limit: int) -> None:
    problems = pl.DataFrame({"problem_id": list(ids)})
    found: list[str] = []
    for part in range(1, parts + 1):
        with contextlib.suppress(RolloutError):
            found += chosen(problems, limit=limit, shard=f"{part}/{parts}")["problem_id"].to_list()
    assert sorted(found) == sorted(ids)[:limit]


def test_system_prompt_examples_and_stops_reach_the_sampler(tiny: Any, tmp_path: Path) -> None:
    tiny.problems.write_parquet(tmp_path / "problems.parquet")
    (tmp_path / "examples.jsonl").write_text('{"prompt": "3+3=", "answer": "6"}\n')
    asked = f"generate --model {tiny.folder} --sampler transformers --problems {tmp_path}/problems.parquet --samples 1"
    few = (
        f"--max-new-tokens 4 --few-shot {tmp_path}/examples.jsonl --system 9 --separator + --keep-text --temperature 0"
    )
    out = tmp_path / "rollouts.parquet"
    assert main([*asked.split(), *few.split(), "--out", str(out)]) == 0
    rollouts = pl.read_parquet(out)
    sampler = open_sampler("transformers", str(tiny.folder), tiny.sampling)
    prompt = sampler.tokenizer.decode(rollouts.filter(pl.col("problem_id") == "p0")["prompt_ids"][0].to_list())
    assert prompt == "9+3+3=6+1+1="
    assert rollouts["text"].null_count() == 0


def test_scoring_again_reads_the_texts_where_they_are(tiny: Any, tmp_path: Path) -> None:
    problems, first, again = (str(tmp_path / f"{name}.parquet") for name in ("problems", "first", "again"))
    tiny.problems.write_parquet(problems)
    asked = f"--sampler transformers --samples 2 --max-new-tokens 4 --problems {problems} --model {tiny.folder}"
    assert main(["generate", *asked.split(), "--keep-text", "--out", first]) == 0
    texts = pl.read_parquet(first)["text"].to_list()
    pl.read_parquet(problems).with_columns(answer=pl.lit(texts[0].strip() or "none")).write_parquet(problems)
    assert main(["score", first, "--problems", problems, "--out", again]) == 0
    answer = texts[0].strip() or "none"
    assert pl.read_parquet(again)["reward"].to_list() == [float(text.strip() == answer) for text in texts]
