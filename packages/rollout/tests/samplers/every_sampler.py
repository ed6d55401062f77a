"""Tests of every sampler, in process, in an actor or behind a server: tables, seeds, options, streams, refusals.

The files that import these tests define ``sampler``, one that is open on the folder of ``tiny``, and may define
``prompt_ids`` where prompts are not the plain text. Each test leaves the sampler as it was.
"""

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import polars as pl
import pytest
from isocompute.rollout import Interruption, RolloutError
from isocompute.rollout.contract import tables
from isocompute.rollout.samplers.local import drawn_length
from isocompute.rollout.samplers.sampling import response_seed


@pytest.fixture
def prompt_ids(tiny: Any) -> Callable[[str], list[int]]:
    """The tokens of a prompt as the table should have them."""
    ids: Callable[[str], list[int]] = tiny.ids
    return ids


@pytest.fixture
def use(sampler: Any, tiny: Any) -> Iterator[Callable[..., Any]]:
    """Sample with other options until the test ends."""

    def change(**options: Any) -> Any:
        changed = dataclasses.replace(tiny.sampling, **options)
        sampler.use(changed)
        return changed

    yield change
    sampler.use(tiny.sampling)


@pytest.fixture(scope="module")
def policy(tiny: Any) -> Any:
    """The model whose weights the sampler has."""
    import torch
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(tiny.folder, dtype=torch.float32).eval()


def test_a_table_has_a_row_per_response_in_the_order_of_problems_and_samples(
    sampler: Any, tiny: Any, policy: Any, prompt_ids: Any
) -> None:
    rollouts = tiny.sample(sampler, run_id="mine", step=7)
    asked = [(problem, sample) for problem in sorted(tiny.problems["problem_id"]) for sample in range(4)]
    assert rollouts.select("problem_id", "sample").rows() == asked
    assert set(rollouts.select("run_id", "step", "phase").rows()) == {("mine", 7, "train")}
    prompts = dict(tiny.problems.select("problem_id", "prompt").rows())
    assert rollouts["prompt_ids"].to_list() == [prompt_ids(prompts[problem]) for problem, _ in asked]
    assert rollouts["response_ids"].list.len().is_between(1, 8).all()
    assert rollouts["failure"].null_count() == rollouts["score_error"].null_count() == len(asked)
    assert tiny.largest_difference(policy, rollouts) < 1e-4
    # Without problems it has the same columns.
    assert sampler.sample(tiny.problems.head(0), samples=4, seed=3, step=1).columns == rollouts.columns


def test_tokens_do_not_depend_on_the_batch(sampler: Any, tiny: Any) -> None:
    whole = tiny.sample(sampler)
    parts = [tiny.sample(sampler, tiny.problems[i : i + 1]) for i in reversed(range(len(tiny.problems)))]
    joined = tables.concat(parts, "rollouts")
    assert whole["response_ids"].to_list() == joined["response_ids"].to_list()


def test_tokens_follow_from_step_seed_and_the_number_of_a_sample(sampler: Any, tiny: Any) -> None:
    whole, later = tiny.sample(sampler, samples=4), tiny.sample(sampler, samples=2, first_sample=2)
    assert tiny.sample(sampler)["response_ids"].to_list() == whole["response_ids"].to_list()
    for other in ({"step": 2}, {"seed": 4}):
        assert tiny.sample(sampler, **other)["response_ids"].to_list() != whole["response_ids"].to_list()
    same = ["problem_id", "sample", "prompt_ids", "response_ids", "reward", "finish_reason"]
    assert later.select(same).equals(whole.filter(pl.col("sample") >= 2).select(same))


def test_a_second_table_with_the_same_ids_is_answered_with_its_own_prompts(
    sampler: Any, tiny: Any, prompt_ids: Any
) -> None:
    first = tiny.sample(sampler)
    second = tiny.sample(sampler, tiny.problems.with_columns(prompt=pl.lit("9-9=")))
    assert second["prompt_ids"].to_list() == [prompt_ids("9-9=")] * len(second)
    assert tiny.sample(sampler).drop("logprobs").equals(first.drop("logprobs"))


