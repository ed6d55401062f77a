"""Errors a user can act on."""

from .contract.errors import InfrastructureError, IsoComputeError


class LearnerError(IsoComputeError):
    """The learner cannot use an input; the message names what is wrong and what would be right."""


class SyncError(LearnerError):
    """The sampler does not hold the learner's weights."""


class DivergenceError(LearnerError):
    """The policy has diverged: its gradient, its loss or its own log-probabilities are not finite."""


class RankError(LearnerError, InfrastructureError):
    """A learner rank died or timed out; its group must be reset before it is used again."""


class CheckpointError(LearnerError):
    """A checkpoint cannot be read or written."""
