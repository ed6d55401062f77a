"""Settings of the tiny base models and of the problems made for them; they load no torch."""

from __future__ import annotations

from typing import ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

CHAIN_CHARACTERS = "0123456789+-="
NEEDLE_CLASSES = "ABC"
NEEDLE_LETTERS = "abcdefghijklmnop"
MIXTURE_PREFIXES = "xy"


class Strict(BaseModel):
    """Settings of this folder: no value is converted, no key is unknown."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, use_attribute_docstrings=True)


class TinyModelConfig(Strict):
    """Settings that all embedded base models share."""

    name: ClassVar[str]
    """The task that it is taught."""
    characters: ClassVar[str]
    """Characters of prompts and responses; one token each."""

    family: Literal["llama", "gpt2"] = "llama"
    """Its architecture: Llama's, or GPT-2's (learned positions, layer norms, biases, one GELU network)."""
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


class Terms(Strict):
    """Terms of the sums."""

    digits: str = "12345"
    """Digits that its expressions are made of."""
    min_terms: int = Field(default=2, ge=2)
    """Fewest terms of an expression."""
    max_terms: int = 6
    """Most terms of an expression."""

    @model_validator(mode="after")
    def _terms_are_a_range(self) -> Self:
        if self.min_terms > self.max_terms:
            raise ValueError(f"min_terms is {self.min_terms}; it must be at most max_terms, {self.max_terms}")
        return self


class ChainsModelConfig(Terms, TinyModelConfig):
    """Training of the embedded base model, on imperfect worked solutions of sums."""

    name: ClassVar[str] = "chains"
    characters: ClassVar[str] = CHAIN_CHARACTERS

    largest_slip: int = Field(default=9, ge=1, le=9)
    """Largest error of a wrong fact; small slips cancel out, and answers are right by luck."""


class MixtureModelConfig(ChainsModelConfig):
    """Training of a base model on two families of sums with contradictory rules."""

    name: ClassVar[str] = "mixture"
    characters: ClassVar[str] = CHAIN_CHARACTERS + MIXTURE_PREFIXES

    share: float = Field(default=0.5, ge=0, le=1)
    """Share of the contradictory family in its solutions."""


class NeedleModelConfig(TinyModelConfig):
    """Training of a base model that finds hidden codes at given rates."""

    name: ClassVar[str] = "needle"
    characters: ClassVar[str] = CHAIN_CHARACTERS + NEEDLE_CLASSES + NEEDLE_LETTERS

    # Many small steps: with 900 of 256 the rates of class B end a quarter below the teacher's, with these a tenth.
    steps: int = Field(default=3000, ge=1)
    """Supervised training steps."""
    batch: int = Field(default=64, ge=1)
    """Batch size (responses per step)."""
    largest_digit: int = Field(default=5, ge=2, le=9)
    """Largest digit of a key; a class has this number squared of them."""
    codes: int = Field(default=0, ge=0)
    """Seed of the hidden codes, the same for the problems and for every base model that they are given to."""


class TinySource(Strict):
    """Settings that all problems for embedded base models share."""

    name: ClassVar[str]
    """The task, and name of the source in the table."""
    taught: ClassVar[tuple[str, ...]]
    """Settings that are those of the base model, which is taught them."""

    train: int = 256
    """Training problems."""
    validation: int = 300
    """Validation problems."""
    seed: int = Field(default=0, ge=0)
    """Seed of the problems drawn."""


class NeedleSource(TinySource):
    """Problems whose answer is a hidden code (``needle``)."""

    name: ClassVar[str] = "needle"
    taught: ClassVar[tuple[str, ...]] = ("largest_digit", "codes")

    largest_digit: int = Field(default=5, ge=2, le=9)
    """Largest digit of a key."""
    codes: int = Field(default=0, ge=0)
    """Seed of the hidden codes, which must be the base model's."""


class MixtureSource(Terms, TinySource):
    """Sums of two families with contradictory rules (``mixture``)."""

    name: ClassVar[str] = "mixture"
    taught: ClassVar[tuple[str, ...]] = ("digits", "share")

    min_terms: int = Field(default=4, ge=2)
    """Fewest terms of an expression."""
    max_terms: int = 5
    """Most terms of an expression."""
    share: float = Field(default=0.5, ge=0, le=1)
    """Share of the contradictory family, of either side; it must be the base model's."""
