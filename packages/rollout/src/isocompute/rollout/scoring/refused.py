"""reasoning-gym tasks that no problem may come from, and why.

Responses come from a policy, answers and metadata from a file: all three are data. A scorer that executes one of them
runs whatever is written there. Until verifiers run in a sandbox, such tasks are refused by name.
"""

from __future__ import annotations

from collections.abc import Mapping

from ..errors import RolloutError

_EVAL = "its scorer runs eval on the response"
_PARSE = "its scorer runs sympy's parse_expr, which is an eval, on the response"

EXECUTING: Mapping[str, str] = {
    "binary_matrix": _EVAL,
    "bitwise_arithmetic": "its scorer runs eval on the metadata",
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
"""Tasks whose scorer executes the response, the reference answer or the metadata."""

REFUSED: Mapping[str, str] = {
    **EXECUTING,
    "codeio": "its generator runs exec on programs from a data file",
    "composite": "it passes responses on to the scorers of other tasks, including those that execute them",
    "game_of_life_halting": "its scorer accepts every response that is not empty",
    "rubiks_cube": "its scorer repeats a move as often as the response says, however much memory that takes",
}
"""All refused tasks with the reason."""


def check_task(task: str) -> None:
    """Refuse a task that is on the list.

    Args:
        task: reasoning-gym's name of it.

    Raises:
        RolloutError: It is on the list; the message names the task and says why.
    """
    if task in REFUSED:
        raise RolloutError(f"reasoning-gym's task {task} is refused: {REFUSED[task]}")
