"""Helpers of the tests of trainers: settings, logs in files, and what is read of them."""

from __future__ import annotations

import importlib
import io
import json
import os
import pprint
import shlex
import sqlite3
import struct
import zlib
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import polars as pl
import pytest
from isocompute.budget import Allocation
from isocompute.budget.trainers.doctor import Given, examine, ingest
from isocompute.budget.trainers.logs.records import _checksum
from isocompute.budget.trainers.registry import TRAINERS, convert, trainer
from isocompute.budget.trainers.settings import RunPlan, flags, render

FIXTURES = Path(__file__).parents[1] / "fixtures"
DOCS = Path(__file__).parents[2] / "docs" / "trl"
QUESTIONS = {"questions": "400"}
"""As many as rewards in hundredths, and those of the 16 problems of the fixtures, can be success rates of."""


def settings(text):
    """The settings that a text says, as on a command line."""
    return flags(text.split())


# A batch of 16 completions, 4 of each problem, for every optimizer step.
TRL = settings(
    "num_generations=4 num_generations_eval=4 per_device_train_batch_size=8 gradient_accumulation_steps=2 "
    "steps_per_generation=2 generation_batch_size=16 num_iterations=1 seed=42"
)
VERL = settings("data.train_batch_size=8 actor_rollout_ref.rollout.n=4 actor_rollout_ref.actor.ppo_mini_batch_size=8")
OPENRLHF = settings(
    "rollout.n_samples_per_prompt=4 rollout.batch_size=8 train.batch_size=32 train.max_epochs=1 "
    "eval.n_samples_per_prompt=4"
)
PRIME_RL = settings("group_size=4 batch_size=32")
SKYRL = settings(
    "generator.n_samples_per_prompt=4 trainer.train_batch_size=8 trainer.policy_mini_batch_size=8 "
    "generator.eval_n_samples_per_prompt=4"
)
SLIME = settings(
    "rollout_batch_size=8 n_samples_per_prompt=4 global_batch_size=32 num_rollout=9 eval_interval=1 "
    "n_samples_per_eval_prompt=4"
)
TINKER = settings("group_size=4 groups_per_batch=8 test_group_size=4")


def run_settings():
    """The settings of the run that fixtures/wandb holds."""
    return {
        **TRL,
        **settings("num_generations_eval=2 max_steps=6 seed=3 learning_rate=1e-4 per_device_eval_batch_size=8"),
    }


def logged_run():
    """The run that fixtures/wandb holds, as it was logged."""
    for step in range(1, 7):
        at = {"train/global_step": step}
        length = {"train/completions/mean_length": 2.0 + step / 16}
        yield {"train/loss": 0.1, "train/num_tokens": 100 * step, "train/epoch": step / 6, **length, **at}
        if step % 2 == 0:
            took = {"eval/runtime": 2.0, "eval/samples_per_second": 8.0, "eval/completions/mean_length": 2.0}
            yield {"eval/rewards/right/mean": step / 8, **took, **at}


def lines(path, rows):
    """A log in JSON lines."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def needed(name, *, session="ISOCOMPUTE_TRAINERS"):
    """A trainer's module; the session that installs the trainers (``nox -s trainers``) does not let one be missing."""
    if session in os.environ:
        return importlib.import_module(name)
    return pytest.importorskip(name, exc_type=ImportError)


def run_of(batch, n, steps, **other):
    """A run to be configured."""
    split = Allocation(problems_per_batch=batch, rollouts_per_problem=n, update_steps=steps)
    return RunPlan(allocation=split, **other)


def rollouts(name, log, config=None, **given):
    """Cumulative rollouts of a run's evaluations, as ``ingested`` reads them."""
    return ingested(name, log, config, **given)[0]["rollouts"].to_list()


def ingested(name, log, config=None, *, file="log.jsonl", form="json", **given):
    """The ``evals`` table of one log and its configuration, and the notes on it.

    Args:
        log: Rows, or the text of a file.
        config: Settings, or the text of a file of the form; None where there is none.
        given: What the user says; of None, nothing.
    """
    given = {key: value for key, value in {**QUESTIONS, **given}.items() if value is not None}
    with TemporaryDirectory() as folder:
        path, settings = Path(folder) / file, Path(folder) / f"config.{form}"
        path.write_text(log) if isinstance(log, str) else lines(path, log)
        if config is not None:
            settings.write_text(config if isinstance(config, str) else json.dumps(config))
        return ingest(name, [str(path)], config=settings if settings.exists() else None, constants=given)


def asked(source, given):
    """The trainer of a log, what it is asked for without a configuration, and its rollouts where that is given."""
    (bare,) = examine([str(source)], Given()).patients
    (told,) = examine([str(source)], Given(every={key: str(value) for key, value in given.items()})).patients
    assert (bare.trainer, told.missing) == (told.trainer, {})
    return bare.trainer.name, set(bare.missing), [row["rollouts"] for row in told.rows]


def trackio(path, config, rows):
    """Trackio's database of one run."""
    path.unlink(missing_ok=True)
    with closing(sqlite3.connect(path)) as database:
        database.execute("CREATE TABLE metrics (id INTEGER PRIMARY KEY, run_id TEXT, run_name TEXT, metrics TEXT)")
        database.execute("CREATE TABLE configs (id INTEGER PRIMARY KEY, run_id TEXT, config TEXT)")
        database.execute("INSERT INTO configs (run_id, config) VALUES ('a', ?)", [json.dumps(config)])
        for row in rows:
            database.execute("INSERT INTO metrics (run_id, run_name, metrics) VALUES ('a', 'r', ?)", [json.dumps(row)])
        database.commit()
    return path


def words(name, run):
    """The settings of a run as the words of a command line."""
    return shlex.split(" ".join(render(convert(name, run), trainer(name).style)))


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
