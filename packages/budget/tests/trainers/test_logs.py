"""Logs as loggers leave them, read without the logger; and which of a log's columns counts the trainer's steps."""

import json
import pickle
import sqlite3
import struct
import zipfile
import zlib
from pathlib import Path

import pytest
from isocompute.budget import BudgetError
from isocompute.budget.trainers.doctor import ingest
from isocompute.budget.trainers.logs.records import _leveldb, _tfrecords
from isocompute.budget.trainers.logs.sources import read_arguments
from reading_logs import (
    DOCS,
    FIXTURES,
    OPENRLHF,
    PRIME_RL,
    TRL,
    VERL,
    leveldb,
    logged_run,
    rollouts,
    run_settings,
    tfrecords,
    trackio,
)


def check(source):
    """That a source holds the run of ``logged_run``."""
    evals = ingest("trl", [str(source)])[0].select("step", "rollouts", "avg_at_2", "learning_rate", "questions")
    assert evals.rows() == [(2, 32, 0.25, 1e-4, 16), (4, 64, 0.5, 1e-4, 16), (6, 96, 0.75, 1e-4, 16)]


def test_wandbs_own_file_is_read_without_wandb():
    check(FIXTURES / "wandb" / "run.wandb")
    check(FIXTURES / "wandb")


def test_trackios_database_is_read_without_trackio(tmp_path):
    check(trackio(tmp_path / "p.db", run_settings(), logged_run()))


@pytest.mark.parametrize(("name", "said"), [("q.db", "Trackio"), ("q.wandb", "is no file of W&B's")])
def test_another_file_is_not_taken_for_a_loggers(name, said, tmp_path):
    (tmp_path / name).write_bytes(b"something else")
    with pytest.raises(BudgetError, match=said):
        ingest("trl", [str(tmp_path / name)])


def test_a_trainers_arguments_are_read_without_unpickling():
    for n in (4, 16):
        arguments = read_arguments(DOCS / f"n{n}" / "training_args.bin")
        assert (arguments["num_generations"], arguments["generation_batch_size"], arguments["seed"]) == (n, 64, n)
        assert arguments["learning_rate"] == 5e-4


