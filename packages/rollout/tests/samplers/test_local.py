"""Forced interruption by rule, and the over-long penalty with an engine; ``every_sampler`` interrupts engines."""

from collections import Counter
from concurrent.futures import Future
from typing import Any

import numpy as np
import polars as pl
import pytest
from isocompute.rollout import Interruption, RolloutError, Sampling, open_sampler
from isocompute.rollout.samplers.base import Feed
from isocompute.rollout.samplers.local import controlled, drawn_length
from isocompute.rollout.samplers.sampling import (
    Draw,
    LengthPenalty,
    Request,
    Response,
    aborted,
    response_seed,
)
from isocompute.rollout.samplers.transformers import TransformersSampler
from isocompute.rollout.scoring.scorer import Verdict


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


def interrupted(thinker: Any, *, count: int = 1, **other: Any) -> tuple[list[Request], Any]:
    """What is asked first instead of some requests, and what follows their responses."""
    interruption = Interruption(**{"lowest": 3, "highest": 3, "phrase": "time is up </think>"} | other)
    requests = [Request(prompt_ids=[6], seed=5 + number, max_new_tokens=12) for number in range(count)]
    return controlled(requests, Sampling(max_new_tokens=12, interruption=interruption), thinker)


def test_lengths_are_drawn_uniformly() -> None:
    cut = Interruption(lowest=10, highest=19)
    drawn = Counter(drawn_length(response_seed(0, "train", 1, "p", sample), cut) for sample in range(20_000))
    assert sorted(drawn) == list(range(10, 20))
    # Six standard deviations of a count of a tenth of 20,000.
    assert all(abs(count - 2000) < 6 * (20_000 * 0.1 * 0.9) ** 0.5 for count in drawn.values())


class SlowScorer:
    """Has no verdict until it is told to."""

    def __init__(self) -> None:
        self.asked: list[tuple[Future[list[Verdict]], int]] = []

    def check(self, verifiers: list[str]) -> None:
        pass

    def flush(self, *, held: float = 0.0) -> None:
        pass

    def submit(self, items: list[Any], *, hold: bool = False) -> "Future[list[Verdict]]":
        self.asked.append((Future(), len(items)))
        return self.asked[-1][0]


@pytest.mark.slow
def test_new_groups_begin_while_verdicts_are_slow_and_all_come_out_in_their_rows(tiny: Any) -> None:
    scorer: Any = SlowScorer()
    sampling = Sampling(max_new_tokens=4, max_prompt_tokens=16)
    sampler = TransformersSampler(str(tiny.folder), sampling, scorer=scorer)
    draw = Draw(samples=2, seed=1, step=1)
    feed, groups = Feed(), []
    feed.add(tiny.problems[:2], draw)
    stream = sampler.answer(feed)
    while len(scorer.asked) < 2:
        assert next(stream) is None
    # Every group has been generated, and still it goes on.
    assert [next(stream) for _ in range(3)] == [None] * 3
    feed.add(tiny.problems[2:3], draw)
    while len(scorer.asked) < 3:
        assert next(stream) is None
    for number, (verdicts, count) in enumerate(scorer.asked):
        verdicts.set_result([Verdict(reward=number / 2)] * count)
    groups = [pl.DataFrame(group) for group in stream if group is not None]
    table = pl.concat(groups).sort("problem_id", "sample")
    alone = tiny.problems[:3].sort("problem_id")
    assert table["problem_id"].to_list() == [name for name in alone["problem_id"] for _ in range(2)]
    rewards = dict(zip(tiny.problems["problem_id"][:3], (0.0, 0.5, 1.0), strict=True))
    assert table["reward"].to_list() == [rewards[name] for name in table["problem_id"]]
    fresh = TransformersSampler(str(tiny.folder), sampling).sample(tiny.problems[:3], samples=2, seed=1, step=1)
    assert table["response_ids"].equals(fresh["response_ids"])


def test_a_response_that_has_closed_its_thinking_goes_on_without_the_phrase(thinker: Any) -> None:
    _, control = interrupted(thinker)
    following = control(0, response([4, 8, 6]))
    assert (following.prompt_ids, following.max_new_tokens) == ([6, 4, 8, 6], 9)
    whole = control(0, response([5]))
    assert (whole.ids.tolist(), whole.sampled) == ([4, 8, 6, 5], None)
    # A phrase that closes nothing interrupts every response that is still going on.
    _, control = interrupted(thinker, phrase="time is up")
    assert control(0, response([4, 8, 6])).prompt_ids == [6, 4, 8, 6, 1, 2, 3]


def test_a_response_is_interrupted_at_most_once_and_not_when_it_has_ended(thinker: Any) -> None:
    _, control = interrupted(thinker, count=3)
    ended, failed = response([4, 5, 6], "stop"), aborted("the engine is gone")
    assert control(0, ended) is ended
    assert control(1, failed) is failed
    assert isinstance(control(2, response([4, 5, 6])), Request)
    whole = control(2, response([4] * 5))
    assert (whole.finish_reason, len(whole.ids)) == ("length", 12)
    # One whose second part fails has failed.
    assert isinstance(control(2, response([4, 5, 6])), Request)
    assert control(2, failed) is failed


def test_what_a_server_leaves_out_or_cuts_is_kept_so(thinker: Any) -> None:
    """No log-probabilities, tokens made from text, and a text that ends before a stop text."""
    _, control = interrupted(thinker)
    control(0, response([4, 5, 6], scored=False, retokenized=True))
    whole = control(0, response([7, 6], "stop", scored=False, text=" and"))
    assert (len(whole.ids), len(whole.logprobs), whole.retokenized) == (9, 0, True)
    assert whole.text == "so 1 2 time is up and"
    # More tokens than were asked for, as a text may have when it is tokenized again, leave nothing to ask for.
    longer = response([4] * 9)
    assert interrupted(thinker)[1](0, longer) is longer


def test_a_phrase_that_leaves_no_room_or_has_no_token_is_refused(thinker: Any) -> None:
    with pytest.raises(RolloutError, match="inserts 4; max_new_tokens"):
        interrupted(thinker, highest=8)
    interrupted(thinker, highest=7)
    with pytest.raises(RolloutError, match="which the tokenizer makes"):
        interrupted(lambda text, add_special_tokens: {"input_ids": []})


@pytest.mark.slow("an engine")
def test_the_rival_takes_reward_off_long_right_responses_in_training_alone(tiny: Any) -> None:
    penalty, problems = LengthPenalty(longest=3, margin=2), tiny.problems.head(1)
    sampling = Sampling(max_new_tokens=8, max_prompt_tokens=8, keep_text=True, length_penalty=penalty)
    engine = open_sampler("transformers", str(tiny.folder), sampling)
    texts = tiny.sample(engine, problems, samples=400)["text"].str.strip_chars()
    answer = texts.filter(texts.str.contains(r"^\d$")).mode()[0]
    for phase in ("train", "eval"):
        rollouts = tiny.sample(engine, problems.with_columns(answer=pl.lit(answer)), samples=400, phase=phase)
        plain = [float(text.strip() == answer) for text in rollouts["text"]]
        lengths = rollouts["response_ids"].list.len().to_list()
        expected = [penalty.reward(r, tokens=n, phase=phase) for r, n in zip(plain, lengths, strict=True)]
        assert rollouts["reward"].to_list() == expected
        assert (expected != plain) == (phase == "train")
