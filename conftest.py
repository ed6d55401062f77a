"""The tiers of the tests: what starts no engine, cluster or server and simulates little carries the marker ``fast``."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent
SLOW = {
    "experiments/tests/test_bad_input.py": "stages as processes, which load torch",
    "experiments/tests/test_cell.py": "vLLM and Ray",
    "experiments/tests/test_doors.py": "vLLM and Ray",
    "experiments/tests/test_examples.py": "fits of the README",
    "experiments/tests/test_identity.py": "hashes of all code, again and again",
    "experiments/tests/test_ingest_loggers.py": "MLflow",
    "experiments/tests/test_loaded.py": "Ray",
    "experiments/tests/test_pipeline.py": "the whole pipeline",
    "experiments/tests/test_pool.py": "Ray",
    "experiments/tests/test_schedule.py": "vLLM and Ray",
    "experiments/tests/test_soak.py": "Ray",
    "experiments/tests/test_tracker.py": "MLflow stores, stages as processes",
    "experiments/tests/test_tracker_server.py": "an MLflow server",
    "packages/budget/tests/ledger/test_history.py": "random histories",
    "packages/budget/tests/commands/test_misuse.py": "hundreds of wrong commands",
    "packages/budget/tests/ledger/test_fold.py": "a campaign of random histories",
    "packages/budget/tests/ledger/test_torture.py": "a campaign of faults and kills",
    "packages/budget/tests/trainers/test_ingest_bad_input.py": "random logs",
    "packages/budget/tests/trainers/test_ingest_stores.py": "MLflow stores",
    "packages/frontier/tests/answers/test_fits.py": "many fits",
    "packages/frontier/tests/answers/test_no_effect.py": "simulated sweeps",
    "packages/frontier/tests/answers/test_properties.py": "many fits",
    "packages/frontier/tests/data/test_bad_input.py": "a million rows",
    "packages/frontier/tests/fitting/test_coverage.py": "simulated sweeps",
    "packages/frontier/tests/fitting/test_questions.py": "simulated sweeps",
    "packages/frontier/tests/show/test_figures.py": "every figure",
    "packages/frontier/tests/test_readme.py": "every command of the tutorials",
    "packages/learner/tests/faults/test_kills.py": "processes that train and are killed",
    "packages/learner/tests/saving/test_export_vllm.py": "vLLM",
    "packages/learner/tests/ranks/test_group.py": "Ray",
    "packages/rollout/tests/commands/sampling/test_journaled.py": "processes that sample and are killed",
    "packages/rollout/tests/commands/test_evaluate.py": "models in processes of their own",
    "packages/rollout/tests/commands/test_misuse.py": "dozens of wrong commands",
    "packages/rollout/tests/commands/test_mlflow.py": "MLflow in processes of its own",
    "packages/rollout/tests/commands/test_resume.py": "1,000 problems measured in processes that are killed",
    "packages/rollout/tests/faults/test_engines.py": "vLLM and Ray",
    "packages/rollout/tests/faults/test_servers.py": "a vLLM server",
    "packages/rollout/tests/problems/test_loading.py": "every task of reasoning-gym",
    "packages/rollout/tests/problems/test_math_answers.py": "a process of math-verify",
    "packages/rollout/tests/samplers/servers/test_check.py": "a vLLM server",
    "packages/rollout/tests/samplers/test_control.py::test_vllm_is_interrupted": "vLLM",
    "packages/rollout/tests/samplers/test_openai.py": "a vLLM server",
    "packages/rollout/tests/samplers/test_remote.py": "vLLM and Ray",
    "packages/rollout/tests/samplers/test_transformers.py": "every test of a sampler",
    "packages/rollout/tests/samplers/test_vllm.py": "vLLM",
    "packages/rollout/tests/scoring/test_attack.py": "every task of reasoning-gym",
    "packages/rollout/tests/scoring/test_constants.py": "every task of reasoning-gym",
    "packages/rollout/tests/scoring/test_frames.py": "sandboxes, one after another",
    "packages/rollout/tests/scoring/test_replaced.py": "sandboxes, one after another",
    "packages/rollout/tests/scoring/test_own_rules.py": "sandboxes, one after another",
    "packages/rollout/tests/scoring/test_redteam.py": "attacks, some of which take all their time",
    "packages/rollout/tests/scoring/test_rules.py": "sandboxes of several libraries",
    "packages/rollout/tests/scoring/test_runs.py": "programs, some of which take all their time",
    "packages/rollout/tests/scoring/test_sandbox.py": "sandboxes, one after another",
    "packages/rollout/tests/scoring/test_sandbox_attacks.py": "attacks through every task of reasoning-gym",
    "packages/rollout/tests/scoring/test_summary.py": "sandboxes, one after another",
    "packages/rollout/tests/scoring/test_syscalls.py": "sandboxes, one after another",
    "experiments/tests/test_stale_weights.py": "vLLM",
}
"""Files, or single tests (`FILE::TEST`), that are not fast, and why."""
TOGETHER = (
    ("experiments/tests/test_pipeline.py",),
    # vLLM is imported, and a server of it started, once for all of them.
    (
        "packages/rollout/tests/samplers/test_vllm.py",
        "packages/rollout/tests/samplers/test_control.py",
        "packages/rollout/tests/samplers/test_openai.py",
        "packages/rollout/tests/samplers/servers/test_check.py",
        "packages/rollout/tests/faults/test_servers.py",
        "packages/rollout/tests/faults/test_engines.py",
        "packages/rollout/tests/samplers/test_remote.py",
        "experiments/tests/test_stale_weights.py",
    ),
    ("packages/learner/tests/faults/test_kills.py",),
    ("experiments/tests/test_cell.py",),
    ("experiments/tests/test_schedule.py",),
    ("packages/learner/tests/ranks/test_group.py",),
    ("experiments/tests/test_tracker.py",),
    ("experiments/tests/test_soak.py",),
    ("experiments/tests/test_loaded.py",),
    ("experiments/tests/test_doors.py",),
)
"""Files that one process runs one after another, the longest first, so that no process is left alone with one."""


def is_slow(place: str) -> bool:
    """Whether a test, or the file of all its tests, is listed; ``place`` is the path in the repository."""
    return place in SLOW or place.partition("::")[0] in SLOW


def pytest_configure(config: pytest.Config) -> None:
    """Make the marker known."""
    config.addinivalue_line("markers", "fast: starts no Ray, no vLLM and no MLflow server (python3 -m nox -s fast)")
    if config.option.markexpr == "fast":
        sys.addaudithook(refuse_servers)


def refuse_servers(event: str, arguments: tuple[object, ...]) -> None:
    """Refuse to start an MLflow or a vLLM server."""
    if event == "subprocess.Popen":
        command = arguments[1] if isinstance(arguments[1], list | tuple) else [arguments[1]]
        words = {Path(str(word)).name for word in command}
        if {"mlflow", "server"} <= words or "vllm" in words:
            raise RuntimeError(f"a fast test starts {command}: name its file in SLOW of conftest.py")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With ``--dist=loadfile``, give files that belong together to one process."""
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.partition("::")[0]
            return next((files[0] for files in TOGETHER if file in files), file)

    return Scheduling(config, log) if config.getoption("dist") == "loadfile" else None


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Where only fast tests run, import no file of others: that alone would load vLLM."""
    asked_for_fast = config.option.markexpr == "fast"
    return True if asked_for_fast and is_slow(collection_path.relative_to(ROOT).as_posix()) else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the fast tests, and put those that take long in front."""
    order = {file: place for place, file in enumerate(file for files in TOGETHER for file in files)}
    items.sort(key=lambda item: order.get(item.path.relative_to(ROOT).as_posix(), len(order)))
    for item in items:
        if not is_slow(f"{item.path.relative_to(ROOT).as_posix()}::{item.name.partition('[')[0]}"):
            item.add_marker(pytest.mark.fast)


@pytest.fixture(autouse=True)
def fast_means_fast(pytestconfig: pytest.Config) -> Iterator[None]:
    """Where only fast tests run, refuse one that has loaded vLLM or joined a Ray cluster."""
    yield
    if pytestconfig.option.markexpr == "fast":
        ray = sys.modules.get("ray")
        assert "vllm" not in sys.modules, "this test has loaded vLLM: name its file in SLOW of conftest.py"
        assert not (ray and ray.is_initialized()), "this test has started Ray: name its file in SLOW of conftest.py"
