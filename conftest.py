"""The tiers of the tests: what starts no engine, cluster or other process and is quick carries the marker ``fast``."""

from __future__ import annotations

import gc
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent
LISTS = tomllib.loads((ROOT / "slow_tests.toml").read_text())
SLOW, SLOW_TESTS, TOGETHER = LISTS["files"], LISTS["tests"], LISTS["together"]["files"]


def is_slow(file: str, test: str = "") -> bool:
    """Whether a test, or the file of all its tests, is listed; ``file`` is the path in the repository."""
    return file in SLOW or test in SLOW_TESTS.get(file, ())


def pytest_configure(config: pytest.Config) -> None:
    """Make the marker known."""
    config.addinivalue_line("markers", "fast: quick, and starts no Ray, vLLM or other process (python3 -m nox -s fast)")
    # xdist itself starts the processes in which the tests run.
    distributes = config.getoption("numprocesses", None) and not hasattr(config, "workerinput")
    if config.option.markexpr == "fast" and not distributes:
        sys.addaudithook(refuse_processes)


def refuse_processes(event: str, arguments: tuple[object, ...]) -> None:
    """Refuse to start a process of Python: a sandbox, a server, a command."""
    if event == "subprocess.Popen":
        command = arguments[1] if isinstance(arguments[1], list | tuple) else [arguments[1]]
        words = [Path(str(word)).name for word in command]
        if any(word.startswith(("python", "mlflow", "vllm")) for word in words[:1]):
            raise RuntimeError(f"a fast test starts {command}: name it in slow_tests.toml")


def pytest_collection_finish(session: pytest.Session) -> None:
    """Where only fast tests run, try fewer examples of a property; a test that says how many tries so many."""
    # Else each collection of garbage looks at all that was imported, and every engine of vLLM that is opened or closed
    # makes several; that what one has frozen stays so costs no more than tiny models.
    gc.collect()
    gc.freeze()
    gc.unfreeze = lambda: None  # type: ignore[assignment]
    if session.config.option.markexpr == "fast":
        from hypothesis import settings

        # After those of the packages' own conftests were loaded.
        settings.register_profile("fast", deadline=None, max_examples=20)
        settings.load_profile("fast")


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
        if not is_slow(item.path.relative_to(ROOT).as_posix(), item.name.partition("[")[0]):
            item.add_marker(pytest.mark.fast)


@pytest.fixture(autouse=True)
def fast_means_fast(pytestconfig: pytest.Config) -> Iterator[None]:
    """Where only fast tests run, refuse one that has loaded vLLM or joined a Ray cluster."""
    yield
    if pytestconfig.option.markexpr == "fast":
        ray = sys.modules.get("ray")
        assert "vllm" not in sys.modules, "this test has loaded vLLM: name its file in slow_tests.toml"
        assert not (ray and ray.is_initialized()), "this test has started Ray: name its file in slow_tests.toml"
