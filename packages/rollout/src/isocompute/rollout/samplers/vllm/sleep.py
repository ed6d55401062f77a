"""What of a vLLM engine is in its GPU's memory: it sleeps while a learner on the same GPU takes a step.

    awake ── sleep ──▶ asleep ── load: weights return ──▶ loading ── loaded: KV cache returns ──▶ awake
                       asleep ── sample, at level 1: both return ───────────────────────────────▶ awake

The KV cache returns last, so that a sync never needs room for both. As of vLLM 0.32's source; *unverified on a GPU*. On
CPU vLLM frees nothing, but keeps the same account of what sleeps and schedules nothing meanwhile.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from ...errors import RolloutError

State = Literal["awake", "asleep", "loading"]
Event = Literal["sleep", "sample", "load", "loaded"]
"""A training batch is answered; something is to be sampled; a sync begins; it has ended."""

STEPS: Mapping[tuple[State, Event], tuple[State, tuple[str, ...]]] = {
    ("awake", "sleep"): ("asleep", ()),
    ("awake", "sample"): ("awake", ()),
    ("awake", "load"): ("awake", ()),
    ("awake", "loaded"): ("awake", ()),
    ("asleep", "sleep"): ("asleep", ()),
    ("asleep", "sample"): ("awake", ("weights", "kv_cache")),
    ("asleep", "load"): ("loading", ("weights",)),
    # After a sync that was cut off.
    ("loading", "load"): ("loading", ()),
    ("loading", "loaded"): ("awake", ("kv_cache",)),
}
"""From a state and what happens in it, the next state and vLLM's names for what returns to the GPU."""
WRONG: Mapping[tuple[State, Event], str] = {
    ("loading", "sleep"): "was to sleep while weights arrive; the sync must end first",
    ("loading", "sample"): "was asked for responses while weights arrive; the sync must end first",
    ("asleep", "loaded"): "was told that weights have arrived, and is asleep; a sync must begin before it ends",
}


def step(state: State, event: Event, *, level: int, name: str) -> tuple[State, tuple[str, ...]]:
    """Return the next state of an engine, and what must return to the GPU.

    Args:
        level: 1 where the weights are in the host's memory while it sleeps, 2 where they are nowhere.

    Raises:
        RolloutError: The event cannot happen in this state.
    """
    wrong = WRONG.get((state, event))
    if (state, event) == ("asleep", "sample") and level == 2:
        wrong = (
            "was asked for responses before a sync, and its weights were discarded when it went to sleep; engine sleep "
            "must be 1"
        )
    if wrong is not None:
        raise RolloutError(f"{name} {wrong}")
    return STEPS[state, event]


class Sleep:
    """Lets an engine sleep and wakes it.

    Args:
        llm: vLLM's ``LLM``.
        level: 0 where it never sleeps, else as for ``step``.

    Attributes:
        state: Where it is.
    """

    def __init__(self, llm: Any, *, level: int, name: str) -> None:
        self._llm, self.level, self._name = llm, level, name
        self.state: State = "awake"

    def on(self, event: Event) -> None:
        """Do what an event asks for.

        Raises:
            RolloutError: It cannot happen now, or vLLM has not woken the engine.
        """
        if not self.level:
            return
        after, tags = step(self.state, event, level=self.level, name=self._name)
        if tags and self._llm.wake_up(tags=list(tags)) != (after == "awake"):
            raise RolloutError(f"{self._name} did not wake ({', '.join(tags)}); open another sampler")
        if after == "asleep" and self.state == "awake":
            self._llm.sleep(level=self.level)
        # Where vLLM has failed, the same event tries again; it skips what has woken.
        self.state = after
