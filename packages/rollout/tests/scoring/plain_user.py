"""What the red team needs to be somebody else: a user without rights, and a machine without namespaces."""

import ctypes
import errno
import os
import shutil
import struct
import sys
import sysconfig
from pathlib import Path

USER = 1_800_000_001
"""A user id that belongs to nobody, so that an attack on all processes of its user reaches only its own."""
LARGE = ("torch", "vllm", "ray", "nvidia", "triton", "mlflow", "transformers", "__pycache__", "test", "site-packages")
"""What scoring does not import."""
_NAMESPACES = 0x7E02_0000
_CLONE, _UNSHARE, _SETNS, _CLONE3 = (56, 272, 308, 435) if os.uname().machine == "x86_64" else (220, 97, 268, 435)


def open_to_all(folder: Path, tests: Path) -> tuple[list[str], dict[str, str]]:
    """Copy what a plain user may not read here: the sources, and the interpreter and libraries where root keeps them.

    Returns the beginning of a command, and variables for it.
    """
    ignored = shutil.ignore_patterns(*LARGE, "config-*", ".git")
    source = folder / "src"
    shutil.copytree(tests, folder / "tests" / tests.name, ignore=ignored)
    shutil.copytree(tests.parents[1] / "src", source, ignore=ignored)
    python, home = Path(sys.executable), Path(sys.base_prefix)
    libraries = Path(sysconfig.get_paths()["purelib"])
    variables = {}
    if not _is_open(home):
        shutil.copytree(home, folder / "python", ignore=ignored, symlinks=True)
        python = folder / "python" / "bin" / f"python{sys.version_info[0]}.{sys.version_info[1]}"
        variables["LD_LIBRARY_PATH"] = str(folder / "python" / "lib")
    if not _is_open(libraries):
        shutil.copytree(libraries, folder / "site-packages", ignore=ignored)
        libraries = folder / "site-packages"
    variables["PYTHONPATH"] = os.pathsep.join(map(str, (source, libraries)))
    return [str(python), str(folder / "tests" / tests.name / "redteam.py")], variables


def refuse_namespaces() -> None:
    """Have the kernel refuse namespaces to this process and all that come from it, as many containers do."""
    words = [
        (0x20, 0, 0, 0),
        *[(0x15, 6 - i, 0, number) for i, number in enumerate((_UNSHARE, _SETNS))],
        (0x15, 5, 0, _CLONE3),
        (0x15, 0, 2, _CLONE),
        # The flags, whose low half is what counts.
        (0x20, 0, 0, 16),
        (0x45, 1, 0, _NAMESPACES),
        (0x06, 0, 0, 0x7FFF_0000),
        (0x06, 0, 0, 0x0005_0000 | errno.EPERM),
        (0x06, 0, 0, 0x0005_0000 | errno.ENOSYS),
    ]
    code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *word) for word in words))
    head = ctypes.create_string_buffer(struct.pack("@HP", len(words), ctypes.addressof(code)))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(38, 1, 0, 0, 0) or libc.prctl(22, 2, head, 0, 0):
        raise OSError(ctypes.get_errno(), "no filter can be set")


def _is_open(path: Path) -> bool:
    return all(parent.stat().st_mode & 0o005 == 0o005 for parent in (path, *path.parents))
