"""The base of every error that a user can act on."""


class IsoComputeError(ValueError):
    """Something asked for cannot be done; the message says what was wrong, where, and what would be right.

    Every package has a class of its own for it, since no package imports another: what catches the errors of several
    packages at once catches ``ValueError``.
    """


class TableError(IsoComputeError):
    """A table is not what its schema says; the message names the file, the column and the row."""


class TrackingError(IsoComputeError):
    """MLflow is not installed, cannot be reached, or does not hold what was asked for."""


class FileError(IsoComputeError):
    """A file cannot be written; what was there before is still there."""


class InfrastructureError(IsoComputeError):
    """A process or a node that a call needed died or timed out; the same call may succeed with a new one."""
