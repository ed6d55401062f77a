"""The processes that a scorer has started."""

import contextlib
from pathlib import Path


def descendants(pid: int) -> set[int]:
    """Processes below one, as far as they still run while this looks."""
    children: set[int] = set()
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            children |= {int(child) for child in (task / "children").read_text().split()}
    return children.union(*map(descendants, children))
