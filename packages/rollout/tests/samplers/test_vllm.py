"""vLLM in this process on a tiny random model."""

from typing import Any

import pytest
from every_sampler import *  # noqa: F403

pytest.importorskip("vllm")


@pytest.fixture(scope="module")
def kind() -> str:
    return "vllm"


@pytest.fixture(scope="module")
def sampler(vllm_sampler: Any) -> Any:
    return vllm_sampler
