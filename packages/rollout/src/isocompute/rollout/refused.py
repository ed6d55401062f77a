"""reasoning-gym tasks that no problem may come from: the public address of ``scoring.refused``."""

from .scoring.refused import EXECUTING, REFUSED, check_task

__all__ = ["EXECUTING", "REFUSED", "check_task"]
