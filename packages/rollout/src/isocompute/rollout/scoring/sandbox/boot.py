"""The script that a sandbox's first process runs by path.

The package's ``__init__`` imports polars and other modules that scoring does not need. They may start threads, and a
process with threads cannot enter a user namespace. Therefore stubs replace the packages on the way to the sandbox until
its modules are imported.
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

    # A user's verifier imports the real package.
    for name in folders:
        del sys.modules[name]
    launch(settings)


if __name__ == "__main__":
    main()
