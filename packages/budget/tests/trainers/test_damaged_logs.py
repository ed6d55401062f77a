"""Logs that are damaged in every way that was thought of: read right, read in part and said, or refused and named.

``ISOCOMPUTE_LOG_FAULTS`` asks for more damages; ``nox -s faults`` does.
"""

import bz2
import gzip
import io
import json
import lzma
import os
import random
import signal
import sqlite3
import zipfile
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from isocompute.budget import BudgetError
from isocompute.budget.trainers.doctor import Given, examine
from isocompute.budget.trainers.logs import log as logged
from isocompute.budget.trainers.logs.records import _leveldb, _tfrecords
from isocompute.budget.trainers.logs.sources import read_arguments, read_logs
from reading_logs import good_logs, leveldb, tfrecords

pytestmark = pytest.mark.slow("a campaign of damages")

FAULTS = int(os.environ.get("ISOCOMPUTE_LOG_FAULTS", "90"))
SECONDS = 600
"""After which a reader hangs."""


@contextmanager
def hurried():
    """Fail what takes too long."""

    def late(*_):
        raise AssertionError(f"still not read after {SECONDS} seconds")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def values(log, layout):
    """The numbers of a run that are read, by step and name."""
    return {(step, key): v for step, row in log.rows for key, v in row.items() if layout.needed.match(key)}


def cut(data, source):
    return data[: source.randrange(len(data))]


def hole(data, source):
    at, size = source.randrange(len(data)), source.choice((1, 16, 512, len(data)))
    return data[:at] + bytes(min(size, len(data) - at)) + data[at + size :]


def flip(data, source):
    out = bytearray(data)
    for _ in range(source.choice((1, 1, 8))):
        out[source.randrange(len(out))] ^= 1 << source.randrange(8)
    return bytes(out)


def splice(data, source):
    """Bytes taken out, put twice, or made up."""
    at, size = source.randrange(len(data)), source.choice((1, 7, 100))
    return data[:at] + source.choice((b"", data[at : at + size] * 2, source.randbytes(size))) + data[at + size :]


def garbage(data, source):
    return data + source.choice((b"\0" * 64, b"Killed\n", b"{", b"\n\n[1]\n", source.randbytes(40)))


BYTES = {"cut": cut, "hole": hole, "flip": flip, "splice": splice, "garbage": garbage}


def nest(good, source):
    deep = source.choice(("[", '{"a":')) * 100_000
    at = good.data.rfind(b"\n", 0, source.randrange(len(good.data))) + 1
    return good.data[:at] + deep.encode() + b"\n" + good.data[at:]


def pack(good, source):
    """The file as another program packed it, with or without the suffix; True where it can still be read."""
    how = source.choice(("gz", "bz2", "xz", "zst", "zip", "two", "twice", "cut", "bomb"))
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for k in range(2 if how == "two" else 1):
            archive.writestr(f"{k or ''}{good.name}", good.data)
    packed = {
        "gz": gzip.compress(good.data),
        "bz2": bz2.compress(good.data),
        "xz": lzma.compress(good.data),
        "zst": b"\x28\xb5\x2f\xfd" + good.data,
        "zip": stream.getvalue(),
        "two": stream.getvalue(),
        "twice": gzip.compress(gzip.compress(good.data)),
        "cut": gzip.compress(good.data)[:-9],
        "bomb": gzip.compress(bytes(4_000_000)),
    }[how]
    suffix = {"two": "zip", "twice": "gz", "cut": "gz", "bomb": "gz"}.get(how, how)
    return packed, good.name + source.choice((f".{suffix}", "")), how in ("gz", "bz2", "xz", "zip")


def rewritten(good, source):
    """Records changed within, their checksums right: other wire types, short numbers, text of other types."""
    path = Path(source.folder) / good.name
    path.write_bytes(good.data)
    records = [item[1] for item in (_leveldb if good.name == "run.wandb" else _tfrecords)(path, [])]
    for _ in range(source.choice((1, 5, 50))):
        k = source.randrange(len(records))
        if records[k]:
            records[k] = source.choice((flip, flip, splice, cut))(records[k], source)
    return (leveldb if good.name == "run.wandb" else tfrecords)(records)


