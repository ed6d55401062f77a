"""The order of the tests."""

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest file first, so that of two processes neither is left alone with it at the end."""
    items.sort(key=lambda item: item.path.name != "test_pipeline.py")
