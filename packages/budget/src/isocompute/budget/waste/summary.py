"""What training paid for, and how much of it taught nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..ledger.counts import Counts
from .expectation import Expectation

if TYPE_CHECKING:
    import polars as pl


@dataclass(frozen=True, slots=True, kw_only=True)
class Paid:
    """What training was charged with in ledgers.

    Attributes:
        run_ids: The runs of the ledgers.
        generated: Everything paid, lost work too.
        lost: The part of it that was lost in crashes.
        failed: Rollouts that failed.
    """

    run_ids: frozenset[str]
    generated: Counts
    lost: Counts
    failed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Waste:
    """What training generated, and how much of it taught nothing.

    Attributes:
        generated: Everything generated for training, from the ledger where there is one, lost work included.
        sampled: What the ``rollouts`` table holds.
        tokens_known: Whether the table holds tokens; if not, those of ``sampled`` and ``without_gradient`` are 0.
        groups: Groups with at least two complete responses.
        zero_variance_groups: Those whose rewards are all equal.
        all_right: Those of these groups in which every response was correct.
        without_gradient: Rollouts and tokens of groups without variance, and of failed responses.
        truncated: Responses that ended at their limit of tokens, or None where the table does not say. TRL
            logs their share as ``completions/clipped_ratio``.
        failed: Responses that were aborted, from the ledger where there is one, or None.
        paid: The charges of the ledger, or None.
        solved_problems: Problems of a run with at least one correct response.
        expected: Share of groups that should be without variance, from measured pass rates, or None.
        by_step: Per bin of steps: ``first_step``, ``last_step``, ``groups``, ``zero_variance``, ``all_right``,
            ``rollouts_without_gradient``, ``truncated``, ``failed`` (shares; null where they are not known).
    """

    generated: Counts
    sampled: Counts
    tokens_known: bool
    groups: int
    zero_variance_groups: int
    all_right: int
    without_gradient: Counts
    truncated: int | None
    failed: int | None
    paid: Paid | None
    solved_problems: int
    expected: Expectation | None
    by_step: pl.DataFrame

    @property
    def zero_variance(self) -> float:
        """Share of groups whose rewards are all equal, which TRL logs as ``frac_reward_zero_std``."""
        return self.zero_variance_groups / self.groups if self.groups else 0.0

    @property
    def rollouts_per_solved(self) -> float | None:
        """Rollouts paid for each problem solved, or None when none was."""
        return self.generated.rollouts / self.solved_problems if self.solved_problems else None

    @property
    def tokens_per_solved(self) -> float | None:
        """Response tokens paid for each problem solved, or None when none was or the tokens are not known."""
        known = self.solved_problems and (self.tokens_known or self.paid is not None)
        return self.generated.response_tokens / self.solved_problems if known else None
