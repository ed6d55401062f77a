"""The tiers of the tests: what starts no engine, no cluster and no server carries the marker ``fast``."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent
SLOW: dict[str, str] = {}
"""Files (or folders) with tests that are not fast, and why."""


def is_slow(path: Path) -> bool:
    """Whether a test file starts something that takes long."""
    place = path.relative_to(ROOT)
    return any(str(part) in SLOW for part in (place, *place.parents))


def pytest_configure(config: pytest.Config) -> None:
    """Make the marker known."""
    config.addinivalue_line("markers", "fast: starts no Ray, no vLLM and no MLflow server (python3 -m nox -s fast)")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the fast tests."""
    for item in items:
        if not is_slow(item.path):
            item.add_marker(pytest.mark.fast)


@pytest.fixture(autouse=True)
def fast_means_fast(pytestconfig: pytest.Config) -> Iterator[None]:
    """Where only fast tests run, refuse one that has loaded vLLM or joined a Ray cluster."""
    yield
    if pytestconfig.option.markexpr == "fast":
        ray = sys.modules.get("ray")
        assert "vllm" not in sys.modules, "this test has loaded vLLM: name its file in SLOW of conftest.py"
        assert not (ray and ray.is_initialized()), "this test has started Ray: name its file in SLOW of conftest.py"
