"""Settings of the embedded default's base model; apart from the model, so that reading them loads no torch."""

from __future__ import annotations

from typing import Self

from pydantic import BaseModel, ConfigDict, Field, model_validator


class TinyModelConfig(BaseModel):
    """How the embedded base model is trained, on imperfect worked solutions of sums."""

    # Not of settings.strict.Settings: the settings import this module, and the model's identity is its own code alone.
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, use_attribute_docstrings=True)

    digits: str = "12345"
    """Digits that its expressions are made of."""
    min_terms: int = Field(default=2, ge=2)
    """Fewest terms of an expression."""
    max_terms: int = 6
    """Most terms of an expression."""
    largest_slip: int = Field(default=9, ge=1, le=9)
    """How far off a wrong fact may be; small slips cancel out, and answers are right by luck."""
    hidden: int = Field(default=64, multiple_of=32)
    """Width; a multiple of 32, the smallest head that vLLM serves on CPU."""
    layers: int = Field(default=2, ge=1)
    """Number of transformer layers."""
    steps: int = Field(default=1200, ge=1)
    """Supervised training steps."""
    batch: int = Field(default=256, ge=1)
    """Batch size (worked solutions per step)."""
    learning_rate: float = Field(default=3e-3, gt=0, allow_inf_nan=False)
    """AdamW's peak learning rate, reached after 50 steps and falling to a tenth by cosine."""
    seed: int = 0
    """Seed of the weights and the data."""

    @model_validator(mode="after")
    def _terms_are_a_range(self) -> Self:
        if self.min_terms > self.max_terms:
            raise ValueError(f"min_terms is {self.min_terms}; it must be at most max_terms, {self.max_terms}")
        return self
