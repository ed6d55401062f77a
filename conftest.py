"""The tiers of the tests: what carries no ``pytest.mark.slow(REASON)`` is ``fast``.

A file is slow as a whole where its ``pytestmark`` begins with the mark; then ``-m fast`` does not even import it.
"""

from __future__ import annotations

import gc
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

# All that is imported until the tests begin stays; looking through it again and again is a fifth of that time.
gc.disable()

SLOW_FILE = re.compile(r"^pytestmark = \[?\s*pytest\.mark\.slow\b", re.MULTILINE)
GROUP = re.compile(r'pytest\.mark\.xdist_group\("(\w+)"\)')


def only_fast(config: pytest.Config) -> bool:
    """Whether only fast tests were asked for."""
    return bool(config.option.markexpr == "fast")


def pytest_configure(config: pytest.Config) -> None:
    """Set how properties are tried; where only fast tests run, watch for other processes."""
    # xdist itself starts the processes in which the tests run.
    if config.getoption("numprocesses", None) and not hasattr(config, "workerinput"):
        return
    from hypothesis import settings

    # A property takes it up when its file is imported. A busy machine is no failure; one that says how many examples it
    # needs has so many.
    settings.register_profile("unhurried", deadline=None, max_examples=20 if only_fast(config) else 100)
    settings.load_profile("unhurried")
    if only_fast(config):
        sys.addaudithook(refuse_processes)


def refuse_processes(event: str, arguments: tuple[object, ...]) -> None:
    """Refuse to start a process of Python: a sandbox, a server, a command."""
    if event == "subprocess.Popen":
        command = arguments[1] if isinstance(arguments[1], list | tuple) else [arguments[1]]
        if command and Path(str(command[0])).name.startswith(("python", "mlflow", "vllm")):
            raise RuntimeError(f"a fast test starts {command}: mark it with pytest.mark.slow")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Where only fast tests run, import no slow file: that alone would load vLLM."""
    is_test = collection_path.name.startswith("test_") and collection_path.suffix == ".py"
    return True if only_fast(config) and is_test and SLOW_FILE.search(collection_path.read_text()) else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the fast tests, and begin with the files that take long."""

    def place(item: pytest.Item) -> int:
        file = item.getparent(pytest.Module)
        marks = {mark.name for mark in file.iter_markers()} if file else set()
        return 0 if "xdist_group" in marks else 1 if "slow" in marks else 2

    items.sort(key=place)
    for item in items:
        if not item.get_closest_marker("slow"):
            item.add_marker(pytest.mark.fast)


def pytest_collection_finish() -> None:
    """Collect garbage again, but never what was imported until now."""
    # Else each collection of garbage looks at all that was imported, and every engine of vLLM that is opened or closed
    # makes several; that what one has frozen stays so costs no more than tiny models.
    gc.collect()
    gc.freeze()
    gc.unfreeze = lambda: None  # type: ignore[assignment]
    gc.enable()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With ``--dist=loadfile``, give the files of an ``xdist_group`` to one process."""
    # pytest-xdist's own loadgroup writes the group into the ids of tests, which pytest 9.2 does not let it do.
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return group_of(config.rootpath / nodeid.partition("::")[0])

    return Scheduling(config, log) if config.getoption("dist") == "loadfile" else None


@cache
def group_of(file: Path) -> str:
    """The group that a file of tests is marked with, or the file alone."""
    found = GROUP.search(file.read_text())
    return found[1] if found else str(file)


@pytest.fixture(autouse=True)
def fast_means_fast(pytestconfig: pytest.Config) -> Iterator[None]:
    """Where only fast tests run, refuse one that has loaded vLLM or joined a Ray cluster."""
    yield
    if only_fast(pytestconfig):
        ray = sys.modules.get("ray")
        assert "vllm" not in sys.modules, "this test has loaded vLLM: mark its file with pytest.mark.slow"
        assert not (ray and ray.is_initialized()), "this test has started Ray: mark its file with pytest.mark.slow"
