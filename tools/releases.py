"""Versions of the packages, with the tags and CHANGELOGs that must agree with them, and of what CI installs.

Only the standard library is needed, since ``noxfile.py`` imports this on a bare Python.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable
from pathlib import Path

from . import environment

PACKAGES = ("budget", "rollout", "learner", "frontier")


class ReleaseError(ValueError):
    """A tag, a version and a CHANGELOG do not agree; the message says what would be right."""


def version_of(root: Path, package: str) -> str:
    """Version in a package's pyproject.toml."""
    document = tomllib.loads((root / "packages" / package / "pyproject.toml").read_text())
    return str(document["project"]["version"])


def versions(root: Path) -> dict[str, str]:
    """Version of every package."""
    return {package: version_of(root, package) for package in PACKAGES}


def check_tag(root: Path, tag: str) -> None:
    """Check that a tag such as ``frontier-v0.1.0`` agrees with the package's version and CHANGELOG.

    Raises:
        ReleaseError: There is no such package, or its version or CHANGELOG says something else.
    """
    package, _, version = tag.partition("-v")
    if package not in PACKAGES:
        raise ReleaseError(f"{tag}: there is no package {package!r}; tags look like frontier-v0.1.0")
    if version != version_of(root, package):
        raise ReleaseError(f"{tag}: the version in packages/{package}/pyproject.toml is {version_of(root, package)}")
    if f"## [{version}]" not in (root / "packages" / package / "CHANGELOG.md").read_text():
        raise ReleaseError(f"{tag}: packages/{package}/CHANGELOG.md has no section [{version}]")


def pinned(path: Path) -> dict[str, str]:
    """The version that a file of requirements pins of each package, without the build's name such as ``+cpu``."""
    return dict(re.findall(r"^([\w.-]+)==([\w.!]+)", path.read_text(), re.MULTILINE))


def check_locked(root: Path) -> None:
    """Check that the hashes that CI installs are those of the versions in constraints.txt.

    Raises:
        ReleaseError: A package is missing from either file, or has another version there.
    """
    versions, hashed = pinned(root / environment.COMPLETE), pinned(root / environment.HASHED)
    if others := sorted(name for name, _ in versions.items() ^ hashed.items()):
        raise ReleaseError(
            f"{environment.HASHED}: not the versions of {environment.COMPLETE}: {', '.join(dict.fromkeys(others))}; "
            "`python3 -m nox -s constraints -- hashes` writes it"
        )


def check(root: Path, tags: Iterable[str] = ()) -> list[str]:
    """Check the tags named, or those of the present versions.

    Returns:
        The tags that agree.

    Raises:
        ReleaseError: The first thing that does not agree.
    """
    wanted = list(tags) or [f"{package}-v{version}" for package, version in versions(root).items()]
    for tag in wanted:
        check_tag(root, tag)
    return wanted
