"""The script that the first process of a sandbox runs, by its path.

The package's own ``__init__`` imports polars and much else that scoring does not need, and that may start threads,
with which a process cannot enter a user namespace. So the packages on the way to the sandbox are stood in for until
its modules are there.
"""

import json
import sys
import types
from pathlib import Path


def main() -> None:
    """Import the sandbox's modules and start."""
    settings = json.loads(sys.argv[1])
    sys.path[:] = settings["path"]
    scoring = Path(__file__).resolve().parents[1]
    folders = {
        "isocompute": scoring.parents[1],
        "isocompute.rollout": scoring.parent,
        "isocompute.rollout.scoring": scoring,
    }
    for name, folder in folders.items():
        package = types.ModuleType(name)
        package.__path__ = [str(folder)]
        sys.modules[name] = package
    from isocompute.rollout.scoring.sandbox.child import launch

    # What a user's verifier imports is the real package.
    for name in folders:
        del sys.modules[name]
    launch(settings)


if __name__ == "__main__":
    main()
