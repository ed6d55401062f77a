"""Which of the responses generated are learnt from."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import LearnerError
from .checks import is_number, truth, whole


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchConfig:
    """Which of the responses generated are learnt from. All are paid for.

    Attributes:
        filter_zero_variance: Whether groups with equal rewards are left out of the update and of its normaliser
            (cohort ``filtered``).
        trained_rollouts: n_train: responses per problem that are learnt from; the others (cohort ``filtered``) only
            sharpen the baseline (IsoCompute Playbook, Appendix G: n_est is ``rollouts_per_problem``). None: all.
        drop_above: No-positive resampling (ScaleRL): a problem whose pass rate in its last batch is this or more is
            not trained on in later passes. None: none is dropped.

    Raises:
        LearnerError: A value is out of its range.
    """

    filter_zero_variance: bool = False
    trained_rollouts: int | None = None
    drop_above: float | None = None

    def __post_init__(self) -> None:
        truth(self, "filter_zero_variance")
        if self.trained_rollouts is not None:
            whole(self, "trained_rollouts", least=1)
        if self.drop_above is not None and not (is_number(self.drop_above) and 0 < self.drop_above <= 1):
            raise LearnerError(f"drop_above is {self.drop_above!r}; it must be a number above 0 and at most 1, or null")
