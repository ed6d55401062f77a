"""Every command of the repository: ``python3 -m nox -s repro`` and ``-s tests`` are the ones to begin with."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
from functools import partial
from pathlib import Path

import nox

ROOT = Path(__file__).parent
sys.path.insert(0, str(ROOT))

from tools import environment, releases  # noqa: E402
from tools.installing import (  # noqa: E402
    frozen,
    install_all,
    interpreter,
    run_variables,
    test_variables,
    uv_variables,
    write_locks,
)

nox.options.default_venv_backend = "uv|venv"
nox.options.sessions = ["tests"]
nox.options.reuse_existing_virtualenvs = True

CAMPAIGN = ["campaign"]
"""Tag of what ``tests`` leaves out; .github/workflows/campaigns.yml runs each such session every week."""
PACKAGES = releases.PACKAGES
LIGHT = ("budget", "frontier")
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
"""Those of the light packages; the others need the first."""
TESTED = ("experiments", "packages", "benchmarks", "tools")
# Each process imports everything, and the engines and clusters that tests wait for run beside; in order of collection.
TOGETHER = ("--numprocesses=2", "--dist=loadfile", "--no-loadscope-reorder")
CALIBRATIONS = ("calibration", "honesty", "power", "dirt", "regret", "allocation")
TOOLS = "# Tools of the tests, on which no result depends."
TEST_TOOLS = ("pytest", "pytest-cov", "pytest-xdist", "hypothesis", "grimp", "jsonschema", "hatchling", "shtab")

TRL = ("trl==1.16.*", "datasets")
"""What cells that TRL trains need besides, within the versions of the pipeline."""


@nox.session(reuse_venv=False)
def constraints(session: nox.Session) -> None:
    """Write constraints.txt and its hashes anew, within constraints-direct.txt; ``-- hashes`` only the hashes."""
    if session.posargs == ["hashes"]:
        write_locks(session)
        return
    install_all(session, constraints=environment.DIRECT)
    pipeline = frozen(session)
    install_all(session, *TEST_TOOLS, constraints=environment.DIRECT)
    tools = sorted(set(frozen(session)) - set(pipeline))
    about = [
        "# Versions that were tested together, complete: Python 3.11 on Linux x86_64 with vLLM's CPU build.",
        "# `python3 -m nox -s constraints` writes it; elsewhere constraints-direct.txt applies.",
    ]
    (ROOT / environment.COMPLETE).write_text("\n".join([*about, *pipeline, TOOLS, *tools]) + "\n")
    write_locks(session)


@nox.session(tags=CAMPAIGN)
def repro(session: nox.Session, *extra: str) -> None:
    """Run the whole pipeline and print what it found."""
    install_all(session, *extra)
    # Interrupted, it saves the state of what it trains first.
    session.run("python", "-m", "experiments", "repro", *session.posargs, env=run_variables(), interrupt_timeout=600)


@nox.session(name="repro-trl")
def repro_trl(session: nox.Session) -> None:
    """Run the pipeline where TRL is installed, for a preset whose cells TRL trains, such as ``trl``."""
    repro(session, *TRL)


@nox.session(name="tests-trl", tags=CAMPAIGN)
def tests_trl(session: nox.Session) -> None:
    """Run the tests of cells that TRL trains: real runs, killed and continued."""
    install_all(session, *TRL, *TEST_TOOLS)
    chosen = session.posargs or ["-rs", "experiments/tests/commands/test_trl.py"]
    session.run("python", "-m", "pytest", "-q", *chosen, env={**test_variables(), "ISOCOMPUTE_TRL": "installed"})


@nox.session
def tests(session: nox.Session) -> None:
    """Run all tests."""
    install_all(session, *TEST_TOOLS)
    chosen = session.posargs or [*TOGETHER, *TESTED]
    session.run("python", "-m", "pytest", "--durations=10", *chosen, env=test_variables())


@nox.session
def fast(session: nox.Session) -> None:
    """Run the tests that start no engine, no cluster and no other process: most of them, with fewer examples."""
    install_all(session, *TEST_TOOLS)
    chosen = session.posargs or [*TOGETHER, *TESTED]
    session.run("python", "-m", "pytest", "-q", "-m", "fast", *chosen, env=test_variables())


@nox.session(tags=CAMPAIGN)
def faults(session: nox.Session) -> None:
    """Run the long campaigns: killed ledgers, damaged logs, random histories, faulty engines, replicas and servers."""
    install_all(session, *TEST_TOOLS)
    many = {"JOURNALS": 5_000, "KILLS": 500, "HISTORIES": 30_000, "HELD_SECONDS": 60, "LAG_SCHEDULES": 400}
    many |= {"ROLLOUT_FAULTS": 100, "LEARNER_FAULTS": 100, "REPLICA_FAULTS": 100, "LOG_FAULTS": 2_000}
    more = {f"ISOCOMPUTE_{name}": str(number) for name, number in many.items()}
    found = [f"packages/budget/tests/ledger/test_{name}.py" for name in ("fold", "store", "torture")]
    found += ["packages/budget/tests/trainers/test_damaged_logs.py"]
    found += [f"packages/rollout/tests/samplers/test_{name}.py" for name in ("replicas", "openai", "vllm")]
    found += ["packages/rollout/tests/samplers/replicas", "packages/learner/tests/faults"]
    found += [f"experiments/tests/test_{name}.py" for name in ("stale_weights", "lag_account")]
    session.run("python", "-m", "pytest", "-v", "-s", *(session.posargs or found), env={**test_variables(), **more})


@nox.session(tags=CAMPAIGN)
def studies(session: nox.Session) -> None:
    """Run all tests of the studies: also units of the panel, fitted again, which `tests` leaves out."""
    install_all(session, *TEST_TOOLS)
    chosen = session.posargs or ["-rs", "experiments/studies"]
    session.run("python", "-m", "pytest", "-q", *chosen, env={**test_variables(), "ISOCOMPUTE_FITS": "again"})


@nox.session(tags=CAMPAIGN)
def families(session: nox.Session) -> None:
    """Try every family of causal models that transformers has, tiny and random: packed, padded, refused, or wrong."""
    install_all(session)
    session.run("python", "packages/learner/tests/families.py", *session.posargs, env=run_variables())


@nox.session(tags=CAMPAIGN)
def soak(session: nox.Session) -> None:
    """Run 1,000 cells of stubs while nodes, disks, memory and MLflow fail, and end the pipeline ten times."""
    install_all(session, *TEST_TOOLS)
    whole = {"ISOCOMPUTE_SOAK_CELLS": "1000", "ISOCOMPUTE_PIPELINE_KILLS": "10"}
    more = {name: os.environ.get(name, many) for name, many in whole.items()}
    found = ["experiments/tests/test_soak.py", "experiments/tests/test_pipeline_kills.py"]
    session.run("python", "-m", "pytest", "-v", "-s", *(session.posargs or found), env={**test_variables(), **more})


@nox.session(tags=CAMPAIGN)
def redteam(session: nox.Session) -> None:
    """Put every attack through every verifier in six ways, with and without root, bubblewrap, namespaces, Landlock."""
    install_all(session, *TEST_TOOLS)
    session.run("python", "packages/rollout/tests/scoring/redteam.py", *session.posargs, env=run_variables())


@nox.session
def golden(session: nox.Session) -> None:
    """Compare what this tree and another commit compute: ``-- COMMIT``, ``-- COMMIT ledger`` for a part."""
    install_all(session)
    session.run("python", "tools/golden.py", *session.posargs, env=test_variables())


@nox.session(tags=CAMPAIGN)
def mutants(session: nox.Session) -> None:
    """Change numbers and lines that decide an answer, one at a time, and see fast tests fail."""
    install_all(session, *TEST_TOOLS)
    session.run("python", "tools/mutants.py", *session.posargs, env=test_variables())


@nox.session
def lint(session: nox.Session) -> None:
    """Ruff, the import contracts, and the workflows of CI."""
    tools = ("ruff==0.15.*", "import-linter==2.*", "zizmor==1.*", "check-jsonschema==0.*")
    session.install(*tools, env=uv_variables())
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    paths = [ROOT, *(ROOT / "packages" / p / "src" for p in PACKAGES)]
    # Its cache does not notice files that are gone.
    session.run("lint-imports", "--no-cache", "--no-logo", env={"PYTHONPATH": os.pathsep.join(map(str, paths))})
    workflows = sorted(map(str, ROOT.glob(".github/workflows/*.yml")))
    session.run("check-jsonschema", "--builtin-schema", "vendor.github-workflows", *workflows)
    dependabot = str(ROOT / ".github" / "dependabot.yml")
    session.run("check-jsonschema", "--builtin-schema", "vendor.dependabot", dependabot)
    session.run("zizmor", "--offline", "--no-progress", *workflows, dependabot)


@nox.session
def types(session: nox.Session) -> None:
    """Mypy, strict."""
    install_all(session, "mypy", "types-PyYAML")
    session.run("mypy", *[f"packages/{p}/src" for p in PACKAGES], "experiments", "benchmarks", "tools")


@nox.session
def isolated(session: nox.Session) -> None:
    """Build each wheel and try it alone: its commands, its README, its fast tests.

    ``-- budget 3.12`` takes one package on one Python, ``-- newest`` the newest Python of each, ``-- whole`` all tests.
    """
    session.install("build", "hatchling", "uv", env=uv_variables())
    words = {*session.posargs}
    asked = sorted(word for word in words if word[0].isdigit())
    for package in [name for name in PACKAGES if name in words] or PACKAGES:
        found = {v: interpreter(v) for v in asked or (PYTHONS if package in LIGHT else PYTHONS[:1])}
        missing = [version for version, python in found.items() if python is None]
        if PYTHONS[0] in missing or (missing and asked):
            session.error(f"Python {missing[0]} is required and was not found")
        if missing:
            session.warn(f"{package}: skipped on Python {', '.join(missing)}, which is not installed")
        installed = [python for python in found.values() if python is not None]
        for python in installed[-1:] if "newest" in words else installed:
            try_wheel(session, package, python, whole="whole" in words)


def try_wheel(session: nox.Session, package: str, python: str, *, whole: bool) -> None:
    """Install one wheel in a fresh environment; ask each command for help, and run the package's tests there."""
    folder = Path(session.create_tmp()).resolve() / f"{package}-{Path(python).parent.parent.name}"
    shutil.rmtree(folder, ignore_errors=True)
    uv = {**uv_variables(), "UV_PYTHON_DOWNLOADS": "never"}
    # The wheel is built from the sdist, in which the links to contract/ are files.
    session.run("uv", "build", "-q", "-o", str(folder / "dist"), f"packages/{package}", env=uv)
    session.run("uv", "venv", "-q", "--python", python, str(folder / "venv"), env=uv)
    programs = folder / "venv" / ("Scripts" if sys.platform == "win32" else "bin")
    # torch is pinned where only its CPU build is wanted: the registry's newest is the CUDA one.
    also = {"learner": ["ray", "peft", *torch_of_this_machine()]}.get(package, [])
    needed = [str(next((folder / "dist").glob("*.whl"))), *also, "pytest", "pytest-xdist", "hypothesis", "pyyaml"]
    into = ("uv", "pip", "install", "-q", "--python", str(programs / "python"), "-c", str(ROOT / environment.DIRECT))
    session.run(*into, *needed, env=uv)
    # The figures and data of the README come with it. The folder lies in the checkout: conftest.py and the settings of
    # pytest at its root apply.
    for part in ("tests", "docs"):
        if (source := ROOT / "packages" / package / part).exists():
            shutil.copytree(source, folder / part)
    shutil.copy(ROOT / "packages" / package / "README.md", folder)

    run = partial(session.run, external=True, env=test_variables())
    tool, pytest = str(programs / f"isocompute-{package}"), (str(programs / "python"), "-m", "pytest", "-q")
    with session.chdir(folder):
        run(str(programs / "python"), "-c", f"import isocompute.{package}")
        commands = re.findall(r"^    ([a-z][\w-]*)", str(run(tool, "--help", silent=True)), re.MULTILINE)
        if not commands:
            session.error(f"{tool} --help names no command")
        for command in commands:
            run(tool, command, "--help", silent=True)
        if whole:
            run(*pytest, *TOGETHER, "tests")
        else:
            run(*pytest, "tests/test_readme.py")
            run(*pytest, "-m", "fast", "--ignore=tests/test_readme.py", *TOGETHER, "tests")


