"""reasoning-gym tasks that no problem may come from, those that need a sandbox, and why; where their answers stand.

Responses come from a policy, answers and metadata from a file: all three are data. A scorer that evaluates one of
them as Python code is given an evaluator that only calculates (``judges.guarded``), and it runs where nothing it did
could reach the network, a file or a verdict.
"""

from __future__ import annotations

from collections.abc import Mapping

from ..errors import RolloutError

_EVAL = "its scorer runs eval on the response"
_PARSE = "its scorer runs sympy's parse_expr, which is an eval, on the response"
_ANSWERLESS = "it gives no answer of its own, so that nothing shows whether its scorer is right"

EXECUTING: Mapping[str, str] = {
    "binary_matrix": _EVAL,
    "bitwise_arithmetic": "its scorer runs eval on the metadata",
    "codeio": "its generator runs exec on programs from a data file",
    "countdown": _PARSE,
    "intermediate_integration": f"{_PARSE} and on the metadata",
    "n_queens": _EVAL,
    "number_sorting": "its scorer runs eval on the reference answer",
    "polynomial_multiplication": f"{_PARSE} and on the reference answer",
    "puzzle24": _PARSE,
    "simple_integration": f"{_PARSE} and on the metadata",
    "spiral_matrix": _EVAL,
    "string_insertion": _EVAL,
}
"""Tasks that execute the response, the reference answer, the metadata or a program: they need an isolated sandbox."""

REFUSED: Mapping[str, str] = {
    "boxnet": _ANSWERLESS,
    "composite": "it only mixes other tasks, which are better given as sources of their own",
    "game_of_life_halting": "its scorer accepts every response that is not empty",
    "propositional_logic": "its scorer accepts a premise repeated as the conclusion",
    "rush_hour": _ANSWERLESS,
}
"""All refused tasks with the reason."""

EXTRACTION: Mapping[str, tuple[str, ...]] = {
    # Its prompt ends in "=", and worked solutions continue: 2+3=5.
    "chain_sum": ("after:=",),
}
"""Extraction of tasks, where the rule's name has none."""


def check_task(task: str) -> None:
    """Refuse a task that is on the list.

    Raises:
        RolloutError: It is on the list; the message names the task and says why.
    """
    if task in REFUSED:
        raise RolloutError(f"reasoning-gym's task {task} is refused: {REFUSED[task]}")
