"""What does the policy learn from its rollouts? GRPO with verified syncs and exact resume."""

from .config import LearnerConfig
from .errors import CheckpointError, DivergenceError, LearnerError, RankError, SyncError

__all__ = ["CheckpointError", "DivergenceError", "LearnerConfig", "LearnerError", "RankError", "SyncError"]
