"""Errors a user can act on."""


class LearnerError(ValueError):
    """Something the learner was given cannot be used; the message says what and what would be right."""


class SyncError(LearnerError):
    """The sampler does not hold the learner's weights."""


class CheckpointError(LearnerError):
    """A checkpoint cannot be read or written."""
