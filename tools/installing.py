"""The environment of a nox session: what is installed, within which versions, and its variables."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

import nox

from . import environment
from .releases import pinned


def uv_variables() -> dict[str, str]:
    """Hand pip's configuration on to uv, which does not read it."""
    links = os.environ.get("UV_FIND_LINKS") or os.environ.get("PIP_FIND_LINKS")
    if not links:
        command = [sys.executable, "-m", "pip", "config", "get", "global.find-links"]
        asked = subprocess.run(command, capture_output=True, text=True, check=False)
        links = asked.stdout.strip() if asked.returncode == 0 else ""
    if links:
        return {"UV_FIND_LINKS": links}
    return {} if environment.has_gpu() else {"UV_TORCH_BACKEND": "cpu"}


def install_all(session: nox.Session, *extra: str, constraints: str = "") -> None:
    """Install the four packages with what this machine samples with, and say what was chosen."""
    uv = session.venv_backend == "uv"
    chosen = environment.of_this_machine(uv=uv)
    packages: list[str] = []
    for name, extras in (
        ("budget", "mlflow,yaml"),
        ("rollout", "mlflow,math,reasoning-gym,bubblewrap,hub,transformers"),
        ("learner", "lora,mlflow,ray"),
        ("frontier", "mlflow"),
    ):
        packages += ["-e", f"packages/{name}[{extras}]"]
    common = [*packages, "mlflow", "dvc", "pyyaml", "pydantic>=2.11,<3", *extra]
    session.log(f"{chosen.reason} (sampler: {chosen.sampler})")
    with tempfile.TemporaryDirectory() as folder:
        overrides = Path(folder) / "overrides.txt"
        overrides.write_text("".join(f"{name} ; sys_platform == 'never'\n" for name in chosen.without))
        flags = ["--overrides", str(overrides)] if chosen.without else []
        if os.environ.get("CI") and chosen.constraints == environment.COMPLETE and not constraints:
            install_locked(session, packages, extra, flags)
            return
        try:
            session.install(
                *flags, "-c", constraints or chosen.constraints, *common, *chosen.requirements, env=uv_variables()
            )
        except nox.command.CommandFailed:
            if chosen.sampler != "vllm":
                raise
            if environment.VLLM_CUDA in chosen.requirements:
                # What is slow and never said would be paid for by the hour.
                session.error("vLLM's CUDA build could not be installed on this machine with a GPU; see above why")
            chosen = environment.without_vllm("vLLM could not be installed")
            session.warn(chosen.reason)
            session.install("-c", chosen.constraints, *common, *chosen.requirements, env=uv_variables())


def install_locked(session: nox.Session, packages: list[str], extra: tuple[str, ...], flags: list[str]) -> None:
    """Install the files of known hashes and nothing else; then our packages, and what a session asks for besides."""
    # What is built here, ours and the few that have no wheel, is built with tools of known hashes, too.
    within = ["--build-constraints", environment.HASHED]
    # uv takes triton, too, from where torch's CPU build comes from, and from there it is another file.
    session.install("--no-deps", "-c", environment.HASHED, "torch", env=uv_variables())
    others_from = {name: value for name, value in uv_variables().items() if name != "UV_TORCH_BACKEND"}
    session.install("--require-hashes", "--no-deps", *within, "-r", environment.HASHED, env=others_from)
    session.install("--no-deps", *within, *packages, env=uv_variables())
    locked = pinned(Path(environment.HASHED))
    if others := [name for name in extra if name not in locked]:
        session.install(*flags, *within, "-c", environment.HASHED, *others, env=uv_variables())


def write_locks(session: nox.Session) -> None:
    """Write the hashes of what constraints.txt names, and of the tools of CI and of releases."""
    command = "python3 -m nox -s constraints -- hashes"
    anywhere = ("--universal", "--python-version", "3.11", "--generate-hashes", "--no-header", "--no-annotate")
    # uv reads a list of names from a file.
    asked = Path(session.create_tmp()).resolve() / "asked.in"
    asked.write_text("nox[uv]\n")
    nox_and_uv = str(session.run("uv", "pip", "compile", "-q", *anywhere, str(asked), external=True, silent=True))
    asked.write_text("cyclonedx-bom\n")
    for path, about, text in (
        (environment.HASHED, "The files of constraints.txt for CI", here(session, environment.COMPLETE, "--no-deps")),
        (environment.NOX, "nox and uv for CI, on any platform", nox_and_uv),
        (environment.SBOM, "What describes a release", here(session, str(asked))),
    ):
        Path(path).write_text(f"# {about}; `{command}` writes it.\n{text}")


def here(session: nox.Session, *asked: str) -> str:
    """Versions with the hashes of the files that Python 3.11 on Linux x86_64 may install, one of twenty."""
    # Only this format tells which these are; it cannot be kept, since it names the place of each.
    found = Path(session.create_tmp()).resolve() / "pylock.toml"
    platform = ("--python-version", "3.11", "--python-platform", "x86_64-manylinux_2_40")
    command = ("uv", "pip", "compile", "-q", *platform, "--format", "pylock.toml", "-o", str(found))
    session.run(*command, *asked, external=True, silent=True, env=uv_variables())
    lines = []
    for package in tomllib.loads(found.read_text())["packages"]:
        files = package.get("wheels") or [package["sdist"]]
        hashes = sorted(f"--hash=sha256:{file['hashes']['sha256']}" for file in files)
        lines.append(" \\\n    ".join([f"{package['name']}=={package['version']}", *hashes]) + "\n")
    return "".join(lines)


def frozen(session: nox.Session) -> list[str]:
    """List what is installed, without our own packages and the builds' names."""
    listed = session.run("uv", "pip", "freeze", "--python", session.virtualenv.location, external=True, silent=True)
    return [line.partition("+")[0] for line in str(listed).splitlines() if "==" in line]


def interpreter(version: str) -> str | None:
    """Path of a Python of some version: this one, one on the path, or one of pyenv's."""
    if version == f"{sys.version_info.major}.{sys.version_info.minor}":
        return sys.executable
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    found = [shutil.which(f"python{version}"), *map(str, sorted(pyenv.glob(f"{version}.*/bin/python{version}")))]
    for path in filter(None, found):
        # pyenv's shims are on the path even for versions that they then refuse.
        if subprocess.run([path, "-c", ""], capture_output=True, check=False).returncode == 0:
            return path
    return None


def run_variables() -> dict[str, str]:
    """Environment variables of every run: one thread per process, no telemetry, libraries compiled once."""
    return {
        # Without bytecode each of the many processes compiles what it imports again, for seconds.
        "PYTHONDONTWRITEBYTECODE": "",
        # Ray would start a process per core that nothing may come to need.
        "RAY_prestart_worker_first_driver": "0",
        "PYTHONUNBUFFERED": "1",
        "OMP_NUM_THREADS": "1",
        "DO_NOT_TRACK": "1",
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "TOKENIZERS_PARALLELISM": "false",
        "PYTHONWARNINGS": "ignore",
    }


def test_variables() -> dict[str, str]:
    """Those of every test, which asks nothing of the hub; of a run the preset decides."""
    return {**run_variables(), "HF_HUB_OFFLINE": "1"}