def torch_of_this_machine() -> list[str]:
    """The torch that this machine is to have, where it is not the registry's newest."""
    return [r for r in environment.of_this_machine(uv=True).requirements if r.startswith("torch")]


@nox.session(tags=CAMPAIGN)
def trainers(session: nox.Session) -> None:
    """Compare with the trainers, installed: the budget's settings with four, the learner's losses with TRL and veRL."""
    # veRL pins an older transformers for its engines; its configuration, losses and trainers need only these.
    of_verl = (
        "hydra-core codetiming tensordict>=0.8,<=0.10,!=0.9.0 ray dill orjson pandas torchdata TransferQueue==0.1.*"
    )
    of_verl += " cachetools fastapi uvicorn aiohttp peft"
    theirs = ["trl==1.16.*", "datasets", "tensorboard", "wandb", "trackio", "uv", *of_verl.split()]
    ours = ["packages/budget[test]", "-e", "packages/learner"]
    session.install(*ours, *theirs, *(torch_of_this_machine() or ["torch"]), env=uv_variables())
    session.install("--no-deps", "verl==0.9.*", env=uv_variables())
    own = [f"packages/budget/tests/trainers/test_{name}.py" for name in ("trl", "attach", "verl", "stores")]
    own += ["packages/budget/tests/follow", "packages/budget/tests/verl"]
    tests = [*own, "packages/learner/tests/parity", "-rs", *session.posargs]
    session.run("python", "-m", "pytest", "-q", *tests, env={**test_variables(), "ISOCOMPUTE_TRAINERS": "installed"})
    newer_trainers(session)


