"""How much a response takes over its limits: memory and processor time of a sandbox, measured from outside.

Where the red team could put itself into a group of processes (``grouped``), the kernel counts; else /proc is summed.
"""

import contextlib
import os
import resource
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from isocompute.rollout.scoring.running import clock, descendants, memory, process

LOOK_SECONDS = 0.004
VARIABLE = "ISOCOMPUTE_METER"
"""Names the folders of a group's memory and processor time."""
CGROUPS = Path("/sys/fs/cgroup")


@dataclass(kw_only=True)
class Taken:
    """What was taken from the beginning to the end of a measurement: bytes more than before, and seconds."""

    bytes: int = 0
    seconds: float = 0.0


class Meter:
    """Measures all descendants of this process."""

    def __init__(self) -> None:
        given = os.environ.get(VARIABLE, "").split(os.pathsep)
        self.over = Taken()
        self._watching: dict[int, float] = {}
        self._memory, self._time = (Path(given[i]) if len(given) == 2 and given[i] else None for i in range(2))

    @contextlib.contextmanager
    def measured(self) -> Iterator[Taken]:
        """Measure what happens meanwhile."""
        taken, ended = Taken(), threading.Event()
        start, begin, most = self.bytes(), self.seconds(), 0

        def look() -> None:
            nonlocal most
            while not ended.wait(LOOK_SECONDS):
                self._watched()
                most = max(most, self.bytes() - start)

        thread = threading.Thread(target=look)
        thread.start()
        try:
            yield taken
        finally:
            ended.set()
            thread.join()
            taken.bytes, taken.seconds = most, self.seconds() - begin

    def bytes(self) -> int:
        """Memory of all processes, with this one's where the kernel counts."""
        if self._memory is not None:
            lines = dict(line.split() for line in (self._memory / "memory.stat").read_text().splitlines())
            # Pages of files that were read are nobody's.
            held = ("rss", "rss_huge", "shmem") if "rss" in lines else ("anon", "shmem", "pagetables", "sock")
            return sum(int(lines.get(name, 0)) for name in held if name != "rss_huge")
        return sum(memory(each.pid) for each in descendants(os.getpid()))

    def _watched(self) -> float:
        """Processor time of the processes that watch responses, also of those that have ended."""
        for task in Path("/proc/self/task").iterdir():
            with contextlib.suppress(OSError):
                for pid in map(int, (task / "children").read_text().split()):
                    self._watching[pid] = clock(pid) or self._watching.get(pid, 0.0)
        return sum(self._watching.values())

    def seconds(self) -> float:
        """Processor time of all processes but this one and those that watch, also of those that have ended."""
        watching = self._watched()
        if self._time is not None:
            own = resource.getrusage(resource.RUSAGE_SELF)
            words = (self._time / "cpu.stat").read_text().split()
            return int(words[words.index("usage_usec") + 1]) / 1e6 - own.ru_utime - own.ru_stime - watching
        own = process(os.getpid())
        found = sum(each.used + each.reaped for each in descendants(os.getpid(), ended=True))
        return found + (own.reaped if own else 0.0) - watching


@contextlib.contextmanager
def grouped() -> Iterator[str]:
    """Be in groups of processes of one's own; yield the value of ``VARIABLE``, empty where there can be none."""
    own = dict(line.split(":", 2)[1:] for line in Path("/proc/self/cgroup").read_text().splitlines())
    counted: list[str] = []
    with contextlib.ExitStack() as stack:
        for mount, controller, file in (("memory", "memory", "memory.stat"), ("unified", "", "cpu.stat")):
            place = CGROUPS / mount / own.get(controller, "/").lstrip("/")
            group = place / f"isocompute-redteam-{os.getpid()}-{time.monotonic_ns()}"
            with contextlib.suppress(OSError):
                group.mkdir()
                stack.callback(_leave, group)
                (group / "cgroup.procs").write_text(str(os.getpid()))
                counted += [str(group)] if file and (group / file).exists() else []
        yield os.pathsep.join(counted) if len(counted) == 2 else ""


def _leave(group: Path) -> None:
    with contextlib.suppress(OSError):
        (group.parent / "cgroup.procs").write_text(str(os.getpid()))
        time.sleep(0.2)
        group.rmdir()