def schema(source):
    """A database of something else."""
    path = Path(source.folder) / "other.db"
    path.unlink(missing_ok=True)
    row = source.choice(("NULL", "5", "x'00ff'", "'[1]'", "'{'", f"'{'[' * 100_000}'", '\'{"eval_reward": "a"}\''))
    endless = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT x AS id, x AS run_id, x AS "
    script = source.choice(
        (
            "CREATE TABLE other (a)",
            "CREATE TABLE metrics (a); CREATE TABLE configs (b)",
            f"CREATE VIEW metrics AS {endless} run_name, x AS metrics FROM c; CREATE TABLE configs (run_id, config)",
            "CREATE TABLE configs (run_id, config); CREATE TABLE metrics (id, run_id, run_name, metrics);"
            f"INSERT INTO metrics VALUES (1, {source.choice(('NULL', '5', row))}, {row}, {row})",
            f"CREATE TABLE metrics (id, run_id, run_name, metrics); CREATE TABLE configs (run_id, config);"
            f"INSERT INTO configs VALUES ('a', {row})",
            "CREATE TABLE experiments (a); CREATE TABLE runs (a); CREATE TABLE params (a)",
        )
    )
    with closing(sqlite3.connect(path)) as database:
        database.executescript(script)
    return path.read_bytes()


def read(path, good):
    """The runs of a file, or the sentence in which it is refused."""
    with hurried():
        try:
            if path.name.startswith("training_args"):
                return [], str(read_arguments(path))
            return read_logs(str(path), good.layout), ""
        except BudgetError as error:
            said = str(error)
    assert str(path.parent) in said
    assert "\n" not in said
    return [], said


OTHER = "".join(json.dumps({"step": k, "response_length/mean": 900.5 + k}) + "\n" for k in range(3))
"""A log that lies beside the damaged one."""
KINDS = (*BYTES, "nest", "pack", "rename", "rewrite", "schema")


@pytest.mark.parametrize("part", range(3))
def test_a_damaged_log_is_read_right_or_said_or_refused(part, tmp_path, monkeypatch):
    monkeypatch.setattr(logged, "LARGEST", 1_000_000)
    made = tmp_path / "made"
    made.mkdir()
    goods = good_logs(made)
    known = {}
    for good in goods:
        (made / good.name).write_bytes(good.data)
        logs, _ = read(made / good.name, good)
        known[good.name] = {at: v for log in logs for at, v in values(log, good.layout).items()}
        assert known[good.name] or good.name == "training_args.bin"
        (made / good.name).unlink()
    for number in range(part, FAULTS, 3):
        source = random.Random(number)
        source.folder = made
        folder = tmp_path / f"fault {number}"
        folder.mkdir()
        good, kind = goods[number % len(goods)], KINDS[number // len(goods) % len(KINDS)]
        name, data, readable = good.name, good.data, False
        # What a kind cannot be done to is cut.
        if (kind == "nest" and not good.text) or (kind == "rewrite" and not good.checked):
            kind = "cut"
        if kind == "schema" and good.name != "project.db":
            kind = "flip"
        if kind in BYTES:
            data = BYTES[kind](data, source)
        elif kind == "nest":
            data = nest(good, source)
        elif kind == "pack":
            data, name, readable = pack(good, source)
        elif kind == "rewrite":
            data = rewritten(good, source)
        elif kind == "schema":
            data = schema(source)
        elif kind == "rename":
            name = source.choice(
                ("run.csv", "run.jsonl", "run.log", "run", "run.db", "run.wandb", "run.parquet", "x.gz")
            )
        path = folder / name
        path.write_bytes(data)
        logs, said = read(path, good)
        case = f"{number}: {kind} {good.name} {said}"
        got = {at: v for log in logs for at, v in values(log, good.layout).items()}
        left_out = [note for log in logs for note in log.left_out]
        right = known[good.name]
        if readable and good.name not in ("project.db", "training_args.bin"):
            assert got == right, case
        if kind == "rename" or (good.checked and kind != "rewrite"):
            assert got.items() <= right.items(), case
        if good.checked and kind in ("flip", "hole"):
            # A whole record is missing only where that is said.
            assert got == right or said or left_out, case
        if kind == "cut":
            wrong = {step for (step, key), v in got.items() if right.get((step, key)) != v}
            assert not wrong or (left_out and len(wrong) == 1), case
        (folder / "other.jsonl").write_text(OTHER)
        with hurried():
            report = examine([str(folder)], Given())
        found = {name for patient in report.patients for name in (patient.name, *patient.also)}
        named = {unread.source for unread in report.unread}
        assert str(folder / "other.jsonl") in found, case
        nothing = kind == "schema" or "holds no" in said or good.name == "training_args.bin"
        if (said or got) and not nothing:
            # Event files are named by their folder.
            assert any(name.startswith(str(path)) or name == str(folder) for name in (found | named)), case
