"""A run's configuration, asked by name: what is missing is an error that says how to give it."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from typing import Any

from ..errors import FrontierError


class Settings:
    """Configuration of one run.

    Args:
        where: The run, for messages.
        found: What logs and configuration files say, with dotted keys.
        given: What the user says; goes first.
    """

    def __init__(self, where: str, found: Mapping[str, Any], given: Mapping[str, str]) -> None:
        self._where = where
        self._found = {key.replace("/", "."): value for key, value in found.items()}
        self._given = given

    def number(self, name: str, *keys: str, default: float | None = None, meaning: str = "") -> float:
        """A number by our name or by one of the framework's keys.

        Raises:
            FrontierError: It is nowhere, or is no number.
        """
        value = self._given.get(name)
        for key in keys:
            value = self._found.get(key) if value is None else value
        # MLflow keeps every parameter as text, None included.
        if value is None or value == "None":
            if default is not None:
                return default
            what = f" ({meaning})" if meaning else ""
            known = f"neither {' nor '.join(keys)} is in its logs or configuration; " if keys else ""
            raise FrontierError(f"{self._where}: {name}{what} is not known: {known}give it with --set {name}=VALUE")
        try:
            return float(value)
        except (TypeError, ValueError):
            raise FrontierError(f"{self._where}: {name} is {value!r}, which is no number") from None

    def whole(self, name: str, *keys: str, default: int | None = None, meaning: str = "") -> int:
        """A whole number of at least 1; see ``number``."""
        value = self.number(name, *keys, default=default, meaning=meaning)
        if value != int(value) or value < 1:
            raise FrontierError(f"{self._where}: {name} is {value:g}; it has to be a whole number of at least 1")
        return int(value)

    def text(self, name: str, *keys: str, default: str) -> str:
        """A text; see ``number``."""
        for value in (self._given.get(name), *(self._found.get(key) for key in keys)):
            if value is not None:
                return str(value)
        return default

    def common(self, *, n: int, problems: int, seed_keys: tuple[str, ...]) -> dict[str, Any]:
        """The columns of ``evals`` that are the same in every row of a run."""
        identity = repr((self._where, sorted(self._found.items(), key=str), sorted(self._given.items())))
        return {
            "run_id": sha256(identity.encode()).hexdigest()[:16],
            "rollouts_per_problem": n,
            "problems_per_batch": problems,
            "seed": int(self.number("seed", *seed_keys, default=0)),
            "split": "validation",
            "questions": self.whole("questions", meaning="how many validation problems there are"),
        }
