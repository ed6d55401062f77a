"""MLflow, reached only when asked: the public address of ``contract.tracking``."""

from .contract.tracking import *  # noqa: F403
