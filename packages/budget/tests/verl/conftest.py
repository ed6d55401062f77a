"""The helpers of these tests, and of those of the trainers, can be imported by name."""

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent.parent / "trainers")]
