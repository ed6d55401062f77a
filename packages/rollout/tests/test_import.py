"""Addresses that were public in 0.2 show the same names as the modules behind them."""

from importlib import import_module

import pytest


@pytest.mark.parametrize("name", ["difficulty", "estimators", "evaluation", "verifiers"])
def test_addresses_of_moved_modules_stay(name: str) -> None:
    address = import_module(f"isocompute.rollout.{name}")
    moved = import_module(f"isocompute.rollout.scoring.{name}")
    assert address.__all__
    for public in address.__all__:
        assert getattr(address, public) is getattr(moved, public)
