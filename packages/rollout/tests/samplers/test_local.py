"""Forced interruption, by rule and with a real engine."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from isocompute.rollout import Interruption, RolloutError, Sampling, open_sampler
from isocompute.rollout.samplers.local import controlled, drawn_length
from isocompute.rollout.samplers.sampling import LengthPenalty, Request, Response, aborted, response_seed

torch = pytest.importorskip("torch")

CUT = Interruption(lowest=2, highest=4, phrase="-1")


def response(ids: list[int], finish_reason: str = "length", *, scored: bool = True, **other: Any) -> Response:
    logprobs = np.full(len(ids) if scored else 0, -0.5, np.float32)
    return Response(ids=np.array(ids, np.int32), logprobs=logprobs, finish_reason=finish_reason, **other)


@pytest.fixture(scope="module")
def thinker() -> Any:
    """A tokenizer of words with a closing tag that is a special token."""
    transformers = pytest.importorskip("transformers")
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = ["<unk>", "time", "is", "up", "so", "1", "2", "and"]
    inner = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    made = transformers.PreTrainedTokenizerFast(tokenizer_object=inner, unk_token="<unk>")
    made.add_special_tokens({"additional_special_tokens": ["</think>"]})
    return made


def interrupting(thinker: Any, *, lowest: int = 3, highest: int = 3, phrase: str = "time is up </think>") -> Sampling:
    return Sampling(max_new_tokens=12, interruption=Interruption(lowest=lowest, highest=highest, phrase=phrase))


@pytest.fixture(scope="module")
def engine(tiny: Any) -> Any:
    return open_sampler("transformers", str(tiny.folder), tiny.sampling)


def test_lengths_are_drawn_uniformly() -> None:
    cut = Interruption(lowest=10, highest=19)
    drawn = Counter(drawn_length(response_seed(0, "train", 1, "p", sample), cut) for sample in range(20_000))
    assert sorted(drawn) == list(range(10, 20))
    # Six standard deviations of a count of a tenth of 20,000.
    assert all(abs(count - 2000) < 6 * (20_000 * 0.1 * 0.9) ** 0.5 for count in drawn.values())


def test_a_response_that_is_still_going_on_is_cut_and_goes_on_after_the_phrase(thinker: Any) -> None:
    asked = Request(prompt_ids=[6, 6], seed=5, max_new_tokens=12)
    (first,), control = controlled([asked], interrupting(thinker), thinker)
    assert (first.prompt_ids, first.seed, first.max_new_tokens) == ([6, 6], 5, 3)
    following = control(0, response([4, 5, 6]))
    assert isinstance(following, Request)
    phrase = [1, 2, 3, 8]
    assert following.prompt_ids == [6, 6, 4, 5, 6, *phrase]
    assert following.seed not in (5, 0)
    # The budget counts the inserted tokens.
    assert following.max_new_tokens == 12 - 3 - 4
    whole = control(0, response([5, 4], "stop"))
    assert isinstance(whole, Response)
    assert whole.ids.tolist() == [4, 5, 6, *phrase, 5, 4]
    assert whole.logprobs.tolist() == [-0.5] * 3 + [0.0] * 4 + [-0.5] * 2
    assert whole.sampled is not None
    assert whole.sampled.tolist() == [True] * 3 + [False] * 4 + [True] * 2
    assert (whole.finish_reason, whole.text, whole.retokenized) == ("stop", None, False)


def test_a_response_that_has_closed_its_thinking_goes_on_without_the_phrase(thinker: Any) -> None:
    asked = Request(prompt_ids=[6], seed=5, max_new_tokens=12)
    _, control = controlled([asked], interrupting(thinker), thinker)
    following = control(0, response([4, 8, 6]))
    assert isinstance(following, Request)
    assert following.prompt_ids == [6, 4, 8, 6]
    assert following.max_new_tokens == 9
    whole = control(0, response([5]))
    assert isinstance(whole, Response)
    assert (whole.ids.tolist(), whole.sampled) == ([4, 8, 6, 5], None)
    # A phrase that closes nothing interrupts every response that is still going on.
    _, control = controlled([asked], interrupting(thinker, phrase="time is up"), thinker)
    following = control(0, response([4, 8, 6]))
    assert isinstance(following, Request)
    assert following.prompt_ids == [6, 4, 8, 6, 1, 2, 3]


def test_a_response_is_interrupted_at_most_once_and_not_when_it_has_ended(thinker: Any) -> None:
    asked = [Request(prompt_ids=[6], seed=seed, max_new_tokens=12) for seed in range(3)]
    _, control = controlled(asked, interrupting(thinker), thinker)
    ended, failed = response([4, 5, 6], "stop"), aborted("the engine is gone")
    assert control(0, ended) is ended
    assert control(1, failed) is failed
    assert isinstance(control(2, response([4, 5, 6])), Request)
    whole = control(2, response([4] * 5))
    assert isinstance(whole, Response)
    assert (whole.finish_reason, len(whole.ids)) == ("length", 12)
    # One whose second part fails has failed.
    assert isinstance(control(2, response([4, 5, 6])), Request)
    assert control(2, failed) is failed


def test_what_a_server_leaves_out_or_cuts_is_kept_so(thinker: Any) -> None:
    """No log-probabilities, tokens made from text, and a text that ends before a stop text."""
    _, control = controlled([Request(prompt_ids=[6], seed=5, max_new_tokens=12)], interrupting(thinker), thinker)
    control(0, response([4, 5, 6], scored=False, retokenized=True))
    whole = control(0, response([7, 6], "stop", scored=False, text=" and"))
    assert isinstance(whole, Response)
    assert (len(whole.ids), len(whole.logprobs), whole.retokenized) == (9, 0, True)
    assert whole.text == "so 1 2 time is up and"
    # More tokens than were asked for, as a text may have when it is tokenized again, leave nothing to ask for.
    control = controlled([Request(prompt_ids=[6], seed=5, max_new_tokens=12)], interrupting(thinker), thinker)[1]
    longer = response([4] * 9)
    assert control(0, longer) is longer


def test_a_phrase_that_leaves_no_room_or_has_no_token_is_refused(thinker: Any) -> None:
    asked = [Request(prompt_ids=[6], seed=5, max_new_tokens=12)]
    with pytest.raises(RolloutError, match="inserts 4; max_new_tokens"):
        controlled(asked, interrupting(thinker, highest=8), thinker)
    controlled(asked, interrupting(thinker, highest=7), thinker)
    nothing = lambda text, add_special_tokens: {"input_ids": []}  # noqa: E731
    with pytest.raises(RolloutError, match="which the tokenizer makes"):
        controlled(asked, interrupting(thinker), nothing)


@pytest.mark.slow("an engine")
def test_an_engine_is_interrupted(engine: Any, tiny: Any, tmp_path: Path) -> None:
    policy, free = tiny.save(tmp_path, seed=0), tiny.sample(engine, samples=16)
    engine.use(Sampling(max_new_tokens=8, max_prompt_tokens=8, interruption=CUT))
    rollouts = tiny.sample(engine, samples=16)
    fewer = tiny.sample(engine, tiny.problems[2:4], samples=3)
    interrupted = Counter[str]()
    for whole, row in zip(free["response_ids"].to_list(), rollouts.iter_rows(named=True), strict=True):
        ids, seed = row["response_ids"], response_seed(3, "train", 1, row["problem_id"], row["sample"])
        cut = drawn_length(seed, CUT)
        ended_before = whole[:cut][-1] == 1
        interrupted[str(ended_before)] += 1
        if ended_before:
            assert ids == whole
            assert all(row["sampled"])
        else:
            assert ids[: cut + 2] == whole[:cut] + tiny.ids(CUT.phrase)
            assert cut + 2 < len(ids) <= 8
            assert row["sampled"] == [not (cut <= place < cut + 2) for place in range(len(ids))]
            assert row["finish_reason"] == ("stop" if ids[-1] == 1 else "length")
        with torch.no_grad():
            scores = policy(torch.tensor([row["prompt_ids"] + ids])).logits[0].log_softmax(-1)
        begin = len(row["prompt_ids"]) - 1
        expected = [float(scores[begin + i, t]) if row["sampled"][i] else 0.0 for i, t in enumerate(ids)]
        assert np.abs(np.array(row["logprobs"]) - expected).max() < 1e-4
    assert min(interrupted.values()) > 5
    # Lengths and seeds are a response's own, whatever it is sampled with.
    same = rollouts.join(fewer.select("problem_id", "sample"), on=["problem_id", "sample"], how="semi")
    assert same["response_ids"].to_list() == fewer["response_ids"].to_list()


@pytest.mark.slow("an engine")
@pytest.mark.parametrize("phase", ["train", "eval"])
def test_the_rival_takes_reward_off_long_right_responses_in_training_alone(engine: Any, tiny: Any, phase: str) -> None:
    engine.use(Sampling(max_new_tokens=8, max_prompt_tokens=8, keep_text=True))
    problems = tiny.problems.head(1)
    ended = tiny.sample(engine, problems, samples=400, phase=phase).filter(pl.col("text").str.contains(r"^\d$"))
    problems = problems.with_columns(answer=pl.lit(ended["text"].mode()[0]))
    plain = tiny.sample(engine, problems, samples=400, phase=phase)
    penalty = LengthPenalty(longest=3, margin=2)
    engine.use(Sampling(max_new_tokens=8, max_prompt_tokens=8, length_penalty=penalty))
    penalised = tiny.sample(engine, problems, samples=400, phase=phase)
    assert plain["response_ids"].to_list() == penalised["response_ids"].to_list()
    lengths = plain["response_ids"].list.len().to_list()
    expected = [penalty.reward(r, tokens=n, phase=phase) for r, n in zip(plain["reward"], lengths, strict=True)]
    assert penalised["reward"].to_list() == expected
    assert (expected != plain["reward"].to_list()) == (phase == "train")
