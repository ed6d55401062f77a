"""Readers of a spool read what is new, whatever happens to the file."""

from pathlib import Path

from isocompute.learner.records.steps import Average, StepRecord, UpdateReport

from experiments.running.work import Position, Spool, Spooled

from .made import evaluation_record, step_record


def steps(records: list[Spooled]) -> list[int]:
    return [spooled.record.step for spooled in records]


def test_records_are_read_as_they_were_written(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "metrics.jsonl")
    update = UpdateReport(
        objective={"loss": Average(total=1 / 3, count=1.0)},
        gradient_norm=2.0,
        learning_rate=1e-3,
        sync_error=1e-7,
        skipped=Average(total=3.0, count=8.0),
    )
    whole = StepRecord(step=2, rollouts=16, sample_seconds=0.1, update_seconds=0.2, update=update, gradient_retries=1)
    written = [evaluation_record(0, 0.25), step_record(1), whole]
    for record in written:
        spool.write(record)
    assert spool.records() == written


def test_only_what_is_new_is_read(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "metrics.jsonl")
    assert spool.since(Position()) == ([], Position())
    for step in (1, 2):
        spool.write(step_record(step))
    records, position = spool.since(Position())
    assert steps(records) == [1, 2]
    assert position.read == spool.path.stat().st_size
    assert spool.since(position) == ([], position)
    spool.write(step_record(3))
    records, position = spool.since(position)
    assert steps(records) == [3]


def test_a_torn_line_is_left_for_later(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "metrics.jsonl")
    for step in (1, 2):
        spool.write(step_record(step))
    whole = spool.path.read_bytes()
    spool.path.write_bytes(whole[:-20])
    records, position = spool.since(Position())
    assert steps(records) == [1]
    with spool.path.open("ab") as stream:
        stream.write(whole[-20:])
    assert steps(spool.since(position)[0]) == [2]


def test_a_spool_that_was_rewound_is_read_again(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "metrics.jsonl")
    for step in (1, 2, 3):
        spool.write(step_record(step))
    _, position = spool.since(Position())
    spool.rewind(16)
    for step in (3, 4):
        spool.write(step_record(step, reward=0.123456))
    assert steps(spool.since(position)[0]) == [1, 2, 3, 4]


def test_a_record_keeps_its_time_when_the_spool_is_rewound(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "metrics.jsonl")
    for step in (1, 2, 3):
        spool.write(step_record(step))
    before = spool.timed()
    assert [spooled.time for spooled in before] == sorted(spooled.time for spooled in before)
    spool.rewind(16)
    assert spool.timed() == before[:2]
