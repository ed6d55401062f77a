"""Verifiers and their sandbox, estimators over k responses, difficulty, evaluation."""

from .scorer import Item, Scorer, Verdict

__all__ = ["Item", "Scorer", "Verdict"]
