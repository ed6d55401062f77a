"""What does the policy learn from its rollouts? Policy-gradient learning with verified syncs and exact resume.

``train`` drives a ``Learner`` in this process, or a ``LearnerGroup`` of Ray actors, with a ``Sampler``, an
``Evaluator`` and a ``Meter`` of yours, and saves ``Checkpoints``. Importing the package is quick: torch, ray,
transformers and polars are loaded with the first name that needs them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .config import (
    AdapterConfig,
    BatchConfig,
    ComputeConfig,
    CriticConfig,
    EntropyConfig,
    ImportanceConfig,
    KLConfig,
    LearnerConfig,
    ObjectiveConfig,
    OptimizerConfig,
    RunConfig,
    SyncConfig,
)
from .errors import CheckpointError, DivergenceError, LearnerError, RankError, SyncError

if TYPE_CHECKING:
    from .objective.advantages import group_advantages, with_cohorts
    from .objective.prepare import prepare
    from .protocols import Evaluator, Meter, Pipe, Sampler, Updater
    from .ranks.group import LearnerGroup
    from .records.health import Flag, flags, judged
    from .records.steps import EvaluationRecord, ResponseStatistics, StepRecord, UpdateReport, timings_table
    from .saving.checkpoint import Checkpoints
    from .saving.export import save_adapter, save_policy
    from .training.loop import UpdateSteps, sync_and_check, train
    from .training.run import Progress, branch, restore, through_deaths
    from .updates.learner import Learner

_MODULES = {
    "objective.advantages": ("group_advantages", "with_cohorts"),
    "objective.prepare": ("prepare",),
    "protocols": ("Evaluator", "Meter", "Pipe", "Sampler", "Updater"),
    "ranks.group": ("LearnerGroup",),
    "records.health": ("Flag", "flags", "judged"),
    "records.steps": ("EvaluationRecord", "ResponseStatistics", "StepRecord", "UpdateReport", "timings_table"),
    "saving.checkpoint": ("Checkpoints",),
    "saving.export": ("save_adapter", "save_policy"),
    "training.loop": ("UpdateSteps", "sync_and_check", "train"),
    "training.run": ("Progress", "branch", "restore", "through_deaths"),
    "updates.learner": ("Learner",),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}
__all__ = [
    "AdapterConfig",
    "BatchConfig",
    "CheckpointError",
    "Checkpoints",
    "ComputeConfig",
    "CriticConfig",
    "DivergenceError",
    "EntropyConfig",
    "EvaluationRecord",
    "Evaluator",
    "Flag",
    "ImportanceConfig",
    "KLConfig",
    "Learner",
    "LearnerConfig",
    "LearnerError",
    "LearnerGroup",
    "Meter",
    "ObjectiveConfig",
    "OptimizerConfig",
    "Pipe",
    "Progress",
    "RankError",
    "ResponseStatistics",
    "RunConfig",
    "Sampler",
    "StepRecord",
    "SyncConfig",
    "SyncError",
    "UpdateReport",
    "UpdateSteps",
    "Updater",
    "branch",
    "flags",
    "group_advantages",
    "judged",
    "prepare",
    "restore",
    "save_adapter",
    "save_policy",
    "sync_and_check",
    "through_deaths",
    "timings_table",
    "train",
    "with_cohorts",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_MODULE_OF[name]}", __name__), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