def newer_trainers(session: nox.Session) -> None:
    """The trainers that need Python 3.12, for which the registry's torch is the CUDA build of several GB."""
    python = interpreter("3.12")
    if python is None:
        session.warn("SkyRL and OpenRLHF: skipped, because Python 3.12 is not installed")
        return
    folder = Path(session.create_tmp()).resolve() / "newer"
    executable = str(folder / "bin" / "python")
    uv = {**uv_variables(), "UV_PYTHON_DOWNLOADS": "never"}
    session.run("uv", "venv", "-q", "--clear", "--python", python, str(folder), env=uv)
    # What their configuration and its validation import, and not the engines.
    needed = "torch ray omegaconf cloudpathlib loguru jaxtyping func_timeout tensordict datasets transformers peft rich"
    needed += " aiohttp orjson pybase64 pylatexenc"
    into = ("uv", "pip", "install", "-q", "--python", executable)
    session.run(*into, "packages/budget[test]", *needed.split(), env=uv)
    session.run(*into, "--no-deps", "skyrl==0.4.*", "skyrl-gym==0.4.*", "openrlhf==0.11.*", env=uv)
    tests = [*(f"packages/budget/tests/trainers/test_{name}.py" for name in ("skyrl", "openrlhf")), "-rs"]
    variables = {**test_variables(), "ISOCOMPUTE_TRAINERS_NEWER": "installed"}
    session.run(executable, "-m", "pytest", "-q", *tests, external=True, env=variables)