def test_responses_end_with_a_stop_token_or_at_their_length_and_earn_what_their_verifier_gives_their_text(
    sampler: Any, tiny: Any
) -> None:
    rollouts = tiny.sample(sampler, samples=32)
    for row in rollouts.iter_rows(named=True):
        assert (row["response_ids"][-1] == 1) == (row["finish_reason"] == "stop")
        assert 1 not in row["response_ids"][:-1]
        assert row["finish_reason"] == "stop" or len(row["response_ids"]) == 8
        assert row["reward"] == (tiny.tokenizer.decode(row["response_ids"], skip_special_tokens=True).strip() == "2")
    assert set(rollouts["finish_reason"]) == {"stop", "length"}
    assert 0 < rollouts["reward"].sum() < len(rollouts)


def test_a_stop_token_that_is_asked_for_ends_a_response(sampler: Any, tiny: Any, use: Any) -> None:
    three = tiny.ids("3")[0]
    free = tiny.sample(sampler, samples=16)["response_ids"].to_list()
    use(stop_token_ids=(three,))
    stopped = tiny.sample(sampler, samples=16)
    expected = [ids[: ids.index(three) + 1] if three in ids else ids for ids in free]
    assert stopped["response_ids"].to_list() == expected != free
    assert (stopped["finish_reason"] == "stop").to_list() == [ids[-1] in (1, three) for ids in expected]


def test_a_stop_text_ends_a_response_and_is_cut_off_its_text(sampler: Any, tiny: Any, use: Any) -> None:
    free = tiny.sample(sampler, samples=32)
    use(stop=("-", "12"), keep_text=True)
    stopped = tiny.sample(sampler, samples=32)
    assert sum(row["finish_reason"] == "stop" and row["response_ids"][-1] != 1 for row in stopped.to_dicts()) > 10
    for whole, row in zip(free["response_ids"].to_list(), stopped.iter_rows(named=True), strict=True):
        ids = row["response_ids"]
        text = tiny.tokenizer.decode(ids, skip_special_tokens=True)
        found = min((text.index(stop) for stop in ("-", "12") if stop in text), default=None)
        assert row["text"] == text[:found]
        assert ids == whole if found is None else whole[: len(ids)] == ids and text.endswith(("-", "12"))
    assert "text" not in free.columns
    assert stopped["text"].str.contains("\N{REPLACEMENT CHARACTER}").any()


def test_a_response_is_interrupted_at_a_length_of_its_own_and_goes_on_after_the_phrase(
    sampler: Any, tiny: Any, use: Any, policy: Any
) -> None:
    free, interruption = tiny.sample(sampler, samples=16), Interruption(lowest=2, highest=4, phrase="-1")
    use(interruption=interruption)
    rollouts, interrupted = tiny.sample(sampler, samples=16), Counter[bool]()
    for whole, row in zip(free["response_ids"].to_list(), rollouts.iter_rows(named=True), strict=True):
        ids = row["response_ids"]
        cut = drawn_length(response_seed(3, "train", 1, row["problem_id"], row["sample"]), interruption)
        ended_before = whole[:cut][-1] == 1
        interrupted[ended_before] += 1
        if ended_before:
            assert ids == whole
            assert all(row["sampled"])
        else:
            assert ids[: cut + 2] == whole[:cut] + tiny.ids("-1")
            assert cut + 2 < len(ids) <= 8
            assert row["sampled"] == [not (cut <= place < cut + 2) for place in range(len(ids))]
            assert row["finish_reason"] == ("stop" if ids[-1] == 1 else "length")
    assert min(interrupted.values()) > 5
    assert tiny.largest_difference(policy, rollouts) < 1e-4
    # Lengths and seeds are a response's own, whatever it is sampled with.
    fewer = tiny.sample(sampler, tiny.problems[2:4], samples=3)
    same = rollouts.join(fewer.select("problem_id", "sample"), on=["problem_id", "sample"], how="semi")
    assert same["response_ids"].to_list() == fewer["response_ids"].to_list()


def test_prompts_outside_ascii_arrive_whole(sampler: Any, tiny: Any, policy: Any, prompt_ids: Any) -> None:
    problems = tiny.problems.head(2).with_columns(prompt=pl.Series(["é+1=", "😀"]))
    rollouts = tiny.sample(sampler, problems)
    assert rollouts["prompt_ids"].to_list() == [prompt_ids("é+1=")] * 4 + [prompt_ids("😀")] * 4
    assert tiny.largest_difference(policy, rollouts) < 1e-4


