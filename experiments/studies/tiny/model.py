"""The embedded base models: tiny transformers, trained from scratch by an unreliable teacher."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from torch.nn.functional import cross_entropy
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from .chains import ChainTeacher, MixtureTeacher
from .config import CHAIN_CHARACTERS, ChainsModelConfig, MixtureModelConfig, NeedleModelConfig, TinyModelConfig
from .lessons import END, PAD, Lesson, Teacher, vocabulary
from .needle import NeedleTeacher

IGNORED = -100
PARTS = 4
"""Parts that a batch is cut into, by length."""
TEACHERS: Mapping[type[TinyModelConfig], Callable[[Any], Teacher]] = {
    ChainsModelConfig: ChainTeacher,
    MixtureModelConfig: MixtureTeacher,
    NeedleModelConfig: NeedleTeacher,
}
"""The teacher of each model's task."""


def new_tokenizer(characters: str = CHAIN_CHARACTERS) -> Any:
    """One token per character."""
    inner = Tokenizer(models.WordLevel(dict(vocabulary(characters)), unk_token=PAD))
    inner.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    inner.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=inner, pad_token=PAD, eos_token=END, clean_up_tokenization_spaces=False
    )


def new_model(config: TinyModelConfig) -> Any:
    """An untrained model with untied embeddings."""
    torch.manual_seed(config.seed)
    heads = config.hidden // 32
    shared: dict[str, Any] = {
        "vocab_size": len(vocabulary(config.characters)),
        "tie_word_embeddings": False,
        "pad_token_id": 0,
        "bos_token_id": None,
        "eos_token_id": 1,
        "initializer_range": 0.05,
    }
    if config.family == "gpt2":
        shape = {"n_embd": config.hidden, "n_layer": config.layers, "n_head": heads, "n_positions": 128}
        return GPT2LMHeadModel(GPT2Config(**shape, **shared, embd_pdrop=0.0, attn_pdrop=0.0, resid_pdrop=0.0))
    return LlamaForCausalLM(
        LlamaConfig(
            hidden_size=config.hidden,
            intermediate_size=3 * config.hidden,
            num_hidden_layers=config.layers,
            num_attention_heads=heads,
            num_key_value_heads=heads,
            max_position_embeddings=128,
            **shared,
        )
    )


def train(config: TinyModelConfig, folder: Path) -> None:
    """Train the base model and save it in the Hugging Face format; every 100 steps the loss is printed."""
    # The order of sums, and so the last digits, are not to depend on the number of cores.
    torch.set_num_threads(1)
    tokenizer = new_tokenizer(config.characters)
    model = new_model(config).train()
    teacher, rng = TEACHERS[type(config)](config), np.random.default_rng(config.seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=config.learning_rate, weight_decay=0.01)
    warm = 50
    for step in range(1, config.steps + 1):
        cosine = 0.55 + 0.45 * np.cos(np.pi * step / config.steps)
        for group in optimizer.param_groups:
            group["lr"] = config.learning_rate * min(1.0, step / warm) * cosine
        optimizer.zero_grad(set_to_none=True)
        loss = _backward(model, tokenizer, [teacher.lesson(rng) for _ in range(config.batch)])
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 100 == 0 or step == config.steps:
            print(f"base: step {step}/{config.steps}, loss {loss:.3f}")
    save(model, tokenizer, folder)


def save(model: Any, tokenizer: Any, folder: Path) -> None:
    """Save model and tokenizer; what is written depends on the weights only."""
    transformers.utils.logging.disable_progress_bar()
    model.eval().save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    # vLLM reads generation defaults; ours are the run's, so the file says nothing but the stop token.
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": 1, "pad_token_id": 0}, indent=2) + "\n")


def _backward(model: Any, tokenizer: Any, lessons: list[Lesson]) -> float:
    """Gradients of the mean loss over the tokens of responses; return the loss.

    Responses of about one length are padded together, which saves a third of the arithmetic.
    """
    lessons = sorted(lessons, key=lambda lesson: len(lesson.prompt) + len(lesson.response))
    size = -(-len(lessons) // PARTS)
    parts = [_supervised(tokenizer, lessons[i : i + size]) for i in range(0, len(lessons), size)]
    tokens = sum(len(lesson.response) + 1 for lesson in lessons)
    total = 0.0
    for ids, labels in parts:
        logits = model(input_ids=ids, attention_mask=(ids != 0).long()).logits[:, :-1]
        losses = cross_entropy(logits.flatten(0, 1), labels[:, 1:].flatten(0, 1), ignore_index=IGNORED, reduction="sum")
        loss = losses / tokens
        loss.backward()
        total += float(loss.detach())
    return total


def _supervised(tokenizer: Any, lessons: list[Lesson]) -> tuple[torch.Tensor, torch.Tensor]:
    """Padded ids, and labels that leave out prompts and padding: tokens, or probabilities of them all."""
    prompts = tokenizer([lesson.prompt for lesson in lessons])["input_ids"]
    answers = tokenizer([lesson.response for lesson in lessons])["input_ids"]
    length = max(len(p) + len(a) + 1 for p, a in zip(prompts, answers, strict=True))
    ids = torch.zeros(len(lessons), length, dtype=torch.long)
    labels = torch.full_like(ids, IGNORED)
    if lessons[0].targets is not None:
        # A place without a probability adds nothing to the loss.
        labels = torch.zeros(len(lessons), length, len(tokenizer))
    for row, (prompt, answer, lesson) in enumerate(zip(prompts, answers, lessons, strict=True)):
        whole = torch.tensor([*prompt, *answer, 1])
        ids[row, : len(whole)] = whole
        taught = whole[len(prompt) :] if lesson.targets is None else torch.from_numpy(lesson.targets)
        labels[row, len(prompt) : len(whole)] = taught
    return ids, labels
