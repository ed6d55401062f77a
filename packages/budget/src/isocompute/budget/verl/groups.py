"""The prompts that were dispatched and are not charged yet, and what became of them."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping
from typing import Any, TypeVar

from ..ledger.counts import Counts

Tag = TypeVar("Tag")

SINGLE_TURN = "single_turn_agent"
"""The one agent loop of veRL's in which everything in a response was sampled."""


class Groups:
    """How many rollouts were dispatched for each prompt (a group) that is not charged yet."""

    def __init__(self) -> None:
        self._dispatched: dict[str, int] = {}
        self.rollouts = 0

    def __contains__(self, uid: object) -> bool:
        return uid in self._dispatched

    def __iter__(self) -> Iterator[str]:
        return iter(self._dispatched)

    def add(self, uid: str, rollouts: int) -> None:
        """Note a prompt that was dispatched."""
        self._dispatched[uid] = rollouts
        self.rollouts += rollouts

    def take(
        self, uids: Iterable[str], tags: Mapping[str, Mapping[str, Any]], written: Mapping[str, int]
    ) -> tuple[Counts, int]:
        """Let go of some prompts, and count what they came to.

        Args:
            uids: The prompts; those that are charged already are left out.
            tags: veRL's tags by trajectory, ``{uid}_{session}_{index}``, with its lengths.
            written: Of trajectories, the tokens of the response that were not sampled.

        Returns:
            Of the sessions that have a trajectory, rollouts and tokens; and the rollouts that have none.
        """
        taken = {uid: self._dispatched.pop(uid) for uid in set(uids) if uid in self._dispatched}
        self.rollouts -= sum(taken.values())
        sessions, prompt, response = set(), 0, 0
        for key, tag in of_prompts(taken, tags).items():
            sessions.add(session_of(key))
            prompt += tag["prompt_len"] + written.get(key, 0)
            response += tag["response_len"] - written.get(key, 0)
        made = Counts(rollouts=len(sessions), prompt_tokens=prompt, response_tokens=response)
        return made, max(0, sum(taken.values()) - len(sessions))


def session_of(key: str) -> str:
    """The session of a trajectory, with its prompt."""
    return key.rsplit("_", 1)[0]


def of_prompts(uids: Container[str], tags: Mapping[str, Tag]) -> dict[str, Tag]:
    """The trajectories of some prompts."""
    return {key: tag for key, tag in tags.items() if key.split("_")[0] in uids}


def dispatched(prompts: Any, default: int) -> list[tuple[str, int]]:
    """The prompts of a batch, with as many rollouts as veRL's workers generate for each.

    Args:
        default: Where the batch does not say so itself.
    """
    uids = [str(uid) for uid in prompts["uid"]]
    each = list(prompts["__rollout_n__"]) if "__rollout_n__" in prompts.keys() else [default] * len(uids)  # noqa: SIM118
    return [(uid, int(n)) for uid, n in zip(uids, each, strict=True)]
