"""What a release must agree with: versions, CHANGELOGs and the contract that all four packages carry.

Only the standard library is needed, since ``noxfile.py`` imports this on a bare Python.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable
from hashlib import sha256
from pathlib import Path

PACKAGES = ("budget", "rollout", "learner", "frontier")
LOCK = "contract.lock"
"""File that records the content of ``contract/`` and the versions that were the first to carry it."""


class ReleaseError(ValueError):
    """A version, a CHANGELOG and the contract do not agree; the message says what would be right."""


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


def contract_hash(root: Path) -> str:
    """Hash of the names and the content of the files in ``contract/``."""
    folder = root / "contract"
    found = sha256()
    for path in sorted(p for p in folder.rglob("*") if p.is_file() and "__pycache__" not in p.parts):
        content = path.read_bytes()
        found.update(f"{path.relative_to(folder).as_posix()}\0{len(content)}\0".encode() + content)
    return found.hexdigest()


def check_contract(root: Path) -> None:
    """Check that ``contract/`` is what the versions of all four packages were raised for.

    Raises:
        ReleaseError: It has changed since, so that every package would be released with other files under its name.
    """
    recorded = json.loads((root / LOCK).read_text())
    if recorded["sha256"] != contract_hash(root):
        carried = ", ".join(f"{package} {version}" for package, version in recorded["versions"].items())
        raise ReleaseError(
            f"contract/ has changed since {carried}: it is part of all four packages, so raise the version of each, "
            "add a CHANGELOG section to each, and run `python3 -m nox -s release-check -- --record-contract`"
        )


def record_contract(root: Path) -> None:
    """Record the content of ``contract/`` for the present versions.

    Raises:
        ReleaseError: It has changed, and the version of a package is not above the one that carried the old content.
    """
    path = root / LOCK
    if path.exists():
        recorded = json.loads(path.read_text())
        if recorded["sha256"] == contract_hash(root):
            return
        same = [p for p, v in versions(root).items() if _number(v) <= _number(recorded["versions"][p])]
        if same:
            raise ReleaseError(
                f"contract/ has changed, and the version of {', '.join(same)} is not above the one in {LOCK}: "
                "raise it in packages/NAME/pyproject.toml, and add a CHANGELOG section"
            )
    document = {"sha256": contract_hash(root), "versions": versions(root)}
    path.write_text(json.dumps(document, indent=2) + "\n")


def check(root: Path, tags: Iterable[str] = ()) -> list[str]:
    """Check the tags named, or those of the present versions, and the contract.

    Returns:
        The tags that agree.

    Raises:
        ReleaseError: The first thing that does not agree.
    """
    wanted = list(tags) or [f"{package}-v{version}" for package, version in versions(root).items()]
    for tag in wanted:
        check_tag(root, tag)
    check_contract(root)
    return wanted


def _number(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdigit())
