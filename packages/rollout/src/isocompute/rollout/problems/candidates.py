"""A problem on its way into a table."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A problem before it has a place in a table.

    Attributes:
        metadata: What the rule needs besides (``scoring.metadata.encode``), or nothing.
    """

    prompt: str
    answer: str
    verifier: str
    metadata: str = ""

    @property
    def key(self) -> str:
        """What two prompts of one problem share: everything but case and white space."""
        return _normalised(self.prompt)


def problem_id(source: str, prompt: str) -> str:
    """Return the hash of a problem: of its source and its prompt up to case and white space.

    Args:
        source: Name of the source in the table; for a set known by name, that of its dataset without the revision.

    Returns:
        16 hexadecimal digits.
    """
    key = f"{source}\n{_normalised(prompt)}".encode()
    return blake2b(key, digest_size=8).hexdigest()


def _normalised(prompt: str) -> str:
    return " ".join(prompt.lower().split())
