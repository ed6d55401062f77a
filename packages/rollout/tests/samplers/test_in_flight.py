"""New weights enter a vLLM engine between two steps of decoding: its tokens, versions, caches, probes and ends.

One engine on CPU answers all questions. What replicas do with it is in ``replicas/test_pipe.py``.
"""

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from every_sync import replayed
from isocompute.rollout import RolloutError, Sampling, open_sampler
from isocompute.rollout.contract import tables
from isocompute.rollout.samplers.sampling import EngineConfig, Request, as_it_is

pytestmark = [
    pytest.mark.slow("vLLM"),
    pytest.mark.xdist_group("vllm"),
    pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed"),
]

LONG = 40
"""Most tokens of a response, few of which end before."""


@pytest.fixture(scope="module")
def engine(tiny: Any) -> Iterator[Any]:
    """An engine for eight responses at a time, which caches prompts."""
    sampling = Sampling(max_new_tokens=LONG, max_prompt_tokens=300)
    caching = EngineConfig(prefix_caching=True, max_batched_tokens=340)
    opened = open_sampler("vllm", str(tiny.folder), sampling, engine=caching, responses=8)
    yield opened
    opened.close()


@pytest.fixture(autouse=True)
def in_flight(engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let tables say which weights have drawn a token, as in a replica of a pipe."""
    monkeypatch.setattr(engine, "in_flight", True)


@pytest.fixture
def policies(engine: Any, tiny: Any, tmp_path: Path) -> Iterator[list[Any]]:
    """Three policies; the engine holds the first one before and after."""
    made = [tiny.save(tmp_path / str(seed), seed=seed) for seed in (0, 5, 6)]
    yield made
    # A test that fails may leave a stream open.
    engine.sync(made[0].state_dict(), 0, in_flight=True)


def scores(policies: list[Any], request: Request, response: Any) -> list[float]:
    """Log-probabilities of a response's tokens, each under the weights of its version."""
    starts, versions = zip(*response.versions, strict=True)
    row = {"prompt_ids": request.prompt_ids, "response_ids": response.ids.tolist()}
    return replayed(row | {"versions": versions, "version_starts": starts}, policies, Sampling())


def test_responses_go_on_with_the_cache_of_old_weights_and_say_which_have_drawn_each_token(
    engine: Any, tiny: Any, policies: list[Any]
) -> None:
    asked = tiny.requests(6, length=LONG)
    generation, finished = engine._generate(asked, as_it_is), {}
    for version in range(3):
        if version:
            engine.sync(policies[version].state_dict(), version, in_flight=True)
        for _ in range(7):
            one = next(generation)
            finished |= dict([one] if one else [])
    finished |= dict(filter(None, generation))
    assert len(finished) == 6
    spans = {response.versions for response in finished.values()}
    assert ((0, 0), (7, 1), (14, 2)) in spans
    for index, response in finished.items():
        expected = scores(policies, asked[index], response)
        assert np.abs(response.logprobs - np.array(expected)).max() < 1e-4
    # Other weights throughout, or a cache of the new ones, would be seen.
    whole = next(i for i, r in finished.items() if len(r.versions) == 3)
    alone = [scores([policies[i]] * 3, asked[whole], finished[whole]) for i in range(3)]
    assert min(np.abs(finished[whole].logprobs - np.array(one)).max() for one in alone) > 0.1


def test_another_stream_is_answered_with_the_current_weights_alone_while_the_first_goes_on(
    engine: Any, tiny: Any, policies: list[Any]
) -> None:
    stream = engine.stream(tiny.problems, samples=4, seed=3, step=1)
    # The first group comes while others are being answered.
    rows = [next(stream)]
    alone = []
    for version in (1, 2):
        with pytest.raises(RolloutError, match="a stream is still open"):
            engine.sync(policies[version].state_dict(), version)
        engine.sync(policies[version].state_dict(), version, in_flight=True)
        alone.append(tiny.sample(engine, phase="eval", samples=3))
        assert set(alone[-1]["weights_version"]) == {version}
        assert alone[-1]["versions"].to_list() == [[version]] * 18
        assert tiny.largest_difference(policies[version], alone[-1]) < 1e-4
    rows += stream
    table = pl.concat([pl.DataFrame(group) for group in rows]).sort("problem_id", "sample")
    tables.check(table, "rollouts", where="sampled")
    assert len(table) == 24
    assert (table["weights_version"] == table["versions"].list.first()).all()
    assert table["versions"].list.len().max() > 1
    for row in table.iter_rows(named=True):
        assert row["version_starts"][0] == 0
        assert row["versions"] == sorted(set(row["versions"]))
        assert row["version_starts"][-1] < len(row["response_ids"])
    # Nothing of the stream that went on beside is left in what is sampled now.
    assert tiny.sample(engine, phase="eval", samples=3)["response_ids"].equals(alone[-1]["response_ids"])


def test_no_request_reads_a_prompt_of_weights_before_and_those_of_the_same_weights_share_it(
    engine: Any, tiny: Any, policies: list[Any]
) -> None:
    # More than two blocks of the cache, which hold 128 tokens each.
    long = tiny.problems.head(1).with_columns(prompt=pl.lit("1+" * 140 + "1="))
    loop, read = engine._loop, []
    add = loop._engine.output_processor.process_outputs

    def noting(outputs: Any, *arguments: Any, **options: Any) -> Any:
        read.extend(each.prefill_stats.num_cached_tokens for each in outputs if each.prefill_stats is not None)
        return add(outputs, *arguments, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop._engine.output_processor, "process_outputs", noting)
        stream = engine.stream(tiny.problems, samples=4, seed=3, step=1)
        next(stream)
        assert tiny.largest_difference(policies[0], tiny.sample(engine, long, samples=2)) < 1e-4
        engine.sync(policies[1].state_dict(), 1, in_flight=True)
        read.clear()
        assert tiny.largest_difference(policies[1], tiny.sample(engine, long, samples=2)) < 1e-4
        stream.close()
    assert max(read) == 256


def test_what_is_abandoned_is_handed_out_with_its_tokens_so_far_and_nothing_is_left_in_the_engine(
    engine: Any, tiny: Any, policies: list[Any]
) -> None:
    whole = tiny.sample(engine, samples=3)
    stream = engine.stream(tiny.problems, samples=3, seed=3, step=1, run_id="r")
    groups = [next(stream)]
    engine.sync(policies[1].state_dict(), 1, in_flight=True)
    engine.sync(policies[0].state_dict(), 2, in_flight=True)
    assert engine.abandon()
    assert not engine._loop._engine.has_unfinished_requests()
    groups += stream
    table = pl.concat([pl.DataFrame(group) for group in groups]).sort("problem_id", "sample")
    assert len(table) == 18
    tokens = table["response_ids"].list.len()
    cut = table["finish_reason"] == "aborted"
    assert 0 < (cut & (tokens > 0)).sum() <= 8
    assert (cut & (tokens == 0)).sum() > 0
    for row, other in zip(table.iter_rows(named=True), whole["response_ids"].to_list(), strict=True):
        assert row["response_ids"] == other[: len(row["response_ids"])]
        assert len(row["logprobs"]) == len(row["response_ids"])
        assert (row["failure"] is None) == (row["finish_reason"] != "aborted")
    assert tiny.sample(engine, samples=3)["response_ids"].equals(whole["response_ids"])
