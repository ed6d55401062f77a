"""Groups that are kept on disk while a run is unfinished."""

import errno
import fcntl
import os
import random
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from isocompute.rollout import RolloutError
from isocompute.rollout.journal import Journal

SAMPLES = 3


def group(name: str, *, first: int = 0, run: str = "run", reward: float = 1.0) -> pa.RecordBatch:
    """A group of a few columns and of a size that depends on its name."""
    rows = [
        {"run_id": run, "problem_id": name, "sample": first + i, "reward": reward, "response_ids": [1] * 7 * len(name)}
        for i in range(SAMPLES)
    ]  # fmt: skip
    return pa.RecordBatch.from_pylist(rows)


def held(out: Path, names: list[str], run: str = "run") -> list[str]:
    """The groups that a new process finds."""
    with Journal(out, run, {}) as journal:
        return [name for name in names if journal.group(name, first_sample=0, samples=SAMPLES) is not None]


NAMES = [f"p{'x' * i}" for i in range(12)]


def test_groups_are_read_back_by_the_next_process_and_each_process_has_a_file_of_its_own(tmp_path: Path) -> None:
    out = tmp_path / "rollouts.parquet"
    for part in (NAMES[:5], NAMES[5:]):
        with Journal(out, "run", {"seed": 1}) as journal:
            for name in part:
                journal.append(group(name))
    assert held(out, NAMES) == NAMES
    kept = sorted(path.name for path in (tmp_path / "rollouts.parquet.partial" / "run").iterdir())
    assert kept == ["00000.arrows", "00001.arrows", "asked.json"]
    assert not out.exists()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
def test_a_file_that_is_cut_anywhere_loses_nothing_before_the_cut(tmp_path: Path, seed: int) -> None:
    out = tmp_path / "rollouts.parquet"
    ends = []
    with Journal(out, "run", {}) as journal:
        path = tmp_path / "rollouts.parquet.partial" / "run" / "00000.arrows"
        for name in NAMES:
            journal.append(group(name))
            ends.append(path.stat().st_size)
    whole = path.read_bytes()
    draw = random.Random(seed)
    for cut in [0, 3, ends[0] - 1, ends[0], ends[4], *(draw.randrange(len(whole)) for _ in range(20))]:
        path.write_bytes(whole[:cut])
        assert held(out, NAMES) == [name for name, end in zip(NAMES, ends, strict=True) if end <= cut]
        path.parent.mkdir(parents=True, exist_ok=True)


def test_what_a_torn_file_lacks_is_appended_to_another(tmp_path: Path) -> None:
    out = tmp_path / "rollouts.parquet"
    with Journal(out, "run", {}) as journal:
        for name in NAMES[:4]:
            journal.append(group(name))
    torn = tmp_path / "rollouts.parquet.partial" / "run" / "00000.arrows"
    torn.write_bytes(torn.read_bytes()[:-60])
    missing = [name for name in NAMES if name not in held(out, NAMES)]
    assert 0 < len(missing) < len(NAMES)
    with Journal(out, "run", {}) as journal:
        for name in missing:
            journal.append(group(name))
    assert held(out, NAMES) == NAMES


def test_the_later_of_two_groups_counts_and_another_number_of_responses_does_not(tmp_path: Path) -> None:
    out = tmp_path / "rollouts.parquet"
    for reward in (0.0, 1.0):
        with Journal(out, "run", {}) as journal:
            journal.append(group("p", reward=reward))
    with Journal(out, "run", {}) as journal:
        found = journal.group("p", first_sample=0, samples=SAMPLES)
        assert found is not None
        assert found["reward"].to_pylist() == [1.0] * SAMPLES
        assert journal.group("p", first_sample=0, samples=SAMPLES + 1) is None
        assert journal.group("p", first_sample=SAMPLES, samples=SAMPLES) is None
        journal.append(group("p", first=SAMPLES))
        assert journal.group("p", first_sample=SAMPLES, samples=SAMPLES) is not None


def test_unfinished_work_of_another_run_stays_and_is_named(tmp_path: Path) -> None:
    out = tmp_path / "rollouts.parquet"
    with Journal(out, "first", {}) as journal:
        journal.append(group("p", run="first"))
    with Journal(out, "second", {}) as journal:
        assert journal.others == ["first"]
        journal.append(group("p", run="second"))
        journal.discard()
    assert held(out, ["p"], run="first") == ["p"]
    with Journal(out, "first", {}) as journal:
        journal.discard()
    assert list(tmp_path.iterdir()) == []


def test_a_run_that_finished_nothing_leaves_nothing(tmp_path: Path) -> None:
    with Journal(tmp_path / "rollouts.parquet", "run", {}):
        pass
    assert list(tmp_path.iterdir()) == []


HOLDER = """
import sys
from pathlib import Path
from isocompute.rollout.journal import Journal
journal = Journal(Path(sys.argv[1]), "run", {})
print("locked", flush=True)
sys.stdin.read()
"""


@pytest.mark.slow
def test_a_second_process_is_refused_until_the_first_is_killed(tmp_path: Path) -> None:
    out = tmp_path / "rollouts.parquet"
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(out)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "locked\n"
        with pytest.raises(RolloutError, match="another process is at work on it"):
            Journal(out, "run", {})
        other.kill()
    assert held(out, NAMES) == []


def test_a_file_system_without_locks_is_named_and_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def without_locks(*given: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "lockf", without_locks)
    out = tmp_path / "rollouts.parquet"
    with Journal(out, "run", {}) as journal:
        journal.append(group("p"))
    assert f"{out}.partial cannot be locked (No locks available): take care" in caplog.text
    assert held(out, ["p"]) == ["p"]


def test_a_folder_that_cannot_be_made_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RolloutError, match="unfinished work cannot be kept there"):
        Journal(tmp_path / "file" / "rollouts.parquet", "run", {})
