"""Groups that are kept on disk while a run is unfinished."""

import contextlib
import random
import sqlite3
from pathlib import Path

import pyarrow as pa
import pytest
from isocompute.rollout import RolloutError
from isocompute.rollout.commands.store import Groups
from isocompute.rollout.store import Store

SAMPLES = 3
SETTINGS = {"seed": 1, "model": "m"}
NAMES = [f"p{'x' * i}" for i in range(12)]


def group(name: str, *, first: int = 0, reward: float = 1.0) -> pa.RecordBatch:
    """A group of a few columns and of a size that depends on its name."""
    return pa.RecordBatch.from_pylist(
        [
            {"problem_id": name, "sample": first + i, "reward": reward, "response_ids": [i] * 50 * len(name)}
            for i in range(SAMPLES)
        ]
    )


def kept(out: Path) -> list[str]:
    """The groups that a new process finds, as they were written."""
    with Groups(out, SETTINGS) as store:
        found = {name: store.group(name, first_sample=0, samples=SAMPLES) for name in NAMES}
    assert all(batch.equals(group(name)) for name, batch in found.items() if batch is not None)
    return [name for name, batch in found.items() if batch is not None]


def test_groups_are_read_back_by_the_next_process_until_they_are_discarded(tmp_path: Path) -> None:
    out = tmp_path / "folder" / "rollouts.parquet"
    for part in (NAMES[:5], NAMES[5:]):
        with Groups(out, SETTINGS) as store:
            for name in part:
                store.append(group(name))
    assert [path.name for path in out.parent.iterdir()] == ["rollouts.parquet.partial"]
    assert kept(out) == NAMES
    with Groups(out, SETTINGS) as store:
        assert len(store) == len(NAMES)
        store.discard()
    assert list(out.parent.iterdir()) == []


def test_the_later_of_two_groups_counts_and_another_number_of_responses_does_not(tmp_path: Path) -> None:
    out = tmp_path / "rollouts.parquet"
    with Groups(out, SETTINGS) as store:
        for reward in (0.0, 1.0):
            store.append(group("p", reward=reward))
        store.append(group("p", first=SAMPLES))
    with Groups(out, SETTINGS) as store:
        assert store.group("p", first_sample=0, samples=SAMPLES).equals(group("p"))
        assert store.group("p", first_sample=0, samples=SAMPLES + 1) is None
        assert store.group("p", first_sample=SAMPLES, samples=SAMPLES).equals(group("p", first=SAMPLES))


@pytest.mark.parametrize("alone", [True, False])
@pytest.mark.parametrize("former", ["", "wal", "delete"])
def test_the_journal_is_truncated_and_that_of_an_older_file_is_converted(
    tmp_path: Path, alone: bool, former: str
) -> None:
    path = tmp_path / "store"
    if former:
        with contextlib.closing(sqlite3.connect(path)) as older:
            older.execute(f"PRAGMA journal_mode = {former}")
            older.execute("CREATE TABLE t (x)")
            older.execute("INSERT INTO t VALUES (1)")
            older.commit()
    with Store(path, "CREATE TABLE IF NOT EXISTS t (x)", alone=alone) as store:
        store.run("INSERT INTO t VALUES (2)")
        assert store.run("PRAGMA journal_mode") == [("truncate",)]
        if alone:
            with pytest.raises(RolloutError, match="another process"):
                Store(path, "", alone=True)
    with Store(path, "", alone=alone) as store:
        assert store.run("SELECT x FROM t") == ([(1,)] if former else []) + [(2,)]


def test_a_damaged_store_is_a_sentence_or_holds_what_was_written(tmp_path: Path) -> None:
    out = tmp_path / "rollouts.parquet"
    with Groups(out, SETTINGS) as store:
        for name in NAMES:
            store.append(group(name))
        path = store.path
    whole, draw, refused = path.read_bytes(), random.Random(0), 0
    damaged = [b"neither", whole[: len(whole) // 2]]
    for _ in range(20):
        begin = draw.randrange(len(whole) - 64)
        damaged.append(whole[:begin] + draw.randbytes(64) + whole[begin + 64 :])
    for content in damaged:
        path.write_bytes(content)
        # ``kept`` compares every group that is read with the one that was written.
        said = ""
        try:
            kept(out)
        except RolloutError as error:
            said = str(error)
            refused += 1
        assert not said or str(path) in said
        assert path.exists()
    assert refused > len(damaged) / 2


def test_a_folder_that_cannot_be_made_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RolloutError, match="can be kept there"):
        Groups(tmp_path / "file" / "rollouts.parquet", SETTINGS)
