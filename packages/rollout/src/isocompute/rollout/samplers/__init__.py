"""What answers problems: one interface over vLLM (in process or in a Ray actor), transformers and OpenAI's protocol."""

from .registry import KINDS, open_sampler
from .sampling import Sampling

__all__ = ["KINDS", "Sampling", "open_sampler"]
