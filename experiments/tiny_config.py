"""Settings of the embedded default's base model; apart from the model, so that reading them loads no torch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class TinyModelConfig:
    """How the base model is made.

    Attributes:
        digits: Digits in expressions.
        min_terms: Fewest terms.
        max_terms: Most terms.
        largest_slip: How far off a wrong fact may be; small slips cancel out, and answers are right by luck.
        hidden: Width; a multiple of 32, the smallest head that vLLM serves on CPU.
        layers: Transformer layers.
        steps: Supervised steps.
        batch: Solutions per step.
        learning_rate: AdamW's peak, reached after 50 steps, falling to a tenth by cosine.
        seed: Fixes everything.
    """

    digits: str = "12345"
    min_terms: int = 2
    max_terms: int = 6
    largest_slip: int = 9
    hidden: int = 64
    layers: int = 2
    steps: int = 1200
    batch: int = 256
    learning_rate: float = 3e-3
    seed: int = 0

    def __post_init__(self) -> None:
        if self.hidden % 32:
            raise ValueError(f"base.hidden is {self.hidden}; it must be a multiple of 32")
        if not 2 <= self.min_terms <= self.max_terms:
            raise ValueError("base.min_terms must be at least 2 and at most base.max_terms")
        if not 1 <= self.largest_slip <= 9:
            raise ValueError(f"base.largest_slip is {self.largest_slip}; it must lie between 1 and 9")
