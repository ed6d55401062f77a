"""Rules that say whether a response is right: no response makes one raise, and what it says is never executed here."""

from __future__ import annotations

from functools import cache
from typing import Protocol

from .config import ScoringConfig
from .scorer import Item, Scorer, default_scorer


class Verifier(Protocol):
    """A binary reward function: whether a response is right."""

    def __call__(self, response: str, answer: str, metadata: str = "") -> bool:
        """Say whether the response is right."""
        ...


def verifier(name: str, *, seconds: float = 5.0, scorer: Scorer | None = None) -> Verifier:
    """Return the rule called ``name``, which scores in a sandboxed process.

    * ``exact``: the response, stripped, is the answer.
    * ``math``: math-verify finds the answer's value in the response.
    * ``reasoning_gym:TASK``: the task's own scorer, with the settings, question and metadata of the problem's
      ``metadata`` column, gives exactly 1; its partial scores count as wrong.
    * ``runs``: the program in the response prints what each test in the answer wants.
    * ``python:MODULE:FUNCTION``, or a name given by ``register`` or an entry point: a function of your own.

    Words after the name, separated by ``|``, say where in the response the answer stands: ``exact|boxed``,
    ``exact|last_line``, ``exact|after:####``, ``exact|regex:PATTERN``.

    Args:
        name: Name of the rule, as in the ``verifier`` column.
        seconds: Processor time one response may take; what takes more is wrong.
        scorer: Scores with limits of its own, whatever ``seconds`` says.

    Returns:
        The rule; verdicts of short responses are cached.

    Raises:
        RolloutError: There is no such rule, the library it needs is not installed, the task is refused
            (``refused.REFUSED``), or the rule needs an isolation that this machine's kernel does not give. The rule
            itself raises it when metadata that it needs are missing or unreadable.
    """
    if scorer is None:
        scorer = default_scorer() if seconds == default_scorer().config.seconds else _scorer(seconds)
    used = scorer
    used.check([name])

    def right(response: str, answer: str, metadata: str = "") -> bool:
        item = Item(verifier=name, response=response, answer=answer, metadata=metadata)
        return used.submit([item]).result()[0].reward == 1.0

    return right


@cache
def _scorer(seconds: float) -> Scorer:
    return Scorer(ScoringConfig(seconds=seconds))
