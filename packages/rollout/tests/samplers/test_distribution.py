"""The distribution of tokens and the ends of responses, against the rules written out token by token."""

import math
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from isocompute.rollout import Sampling
from isocompute.rollout.samplers.transformers import StopTexts, distribution, draw, uniforms

torch = pytest.importorskip("torch")

LOGITS = st.lists(st.integers(-40, 40).map(lambda n: n / 8), min_size=2, max_size=12)
SETTINGS = st.builds(
    Sampling,
    temperature=st.sampled_from([0.5, 1.0, 1.7]),
    top_p=st.sampled_from([0.3137, 0.7731, 1.0]),
    top_k=st.integers(0, 14),
    min_p=st.sampled_from([0.0, 0.07, 0.6]),
)


def written_out(logits: list[float], sampling: Sampling) -> list[float]:
    """Probabilities of what is sampled from: tempered, then min-p, top-k and top-p, each of what the former left."""
    weights = [math.exp((x - max(logits)) / sampling.temperature) for x in logits]
    # The most probable token has weight 1.
    weights = [w if w >= sampling.min_p else 0.0 for w in weights]
    if 0 < sampling.top_k < len(weights):
        least = sorted(weights)[-sampling.top_k]
        weights = [w if w >= least else 0.0 for w in weights]
    total, before = sum(weights), 0.0
    for place in sorted(range(len(weights)), key=lambda i: (-weights[i], i)):
        weight = weights[place]
        if before >= sampling.top_p * total and before > 0:
            weights[place] = 0.0
        before += weight
    return [w / sum(weights) for w in weights]


@settings(max_examples=50)
@given(LOGITS, SETTINGS)
def test_log_probabilities_are_of_what_the_options_leave(logits: list[float], sampling: Sampling) -> None:
    found = distribution(torch.tensor([logits]), sampling).exp()[0].tolist()
    # Where tokens are equally probable, which of them top-p keeps is open: compare the sorted ones.
    assert sorted(found) == pytest.approx(sorted(written_out(logits, sampling)), abs=1e-5)
    assert sum(found) == pytest.approx(1.0, abs=1e-5)
    assert found[logits.index(max(logits))] > 0 or logits.count(max(logits)) > 1


@given(LOGITS)
def test_temperature_0_leaves_everything_untempered(logits: list[float]) -> None:
    sampling = Sampling(temperature=0.0, top_p=0.1, top_k=1, min_p=0.9)
    scores = distribution(torch.tensor([logits]), sampling)
    assert scores[0].tolist() == pytest.approx(torch.tensor(logits).log_softmax(0).tolist())


def test_tokens_are_drawn_as_often_as_they_are_probable_and_none_that_is_left_out() -> None:
    sampling = Sampling(top_k=3)
    count = 5_000
    scores = distribution(torch.tensor([[2.0, 1.0, 0.0, -1.0]]), sampling).repeat(count, 1)
    numbers = torch.tensor([uniforms(seed, 1)[0] for seed in range(count)])
    drawn = draw(scores, numbers).bincount(minlength=4)
    assert drawn[3] == 0
    for seen, chance in zip(drawn.tolist(), scores[0].exp().tolist(), strict=True):
        assert abs(seen - count * chance) <= 6 * math.sqrt(count * chance * (1 - chance) + 1e-9)


def test_half_precision_logits_are_scored_in_float32() -> None:
    assert distribution(torch.zeros(1, 3, dtype=torch.bfloat16), Sampling()).dtype == torch.float32


CORPUS = ["so the answer is 12; the answer is 13; é 😀 naïve", "12 + 13 = 25\n\nQ: what\nA: 25"] * 20
TEXTS = st.lists(st.sampled_from([*"abths ;\n125é😀", "answer", " is", "Q:"]), max_size=12).map("".join)


def trained(kind: str) -> Any:
    """A tokenizer of bytes, as Qwen's, or one of words and spaces, as Llama 2's, whose first space is dropped."""
    transformers = pytest.importorskip("transformers")
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    inner = Tokenizer(models.BPE(byte_fallback=kind == "spaces"))
    alphabet = pre_tokenizers.ByteLevel.alphabet() if kind == "bytes" else [f"<0x{byte:02X}>" for byte in range(256)]
    if kind == "bytes":
        inner.pre_tokenizer, inner.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    else:
        inner.pre_tokenizer = pre_tokenizers.Metaspace()
        inner.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()])
    special = ["</s>"] + (alphabet if kind == "spaces" else [])
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        initial_alphabet=alphabet if kind == "bytes" else [],
        special_tokens=special,
        show_progress=False,
    )
    inner.train_from_iterator(CORPUS, trainer)
    return transformers.PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="</s>")


BYTES, SPACES = trained("bytes"), trained("spaces")


def stopped(tokenizer: Any, ids: list[int], stop: list[str]) -> tuple[int, str] | None:
    """The number of tokens until there was a stop text, and the text before it."""
    texts = StopTexts(tokenizer, stop)
    for count, token in enumerate(ids, 1):
        found = texts.add(token)
        if found is not None:
            return count, found
    return None


@pytest.mark.slow
@pytest.mark.parametrize("tokenizer", [BYTES, SPACES], ids=["bytes", "spaces"])
@settings(max_examples=50)
@given(
    text=TEXTS,
    stop=st.lists(st.sampled_from([";", "\n\n", "12", "ans", "r is", "is", "é", "😀;"]), min_size=1, max_size=3),
)
# Of two that end together the longer one is cut off, in whatever order they are given.
@example(text="so the answer is 12; and", stop=["is", "r is"])
def test_a_response_ends_at_the_first_token_with_which_a_stop_text_is_whole(
    tokenizer: Any, text: str, stop: list[str]
) -> None:
    ids = tokenizer(text)["input_ids"]
    expected = None
    for count in range(1, len(ids) + 1):
        decoded = tokenizer.decode(ids[:count], skip_special_tokens=True)
        ends = [(decoded.index(s) + len(s), decoded.index(s)) for s in stop if s in decoded]
        if ends:
            expected = count, decoded[: min(ends)[1]]
            break
    assert stopped(tokenizer, ids, stop) == expected


def test_an_unfinished_character_and_a_special_token_end_nothing() -> None:
    ids = BYTES("😀;")["input_ids"]
    assert len(ids) > 2
    assert stopped(BYTES, ids, [";"]) == (len(ids), "😀")
    assert stopped(BYTES, ids, ["\N{REPLACEMENT CHARACTER}"]) is None
    # Special tokens are not text.
    ids = [*BYTES("so ")["input_ids"], BYTES.eos_token_id, *BYTES("12")["input_ids"]]
    assert stopped(BYTES, ids, ["</s>"]) is None
    assert stopped(BYTES, ids, ["o 1"]) is not None
