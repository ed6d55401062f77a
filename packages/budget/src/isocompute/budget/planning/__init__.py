"""What a budget buys before it is spent: splits of it, sweeps that fit it, and what they cost in time and money.

Names are imported from the modules, so that ``Allocation`` does not load what turns rollouts into money. Those of
``splits`` can also be imported from here, as before version 0.4.0; the module is loaded when one is asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

__all__ = [
    "LONGEST_AXIS",
    "Cell",
    "Constraints",
    "Grid",
    "LeftOut",
    "grid",
    "judged",
    "plural_steps",
]

if TYPE_CHECKING:
    from .splits import LONGEST_AXIS, Cell, Constraints, Grid, LeftOut, grid
    from .splits import check_split as judged
    from .splits import steps_in_words as plural_steps
else:
    # Hidden from the type checker, which would accept every name otherwise.
    _RENAMED = {"judged": "check_split", "plural_steps": "steps_in_words"}

    def __getattr__(name: str) -> object:
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from . import splits

        return getattr(splits, _RENAMED.get(name, name))
