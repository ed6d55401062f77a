"""Errors that a user can act on."""

import errno
from collections.abc import Sequence

from isocompute.rollout.contract.errors import IsoComputeError

ENVIRONMENT = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES})
"""Error numbers for reads or writes that the system refuses, which are not faults of the code."""


class ExperimentError(IsoComputeError):
    """A stage cannot do what was requested; the message says what was wrong and what would be right."""


def listed(names: Sequence[str], *, most: int = 3, between: str = ", ") -> str:
    """The first few names, and how many more there are."""
    return between.join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def is_for_the_user(error: BaseException) -> bool:
    """Return whether an error tells a user what to do; any other error is a fault of the code."""
    return error.errno in ENVIRONMENT if isinstance(error, OSError) else isinstance(error, IsoComputeError)


def amounts(bundles: Sequence[dict[str, float]]) -> str:
    """Sum up bundles, for example as ``4 CPUs and 1 GPUs``."""
    return " and ".join(f"{sum(bundle.get(kind, 0.0) for bundle in bundles):g} {kind}s" for kind in ("CPU", "GPU"))
