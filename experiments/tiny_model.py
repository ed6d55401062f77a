"""The embedded default's base model: a tiny transformer taught arithmetic by an unreliable teacher.

Worked solutions of ± chains are written left to right as partial results, ``3+2-4=5=1``. Every fact
(partial result, operator, digit) is wrong in them at a rate of its own, drawn from Beta(0.5, 1), so the
model's pass rates spread over problems as those of a real base model do.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from torch.nn.functional import cross_entropy
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from .tiny_config import TinyModelConfig

CHARACTERS = "0123456789+-="
PAD, END = "<pad>", "<eos>"
IGNORED = -100
PARTS = 4
"""Parts that a batch is cut into, by length."""


class Teacher:
    """Writes worked solutions that are wrong fact by fact."""

    def __init__(self, config: TinyModelConfig) -> None:
        self._config = config
        self._rates: dict[tuple[int, int], float] = {}

    def error_rate(self, partial: int, change: int) -> float:
        """How often the fact ``partial + change`` is taught wrong: Beta(0.5, 1), fixed by the fact."""
        if (partial, change) not in self._rates:
            key = [self._config.seed, partial + 1000, change + 1000]
            self._rates[partial, change] = float(np.random.default_rng(key).beta(0.5, 1.0))
        return self._rates[partial, change]

    def solution(self, rng: np.random.Generator) -> tuple[str, str]:
        """One prompt and its worked solution."""
        config = self._config
        terms = int(rng.integers(config.min_terms, config.max_terms + 1))
        digits = [int(config.digits[i]) for i in rng.integers(0, len(config.digits), terms)]
        signs = np.where(rng.random(terms) < 0.5, -1, 1)
        prompt, partial, steps = str(digits[0]), digits[0], []
        for digit, sign in zip(digits[1:], signs[1:], strict=True):
            prompt += ("+" if sign > 0 else "-") + str(digit)
            change = digit * int(sign)
            wrong = rng.random() < self.error_rate(partial, change)
            partial += change + (self._slip(rng) if wrong else 0)
            steps.append(str(partial))
        return prompt + "=", "=".join(steps)

    def _slip(self, rng: np.random.Generator) -> int:
        """How far off a wrong fact is: too rarely the same for two of them to cancel out."""
        return int(rng.integers(1, self._config.largest_slip + 1)) * (1 if rng.random() < 0.5 else -1)


def new_tokenizer() -> Any:
    """One token per character."""
    vocabulary = {t: i for i, t in enumerate((PAD, END, *CHARACTERS))}
    inner = Tokenizer(models.WordLevel(vocabulary, unk_token=PAD))
    inner.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    inner.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=inner, pad_token=PAD, eos_token=END, clean_up_tokenization_spaces=False
    )


def new_model(config: TinyModelConfig) -> Any:
    """An untrained model with untied embeddings."""
    torch.manual_seed(config.seed)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(CHARACTERS) + 2,
            hidden_size=config.hidden,
            intermediate_size=3 * config.hidden,
            num_hidden_layers=config.layers,
            num_attention_heads=config.hidden // 32,
            num_key_value_heads=config.hidden // 32,
            max_position_embeddings=128,
            tie_word_embeddings=False,
            pad_token_id=0,
            bos_token_id=None,
            eos_token_id=1,
            initializer_range=0.05,
        )
    )


def train(config: TinyModelConfig, folder: Path, *, progress: Callable[[int, float], None]) -> None:
    """Train the base model and save it in the Hugging Face format.

    Args:
        folder: Where to save model and tokenizer.
        progress: Called with (step, loss) every 100 steps and at the end.
    """
    tokenizer = new_tokenizer()
    model = new_model(config).train()
    teacher, rng = Teacher(config), np.random.default_rng(config.seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=config.learning_rate, weight_decay=0.01)
    warm = 50
    for step in range(1, config.steps + 1):
        cosine = 0.55 + 0.45 * np.cos(np.pi * step / config.steps)
        for group in optimizer.param_groups:
            group["lr"] = config.learning_rate * min(1.0, step / warm) * cosine
        optimizer.zero_grad(set_to_none=True)
        loss = _backward(model, tokenizer, [teacher.solution(rng) for _ in range(config.batch)])
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 100 == 0 or step == config.steps:
            progress(step, loss)
    save(model, tokenizer, folder)


def save(model: Any, tokenizer: Any, folder: Path) -> None:
    """Save model and tokenizer; what is written depends on the weights only."""
    transformers.utils.logging.disable_progress_bar()
    model.eval().save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    # vLLM reads generation defaults; ours are the run's, so the file says nothing but the stop token.
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": 1, "pad_token_id": 0}, indent=2) + "\n")


def _backward(model: Any, tokenizer: Any, solutions: list[tuple[str, str]]) -> float:
    """Gradients of the mean loss over the tokens of solutions; return the loss.

    Solutions of about one length are padded together, which saves a third of the arithmetic.
    """
    solutions = sorted(solutions, key=lambda solution: len(solution[0]) + len(solution[1]))
    size = -(-len(solutions) // PARTS)
    parts = [_supervised(tokenizer, solutions[i : i + size]) for i in range(0, len(solutions), size)]
    tokens = sum(int((labels != IGNORED).sum()) for _, labels in parts)
    total = 0.0
    for ids, labels in parts:
        logits = model(input_ids=ids, attention_mask=(ids != 0).long()).logits[:, :-1]
        losses = cross_entropy(logits.flatten(0, 1), labels[:, 1:].flatten(), ignore_index=IGNORED, reduction="sum")
        loss = losses / tokens
        loss.backward()
        total += float(loss.detach())
    return total


def _supervised(tokenizer: Any, solutions: list[tuple[str, str]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Padded ids, and labels that leave out prompts and padding."""
    prompts = tokenizer([p for p, _ in solutions])["input_ids"]
    answers = tokenizer([a for _, a in solutions])["input_ids"]
    length = max(len(p) + len(a) + 1 for p, a in zip(prompts, answers, strict=True))
    ids = torch.zeros(len(solutions), length, dtype=torch.long)
    labels = torch.full_like(ids, IGNORED)
    for row, (prompt, answer) in enumerate(zip(prompts, answers, strict=True)):
        whole = torch.tensor([*prompt, *answer, 1])
        ids[row, : len(whole)] = whole
        labels[row, len(prompt) : len(whole)] = whole[len(prompt) :]
    return ids, labels
