"""The tables that pass between parts: the public address of ``contract.tables``."""

from .contract.tables import *  # noqa: F403
