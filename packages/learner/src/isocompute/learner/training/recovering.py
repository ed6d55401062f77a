"""Going on by itself where a rank dies."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

from ..errors import RankError
from ..saving.checkpoint import Checkpoints

logger = logging.getLogger(__name__)

Result = TypeVar("Result")


def through_deaths(attempt: Callable[[], Result], *, checkpoints: Checkpoints, tries: int = 3) -> Result:
    """Run, and run again from the newest checkpoint where a rank has died, as long as the run gets on.

    Args:
        attempt: Everything from ``learner.reset``, which starts new ranks, over ``restore`` and ``canary`` to
            ``train``; a meter that continues is part of it, too.
        tries: How often it may end from one and the same checkpoint.

    Returns:
        What the last attempt does.

    Raises:
        RankError: It has, so often.
    """
    failed, step = 0, checkpoints.newest_step()
    while True:
        try:
            return attempt()
        except RankError as error:
            reached = checkpoints.newest_step()
            failed = 1 if reached != step else failed + 1
            step = reached
            if failed >= tries:
                raise
            logger.warning("%s; the run goes on from step %d with new ranks", error, reached or 0)
