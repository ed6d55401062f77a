"""The helpers of these tests can be imported by name."""

import signal
import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "trainers")]
# What a script starts in the background ignores SIGINT, and so would the commands that are followed.
signal.signal(signal.SIGINT, signal.default_int_handler)
