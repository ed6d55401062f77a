"""Helpers of the campaign beside it, which checks the ledger of isocompute-budget and needs it installed."""

import sys
from importlib.util import find_spec
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

collect_ignore = [] if find_spec("isocompute.budget") else ["test_kills.py"]
