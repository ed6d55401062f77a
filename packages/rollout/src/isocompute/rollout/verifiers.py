"""The rules that score responses: the public address of ``scoring.verifiers``."""

from .scoring.verifiers import Verifier, verifier

__all__ = ["Verifier", "verifier"]
