"""What the training loop needs from outside; any object of these shapes will do."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

import polars as pl
import torch


class Sampler(Protocol):
    """Answers problems with the current policy."""

    @property
    def weights_version(self) -> int:
        """Version of the weights that sample."""
        ...

    def sample(
        self, problems: pl.DataFrame, *, samples: int, seed: int, step: int, phase: str, run_id: str
    ) -> pl.DataFrame:
        """Return the ``rollouts`` table of ``samples`` completed responses to each problem."""
        ...

    def sync(self, weights: Iterable[tuple[str, torch.Tensor]], version: int) -> None:
        """Take over the learner's weights."""
        ...


class Evaluator(Protocol):
    """Measures the policy on problems that it does not train on."""

    def __call__(self, *, step: int, at: int, rollouts: int, tokens: int) -> Evaluation:
        """Evaluate the policy.

        Args:
            step: Updates taken.
            at: The point of the grid, step · B_p · n, on which the evaluation's seeds may depend: one and the
                same for all runs, whatever failed in one of them.
            rollouts: What was counted as generated for training, failed tries included.
            tokens: Response tokens of these.
        """
        ...


class Evaluation(Protocol):
    """One evaluation: a row of ``evals`` and what it cost."""

    @property
    def row(self) -> Mapping[str, Any]:
        """The row of the ``evals`` table."""
        ...

    @property
    def rollouts_table(self) -> pl.DataFrame | None:
        """The responses behind it, as a ``rollouts`` table; None when they were charged elsewhere.

        So it is with an evaluation at step 0 that several runs share: nothing is charged to this one.
        """
        ...


class Meter(Protocol):
    """Says whether a step may be taken, and records what it generated."""

    def admit(self, step: int, rollouts: int) -> Any:
        """Return something true when the step may be taken."""
        ...

    def charge(self, step: int, counts: Mapping[str, Any]) -> None:
        """Record counts by cohort."""
        ...

    def sync(self) -> None:
        """Put every charge on the disk; asked before a checkpoint that follows from them is saved."""
        ...
