"""One run in every format in which a trainer or its logger may leave it, for tests that damage them."""

from __future__ import annotations

import io
import json
import pprint
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path

import polars as pl
from isocompute.budget.trainers.logs.records import _checksum
from isocompute.budget.trainers.registry import TRAINERS
from reading_logs import DOCS, FIXTURES, logged_run, trackio

RUN = [json.loads(line) for line in (FIXTURES / "verl" / "run.jsonl").read_text().splitlines()]
ROWS = [{"step": row["step"], **row["data"]} for row in RUN]
"""veRL's run of the fixtures, flat."""


@dataclass(frozen=True, kw_only=True)
class Good:
    """A log as it was left.

    Attributes:
        checked: Whether every byte of it is under a checksum.
        text: Whether it is text of lines.
    """

    name: str
    data: bytes
    trainer: str
    checked: bool = False
    text: bool = False

    @property
    def layout(self):
        return TRAINERS[self.trainer].logs.layout


def csv_of(rows, *, delimiter=",", comma=".", end="\n"):
    """A table as a program writes it that has these settings."""

    def cell(value):
        return "" if value is None else str(value).replace(".", comma)

    columns = list(dict.fromkeys(key for row in rows for key in row))
    lines = [delimiter.join(columns), *(delimiter.join(cell(row.get(c)) for c in columns) for row in rows)]
    return end.join([*lines, ""])


def console_of(rows, *, shown=pprint.pformat, prefix=""):
    """What veRL's console logger prints of rows, ``concat_dict_to_str`` in ``verl/utils/logger``."""
    return "".join(
        f"{prefix}step:{row['step']} - " + " - ".join(f"{k}:{shown(v)}" for k, v in row.items() if k != "step") + "\n"
        for row in rows
    )


def parquet_of(rows):
    stream = io.BytesIO()
    pl.DataFrame(rows, infer_schema_length=None).write_parquet(stream)
    return stream.getvalue()


def good_logs(folder):
    """Every format once."""
    (events,) = (FIXTURES / "trl" / "events").iterdir()
    lines = "".join(json.dumps(row) + "\n" for row in RUN)
    config = pprint.pformat({"actor_rollout_ref": {"rollout": {"n": 4}}, "data": {"train_batch_size": 16}})
    before = "".join(f"(TaskRunner pid=7) {line}\n" for line in config.splitlines())
    printed = before + console_of(ROWS, prefix="\x1b[36m(TaskRunner pid=7)\x1b[0m ")
    return [
        Good(name="run.jsonl", data=lines.encode(), trainer="verl", text=True),
        Good(name="run.csv", data=csv_of(ROWS).encode(), trainer="verl", text=True),
        Good(name="run.log", data=printed.encode(), trainer="verl", text=True),
        Good(name="run.parquet", data=parquet_of(ROWS), trainer="verl"),
        Good(name="run.wandb", data=(FIXTURES / "wandb" / "run.wandb").read_bytes(), trainer="trl", checked=True),
        Good(name=events.name, data=events.read_bytes(), trainer="trl", checked=True),
        Good(name="trainer_state.json", data=(FIXTURES / "trl" / "trainer_state.json").read_bytes(), trainer="trl"),
        Good(name="training_args.bin", data=(DOCS / "n4" / "training_args.bin").read_bytes(), trainer="trl"),
        Good(name="project.db", data=trackio(Path(folder) / "made.db", {}, logged_run()).read_bytes(), trainer="trl"),
    ]


def tfrecords(payloads):
    """A file of TFRecords, its checksums right."""
    out = b""
    for payload in payloads:
        length = struct.pack("<Q", len(payload))
        out += length + struct.pack("<I", _checksum(length)) + payload + struct.pack("<I", _checksum(payload))
    return out


def leveldb(payloads):
    """A file of W&B's of short records, its checksums right."""
    out = b":W&B\xe1\xbe\x00"
    for payload in payloads:
        if len(out) % 32_768 + len(payload) + 7 > 32_768:
            break
        out += struct.pack("<IHB", zlib.crc32(b"\x01" + payload), len(payload), 1) + payload
    return out
