"""Stop texts in responses of real tokenizers, decoded token by token."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from isocompute.rollout.samplers.transformers import StopTexts

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
    """How many tokens it took until there was a stop text, and the text before it."""
    texts = StopTexts(tokenizer, stop)
    for count, token in enumerate(ids, 1):
        found = texts.add(token)
        if found is not None:
            return count, found
    return None


@pytest.mark.slow
@pytest.mark.parametrize("tokenizer", [BYTES, SPACES], ids=["bytes", "spaces"])
@given(
    text=TEXTS, stop=st.lists(st.sampled_from([";", "\n\n", "12", "ans", "r is", "é", "😀;"]), min_size=1, max_size=3)
)
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


def test_a_stop_text_within_a_token_and_one_over_several_are_cut_off_the_text() -> None:
    ids = BYTES("so the answer is 12; and")["input_ids"]
    pieces = [BYTES.decode([token]) for token in ids]
    assert " answer" in pieces
    assert stopped(BYTES, ids, ["nsw"]) == (pieces.index(" answer") + 1, "so the a")
    assert stopped(BYTES, ids, ["answer is"]) == (pieces.index(" answer") + 2, "so the ")


def test_an_unfinished_character_ends_nothing_and_loses_nothing() -> None:
    ids = BYTES("😀;")["input_ids"]
    assert len(ids) > 2
    assert stopped(BYTES, ids, [";"]) == (len(ids), "😀")
    assert stopped(BYTES, ids, ["\N{REPLACEMENT CHARACTER}"]) is None


def test_special_tokens_are_not_text() -> None:
    ids = [*BYTES("so ")["input_ids"], BYTES.eos_token_id, *BYTES("12")["input_ids"]]
    assert stopped(BYTES, ids, ["</s>"]) is None
    assert stopped(BYTES, ids, ["o 1"]) is not None
