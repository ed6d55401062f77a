"""What does the policy learn from its rollouts? GRPO with verified syncs and exact resume."""

from .config import LearnerConfig
from .errors import CheckpointError, LearnerError, SyncError

__all__ = ["CheckpointError", "LearnerConfig", "LearnerError", "SyncError"]
