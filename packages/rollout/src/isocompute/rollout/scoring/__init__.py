"""Verifiers and their sandbox, estimators over k responses, difficulty, evaluation."""
