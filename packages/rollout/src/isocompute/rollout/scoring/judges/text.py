"""``exact``: the response is the answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ...errors import RolloutError


def same(response: str, answer: str) -> bool:
    """Say whether two texts agree up to white space round them."""
    return response.strip() == answer.strip()


class NoGenerator:
    """A judge whose problems come from elsewhere."""

    def draw(self, task: str, settings: Mapping[str, Any], *, size: int, seed: int, index: int) -> str:
        """See ``Judge.draw``: refused, since there is nothing to generate."""
        raise RolloutError(f"{task} is not a generator of problems")


class TextJudge(NoGenerator):
    """Compares texts; here for patterns, which some responses keep busy for ever."""

    def executing(self, base: str) -> bool:
        """Return False."""
        return False

    def prepare(self, base: str, answer: str, metadata: str) -> Callable[[str], bool]:
        """See ``Judge.prepare``: the comparison with the answer."""
        return lambda response: same(response, answer)