@pytest.mark.parametrize(
    "options",
    [
        {"min_p": 0.2},
        {"temperature": 1.5, "top_p": 0.9, "top_k": 6, "min_p": 0.05},
    ],
    ids=lambda options: "-".join(options),
)
def test_log_probabilities_are_those_of_the_distribution_sampled_from(
    sampler: Any, tiny: Any, use: Any, policy: Any, options: Any
) -> None:
    free = tiny.sample(sampler, samples=8)
    changed = use(**options)
    rollouts = tiny.sample(sampler, samples=8)
    assert rollouts["response_ids"].to_list() != free["response_ids"].to_list()
    # A token that the options leave out would have log-probability -inf here.
    assert tiny.largest_difference(policy, rollouts, changed) < 1e-4


def test_temperature_0_takes_the_most_probable_token_with_its_untempered_log_probability(
    sampler: Any, tiny: Any, use: Any, policy: Any
) -> None:
    import torch

    changed = use(temperature=0.0)
    rollouts = tiny.sample(sampler)
    assert tiny.largest_difference(policy, rollouts, changed) < 1e-4
    for row in rollouts.iter_rows(named=True):
        with torch.no_grad():
            logits = policy(torch.tensor([row["prompt_ids"] + row["response_ids"]])).logits[0]
        best = logits.argmax(-1).tolist()
        assert row["response_ids"] == best[len(row["prompt_ids"]) - 1 : -1]
    assert tiny.sample(sampler, seed=9)["response_ids"].to_list() == rollouts["response_ids"].to_list()


def test_requests_may_be_held_to_fewer_tokens_than_the_sampler_was_opened_for_and_not_to_more(
    sampler: Any, tiny: Any, use: Any, prompt_ids: Any
) -> None:
    with pytest.raises(RolloutError, match="max_new_tokens is 9, and"):
        use(max_new_tokens=9)
    use(max_new_tokens=1, max_prompt_tokens=len(prompt_ids("1+1=")))
    assert set(tiny.sample(sampler, tiny.problems.head(1))["response_ids"].list.len()) == {1}
    with pytest.raises(RolloutError, match="max_prompt_tokens"):
        tiny.sample(sampler)


def test_a_problem_that_cannot_be_answered_or_scored_is_named_before_anything_is_sampled(
    sampler: Any, tiny: Any
) -> None:
    third = pl.when(pl.col("problem_id") == "p3")
    for change, message in (
        (third.then(pl.lit("1+1+1+1+1=" * 9)).otherwise("prompt").alias("prompt"), "problem p3 has"),
        (third.then(pl.lit("")).otherwise("prompt").alias("prompt"), "problem p3 has"),
        (pl.lit("nonsense").alias("verifier"), "verifier"),
    ):
        with pytest.raises(RolloutError, match=message):
            next(sampler.stream(tiny.problems.with_columns(change), samples=2, seed=3, step=1))


def test_a_stream_yields_every_group_whole_and_once(sampler: Any, tiny: Any) -> None:
    whole = tiny.sample(sampler, samples=5)
    groups = list(sampler.stream(tiny.problems, samples=5, seed=3, step=1, run_id="r"))
    assert sorted(group["problem_id"][0].as_py() for group in groups) == sorted(tiny.problems["problem_id"])
    for group in groups:
        assert len(set(group["problem_id"].to_pylist())) == 1
        assert group["sample"].to_pylist() == list(range(5))
    joined = pl.concat([pl.DataFrame(group) for group in groups]).sort("problem_id", "sample")
    assert joined.drop("logprobs").equals(whole.drop("logprobs"))


def test_a_stream_closed_early_leaves_the_sampler_usable(sampler: Any, tiny: Any) -> None:
    whole = tiny.sample(sampler)
    stream = sampler.stream(tiny.problems, samples=40, seed=3, step=1)
    next(stream)
    stream.close()
    assert tiny.sample(sampler).drop("logprobs").equals(whole.drop("logprobs"))
