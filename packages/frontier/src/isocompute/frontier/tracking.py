"""MLflow, reached only when asked: the public address of ``contract.tracking``."""

from .contract.errors import TrackingError
from .contract.tracking import (
    attach,
    content_hash,
    ensure_experiment,
    ensure_store,
    fetch,
    is_store,
    log_artifacts,
    supersede_runs,
)

__all__ = [
    "TrackingError",
    "attach",
    "content_hash",
    "ensure_experiment",
    "ensure_store",
    "fetch",
    "is_store",
    "log_artifacts",
    "supersede_runs",
]
