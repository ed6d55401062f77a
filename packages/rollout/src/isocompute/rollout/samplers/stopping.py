"""Where a response ends: at a token, at a text, or at its length."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


class StopTexts:
    """Decodes one response token by token, and finds the first of some texts in it."""

    def __init__(self, tokenizer: Any, stop: Sequence[str]) -> None:
        self._tokenizer, self._stop = tokenizer, stop
        self._ids: list[int] = []
        self._begin, self._end = 0, 0
        self._text = ""

    def add(self, token: int) -> str | None:
        """Take the next token of the response.

        Returns:
            The response's text up to the stop text, once there is one; before that None.
        """
        self._ids.append(token)
        # A token's text may depend on the one before it, so that some are decoded again with each new one.
        known = self._decoded(self._ids[self._begin : self._end])
        whole = self._decoded(self._ids[self._begin :])
        # Until the last byte of a character there is no character to look for.
        if len(whole) <= len(known) or whole.endswith(REPLACEMENT):
            return None
        new = whole[len(known) :]
        self._begin, self._end = self._end, len(self._ids)
        before = len(self._text)
        self._text += new
        return self._cut(before)

    def _cut(self, before: int) -> str | None:
        """The text before the stop text that is complete first, among those that reach beyond ``before`` characters."""
        found = [(self._text.find(stop, max(0, before - len(stop) + 1)), stop) for stop in self._stop]
        ends = [(at + len(stop), at) for at, stop in found if at >= 0]
        # The earliest end: one token may complete several.
        return self._text[: min(ends, key=lambda pair: pair[0])[1]] if ends else None

    def _decoded(self, ids: Sequence[int]) -> str:
        text: str = self._tokenizer.decode(ids, skip_special_tokens=True)
        return text