@nox.session
def ui(session: nox.Session) -> None:
    """Open the MLflow UI on what this checkout has run."""
    install_all(session)
    server = ["mlflow", "server", "--backend-store-uri", f"sqlite:///{ROOT / 'mlflow.db'}", "--port", "5000"]
    session.run(*server, env={**test_variables(), "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"})


@nox.session
def screenshot(session: nox.Session) -> None:
    """Save docs/mlflow-charts.png: the default sweep in the MLflow UI, which ``ui`` serves, in headless Chromium."""
    install_all(session, "playwright")
    session.run("python", "-m", "tools.screenshot", *session.posargs, env=test_variables())


@nox.session
def figures(session: nox.Session) -> None:
    """Draw the figures of docs/frontier.md again, with the commands that stand there."""
    session.install("packages/frontier", env=uv_variables())
    out = Path(session.create_tmp()).resolve() / "figures"
    shutil.rmtree(out, ignore_errors=True)
    shutil.copytree(ROOT / "packages" / "frontier" / "docs", out / "packages" / "frontier" / "docs")
    text = (ROOT / "docs" / "frontier.md").read_text()
    with session.chdir(out):
        for line in text[: text.index("## Runs of other trainers")].splitlines():
            if line.startswith("    isocompute-frontier "):
                session.run(*shlex.split(line), env=test_variables())
    for made in ("curves", "frontier", "forecast", "trl-trade"):
        folder = {"forecast": "", "trl-trade": "trl-fitted/"}.get(made, "fitted/")
        shutil.copy(out / f"{folder}{made.removeprefix('trl-')}.png", ROOT / "docs" / f"frontier-{made}.png")
    shutil.copy(out / "fitted" / "decision.png", ROOT / "packages" / "frontier" / "docs")


