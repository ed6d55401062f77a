"""Where problems come from: the public address of ``problems``."""

from .problems import *  # noqa: F403
from .problems import __all__ as __all__