class Trap:
    """Would leave a file behind if it were unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


def test_arguments_that_would_run_code_do_not(tmp_path):
    for name, content in (("a", {"num_generations": 4, "x": Trap(tmp_path / "ran")}), ("b", [Trap(tmp_path / "ran")])):
        path = tmp_path / f"{name}.bin"
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("archive/data.pkl", pickle.dumps(content, protocol=2))
        assert read_arguments(path) == ({"num_generations": 4} if name == "a" else {})
    assert not (tmp_path / "ran").exists()
    (tmp_path / "c.bin").write_bytes(b"PK")
    with pytest.raises(BudgetError, match=r"not the training_args.bin"):
        read_arguments(tmp_path / "c.bin")


def counted(trainer, config, log, *, name="log.csv", **given):
    return rollouts(trainer, log, config, file=name, **given)


@pytest.mark.parametrize(
    ("trainer", "config", "log", "made"),
    [
        # Logged every ten steps, and evaluated every twenty: W&B counts the calls.
        (
            "trl",
            TRL,
            "_step,train/global_step,train/reward,eval/reward\n0,10,0.1,\n1,20,0.2,\n2,20,,0.3\n3,30,0.4,\n4,40,,0.6\n",
            [20 * 16, 40 * 16],
        ),
        # Tables of completions, system metrics and the like are rows of their own.
        ("trl", TRL, "_step,train/global_step,system/gpu,eval/reward\n0,5,,0.1\n1,,80,\n2,10,,0.2\n", [80, 160]),
        # The row of the evaluation before training has no training/global_step.
        ("verl", VERL, "_step,training/global_step,val-core/m/acc/mean@4\n0,,0.1\n5,5,0.2\n10,10,0.3\n", [0, 160, 320]),
        (
            "openrlhf",
            OPENRLHF,
            "Step,train/global_step,eval/global_step,train/response_length,eval/eval_math_pass1\n"
            "0,10,,5,\n1,20,,5,\n2,,20,,0.3\n3,30,,5,\n4,40,,5,\n5,,40,,0.4\n",
            [20 * 32, 40 * 32],
        ),
        # W&B's export has both: Step counts calls, of which an evaluation is one more.
        (
            "prime-rl",
            PRIME_RL,
            "Step,step,progress/rollouts,eval/math/avg@4,eval/math/pass@1\n"
            "0,1,,0.1,0.1\n1,1,40,,\n2,2,50,,\n3,3,,0.3,0.3\n4,3,60,,\n",
            [0, 90],
        ),
    ],
)
def test_the_trainers_step_goes_before_wandbs_count_of_log_calls(trainer, config, log, made):
    assert counted(trainer, config, log) == made


@pytest.mark.parametrize(("trainer", "metric"), [("trl", "eval/reward"), ("prime-rl", "eval/math/avg@4")])
def test_wandbs_count_alone_is_asked_about(trainer, metric):
    line = json.dumps({"_step": 1, metric: 0.5}) + "\n"
    for name, log, column in (("log.csv", f"Step,{metric}\n0,0.1\n1,0.2\n", "Step"), ("log.jsonl", line, "_step")):
        with pytest.raises(BudgetError, match=rf"only by {column}, .*step_column="):
            counted(trainer, {**TRL, **PRIME_RL}, log, name=name)


def test_the_column_of_steps_can_be_named_in_tables_and_lines(tmp_path):
    log = "Step,optimizer steps,eval/reward\n0,5,0.1\n1,10,0.2\n"
    assert counted("trl", TRL, log, step_column="optimizer steps") == [80, 160]
    # Whoever says so is believed.
    assert counted("trl", TRL, log, step_column="Step") == [0, 16]
    lines = '{"Step": 2, "eval_reward": 0.5}\n{"Step": 4, "eval_reward": 0.6}\n'
    assert counted("trl", TRL, lines, name="log.jsonl", step_column="Step") == [32, 64]
    state = json.dumps({"log_history": [{"step": 2, "eval_reward": 0.5}]})
    for name, content, said in (
        ("log.csv", log, "no column 'steps'"),
        ("trainer_state.json", state, "no column 'steps'"),
        ("log.jsonl", lines, "no line has 'steps'"),
    ):
        with pytest.raises(BudgetError, match=said):
            counted("trl", TRL, content, name=name, step_column="steps")


@pytest.mark.parametrize(
    ("cell", "message"),
    [
        ("", "row 2 has no train/global_step"),
        ("ten", "row 2 has the train/global_step 'ten', which is not a whole number"),
        ("10.5", "row 2 has the train/global_step 10.5, which is not a whole number"),
        ("-1", "row 2 has the train/global_step -1"),
        ("inf", "row 2 has the train/global_step inf, which is not a whole number"),
    ],
)
def test_a_cell_that_is_not_a_step_names_its_row(cell, message):
    with pytest.raises(BudgetError, match=message):
        counted("trl", TRL, f"train/global_step,eval/reward\n5,0.1\n{cell},0.2\n")


(EVENTS,) = (FIXTURES / "trl" / "events").iterdir()


def test_a_database_of_something_else_is_named_by_its_tables_and_left_as_it_is(tmp_path):
    path = tmp_path / "other.db"
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE experiments (id INTEGER)")
    before = path.read_bytes()
    with pytest.raises(BudgetError, match="it has experiments"):
        ingest("trl", [str(path)])
    assert path.read_bytes() == before


RECORDS = [b"first", b"second" * 9, b"third"]


@pytest.mark.parametrize(("made", "reader", "header"), [(tfrecords, _tfrecords, 0), (leveldb, _leveldb, 7)])
def test_a_bit_of_any_byte_and_any_end_that_is_lost_is_noticed(tmp_path, made, reader, header):
    whole, path = made(RECORDS), tmp_path / "log"

    def read(data):
        path.write_bytes(data)
        left_out = []
        return [record[1] for record in reader(path, left_out)], left_out

    assert read(whole) == (RECORDS, [])
    for at in range(header, len(whole)):
        damaged = bytearray(whole)
        damaged[at] ^= 1 << at % 8
        try:
            found, left_out = read(bytes(damaged))
        except BudgetError as error:
            assert " byte " in str(error)  # noqa: PT017
        else:
            # The length of a record may say that it was cut off.
            assert left_out
            assert found == RECORDS[: len(found)] != RECORDS
    for end in range(header, len(whole)):
        found, left_out = read(whole[:end])
        assert found == RECORDS[: len(found)]
        assert bool(left_out) == (whole[:end] != made(found))
    # As a crash leaves it.
    found, left_out = read(whole + bytes(4_096))
    assert (found, len(left_out)) == (RECORDS, 1)


@pytest.mark.parametrize(("kinds", "found"), [((2, 4, 1), [b"ab", b"c"]), ((2, 1, 4), None), ((4, 1, 1), None)])
def test_a_part_of_a_record_that_is_missing_is_noticed(tmp_path, kinds, found):
    path, data = tmp_path / "run.wandb", leveldb([])
    for kind, part in zip(kinds, (b"a", b"b", b"c"), strict=True):
        data += struct.pack("<IHB", zlib.crc32(bytes([kind]) + part), len(part), kind) + part
    path.write_bytes(data)
    if found is None:
        with pytest.raises(BudgetError, match="is missing"):
            list(_leveldb(path, []))
    else:
        assert [record for _, record in _leveldb(path, [])] == found