@nox.session(tags=CAMPAIGN)
def bandit(session: nox.Session) -> None:
    """Compute the tables of docs/bandit.md, fail where the page differs, and draw its figure: one problem, exact."""
    install_all(session)
    wanted = ("--page", "docs/bandit.md", "--out", *(session.posargs or ["docs"]))
    session.run("python", "-m", "experiments.studies.bandit", *wanted, env=test_variables())


@nox.session(tags=CAMPAIGN)
def calibration(session: nox.Session) -> None:
    """Count how often intervals, claims and choices of the posterior are right: ``-- power --sweeps 20`` for a part."""
    session.install("packages/frontier", env=uv_variables())
    chosen = [word for word in session.posargs if word in CALIBRATIONS]
    rest = [word for word in session.posargs if word not in CALIBRATIONS]
    for name in chosen or CALIBRATIONS:
        session.run("python", "-m", f"benchmarks.frontier.{name}", *rest, env=test_variables())


@nox.session(tags=CAMPAIGN)
def oracle(session: nox.Session) -> None:
    """Compare the posterior with NUTS of the same model written in numpyro, on made-up and on published runs."""
    session.install("packages/frontier", "numpyro==0.22.*", *TEST_TOOLS, env=uv_variables())
    session.run("python", "-m", "pytest", "-v", "-s", "packages/frontier/tests/oracle", env=test_variables())


@nox.session
def docs(session: nox.Session) -> None:
    """Build the API pages and the other documents into site/; a warning is an error."""
    session.install("mkdocs==1.6.*", "mkdocstrings[python]==1.*", "ruff==0.15.*", env=uv_variables())
    session.run("mkdocs", "build", "--strict", *session.posargs)


@nox.session(name="docs-check")
def docs_check(session: nox.Session) -> None:
    """Run the examples of every README and manual, and follow the links between the documents."""
    install_all(session, *TEST_TOOLS)
    found = sorted(str(p) for p in ROOT.glob("packages/*/tests/test_readme.py"))
    found += ["experiments/tests/test_documents.py", "experiments/tests/test_repository.py"]
    session.run("python", "-m", "pytest", "-q", *found, env=test_variables())


@nox.session
def licences(session: nox.Session) -> None:
    """Print the licences of all that the tests install, and fail on one that is neither permissive nor accepted."""
    install_all(session, *TEST_TOOLS)
    session.run("python", "-m", "tools.licences")


@nox.session
def sbom(session: nox.Session) -> None:
    """Write dist/NAME.cdx.json (CycloneDX) for each wheel in dist/: what it needs, at the versions tested together."""
    session.install("--require-hashes", "-r", environment.SBOM, env=uv_variables())
    for wheel in sorted((ROOT / "dist").glob("*.whl")):
        package = wheel.name.partition("-")[0]
        folder = Path(session.create_tmp()).resolve() / package
        python = str(folder / "bin" / "python")
        session.run("uv", "venv", "-q", "--clear", "--python", sys.executable, str(folder), external=True)
        into = ("uv", "pip", "install", "-q", "--python", python, "-c", environment.HASHED)
        session.run(*into, str(wheel), external=True, env=uv_variables())
        described = ROOT / "packages" / package.removeprefix("isocompute_") / "pyproject.toml"
        what = ("--pyproject", str(described), "--mc-type", "library", "--output-reproducible")
        session.run("cyclonedx-py", "environment", *what, "-o", str(wheel.parent / f"{package}.cdx.json"), python)


@nox.session(name="release-check", venv_backend="none")
def release_check(session: nox.Session) -> None:
    """Check that tags such as frontier-v0.1.0 agree with versions and CHANGELOGs, and hashes with constraints.txt."""
    try:
        releases.check_locked(ROOT)
        for tag in releases.check(ROOT, session.posargs):
            session.log(f"{tag} agrees with its version and its CHANGELOG")
    except releases.ReleaseError as error:
        session.error(str(error))
