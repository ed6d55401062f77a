"""Refuses to build a wheel without ``contract/``, a link that archives and git on Windows may not keep."""

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class WholeCheckout(BuildHookInterface[Any]):
    """Runs before every build, editable ones included."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Check the link; in an sdist it is a folder."""
        if not list(Path(self.root).glob("src/isocompute/*/contract/__init__.py")):
            raise SystemExit(
                f"{self.root} is a checkout without symbolic links, such as a ZIP: src/isocompute/*/contract is not "
                "the folder contract/; clone with 'git clone -c core.symlinks=true', or install from an sdist"
            )
