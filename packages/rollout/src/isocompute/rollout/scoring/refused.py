"""reasoning-gym tasks that no problem may come from, and why.

A response is written by a policy, and an answer or metadata come out of a file: all three are data. A scorer that
executes any of them runs whatever stands there. Until verifiers run in a sandbox, such tasks are refused by name.
"""

from __future__ import annotations

from collections.abc import Mapping

from .errors import RolloutError

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
    "codeio": "its generator runs exec on programs out of a data file",
    "composite": "it hands responses on to the scorers of other tasks, those that execute them among them",
    "game_of_life_halting": "its scorer takes every response that is not empty as right",
    "rubiks_cube": "its scorer repeats a move as often as the response says, whatever memory that takes",
}
"""All refused tasks with the reason."""


def check_task(task: str) -> None:
    """Refuse a task that is on the list.

    Raises:
        RolloutError: It is; the message names the task and says why.
    """
    if task in REFUSED:
        raise RolloutError(f"reasoning-gym's task {task} is refused: {REFUSED[task]}")
