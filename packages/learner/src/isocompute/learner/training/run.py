"""One run: its settings, and how far it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from typing import Any

import polars as pl

from ..config import LearnerConfig
from ..errors import LearnerError
from .order import Place


@dataclass(frozen=True, slots=True, kw_only=True)
class RunConfig:
    """One cell of a sweep: ``problems_per_batch`` × ``rollouts_per_problem``, one seed.

    Attributes:
        run_id: Hash of the run's configuration.
        rollouts_per_problem: n; 1 only where the advantage is not relative to the group (``check``).
        problems_per_batch: B_p.
        seed: Fixes the order of problems and every response's seed.
        evaluate_every: Nominal rollouts (step · B) between evaluations, a multiple of B = B_p · n; with
            ``evaluations_per_octave`` between the first of them. None where nothing is evaluated.
        evaluations_per_octave: p, how many evaluations there are while the rollouts double, from p · ``evaluate_every``
            on (see ``evaluated_at``); None for one at every multiple of ``evaluate_every``.

    Raises:
        LearnerError: There is no rollout of a problem or no problem in a batch, the grid is not a multiple of the
            batch, or there is no evaluation in an octave.
    """

    run_id: str = "run"
    rollouts_per_problem: int
    problems_per_batch: int
    seed: int = 0
    evaluate_every: int | None = None
    evaluations_per_octave: int | None = None

    def __post_init__(self) -> None:
        if self.rollouts_per_problem < 1:
            raise LearnerError(f"rollouts_per_problem is {self.rollouts_per_problem}: a problem needs 1 or more")
        if self.problems_per_batch < 1:
            raise LearnerError(f"problems_per_batch is {self.problems_per_batch}: a batch needs 1 or more")
        every = self.evaluate_every
        if every is not None and (every < 1 or every % self.batch_rollouts):
            raise LearnerError(
                f"evaluate_every is {self.evaluate_every} rollouts, which is not a multiple of the batch of "
                f"{self.batch_rollouts}: evaluations would not fall on a common grid"
            )
        if self.evaluations_per_octave is not None and self.evaluations_per_octave < 1:
            raise LearnerError(
                f"evaluations_per_octave is {self.evaluations_per_octave}: it must be 1 or more, or None for a grid of "
                "equal distances"
            )

    @property
    def batch_rollouts(self) -> int:
        """B = B_p · n."""
        return self.problems_per_batch * self.rollouts_per_problem

    def evaluated_at(self, rollouts: int) -> bool:
        """Whether the policy is evaluated after so many nominal rollouts; depends on neither n nor a budget.

        With p = ``evaluations_per_octave`` the grid is the multiples k · ``evaluate_every`` for which 2^o divides k,
        o = max(0, ⌊log₂(k/p)⌋): k = 1, 2, 3, 4, 6, 8, 12, 16, … for p = 2. So successive points are at most
        a factor of 1 + 1/p apart from p · ``evaluate_every`` on.

        Args:
            rollouts: step · B.
        """
        if self.evaluate_every is None:
            return False
        k, rest = divmod(rollouts, self.evaluate_every)
        if rest or self.evaluations_per_octave is None:
            return not rest
        octave = max(0, (k // self.evaluations_per_octave).bit_length() - 1)
        return k % (1 << octave) == 0

    def check(self, config: LearnerConfig) -> None:
        """Refuse a number of rollouts that the learner's settings cannot learn from.

        Raises:
            LearnerError: n is 1 and the baseline is the group's or groups of equal rewards are left out, or n is
                below ``trained_rollouts``.
        """
        n, trained = self.rollouts_per_problem, config.batch.trained_rollouts
        if n == 1 and config.objective.resolved.baseline == "group":
            raise LearnerError(
                f"rollouts_per_problem is 1, and the advantage of {config.objective.algorithm} is relative to its "
                "group: it must be 2 or more, or the baseline gae or batch"
            )
        masked = {
            "batch.filter_zero_variance": config.batch.filter_zero_variance,
            "kl.mask_zero_variance": config.kl.coefficient and config.kl.mask_zero_variance,
            "entropy.mask_zero_variance": config.entropy.coefficient and config.entropy.mask_zero_variance,
        }
        if n == 1 and any(masked.values()):
            raise LearnerError(
                f"rollouts_per_problem is 1, so that every group has equal rewards, and "
                f"{next(name for name, on in masked.items() if on)} is on: it must be off"
            )
        if trained is not None and trained > n:
            raise LearnerError(f"trained_rollouts is {trained}; it must be at most rollouts_per_problem, which is {n}")


CHANGES_NO_RESULT = ("sync.", "entropy.measured")
"""Settings under whose change a run continues: when it is stopped, and what is reported. One that changes the order of
sums, as that of micro-batches, changes last digits and is none of them."""
NOT_TRAINED_ON = ("pass_rate", "pass_rate_samples")
"""Columns of problems that say how hard they were found to be."""


def settings_of(run: RunConfig, config: LearnerConfig, problems: pl.DataFrame) -> dict[str, Any]:
    """What a run depends on, by names such as ``optimizer.beta1``, as plain values; not its budget.

    Args:
        problems: Training problems, of which the hash counts; the order of rows and columns does not.
    """
    found = asdict(run)
    for name, value in asdict(config).items():
        found |= {f"{name}.{key}": each for key, each in value.items()} if isinstance(value, dict) else {name: value}
    read = problems.select(sorted(set(problems.columns) - set(NOT_TRAINED_ON))).sort("problem_id")
    found["problems"] = f"{len(read)} with hash {sha256(read.write_ndjson().encode()).hexdigest()[:12]}"
    return {name: value for name, value in found.items() if not name.startswith(CHANGES_NO_RESULT)}


@dataclass(slots=True, kw_only=True)
class Progress:
    """How far a run is.

    Attributes:
        step: Steps taken.
        rollouts: Rollouts generated for training so far, whatever became of them.
        tokens: Their response tokens.
        evals: Rows of the ``evals`` table so far.
        place: The place in the problems of the next batch.
        diverged_at: The step whose gradient was not finite twice, which ended the run; None otherwise. Its
            rollouts are counted, its update was not made. Never saved: the run would find it again.
    """

    step: int
    rollouts: int
    tokens: int
    evals: list[dict[str, Any]]
    place: Place = field(default_factory=Place)
    diverged_at: int | None = None

    def saved(self) -> dict[str, Any]:
        """What a checkpoint holds beside its step, as plain values."""
        return {name: value for name, value in asdict(self).items() if name not in ("step", "diverged_at")}

    @classmethod
    def restored(cls, step: int, saved: Mapping[str, Any]) -> Progress:
        """Return the progress that ``saved`` made this of.

        Args:
            saved: From ``saved``, through JSON.
        """
        place = saved["place"]
        return cls(**{**saved, "step": step, "place": Place(**place | {"dropped": tuple(place["dropped"])})})
