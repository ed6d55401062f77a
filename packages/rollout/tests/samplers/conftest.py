"""Make the tests that several engines share importable."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
pytest.register_assert_rewrite("every_sampler", "every_sync")
