"""Readers of a spool read what is new, whatever happens to the file."""

from pathlib import Path

from experiments.running.spool import Position, Spool


def steps(lines: list[dict[str, int]]) -> list[int]:
    return [line["step"] for line in lines]


def test_only_what_is_new_is_read(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "metrics.jsonl")
    assert spool.since(Position()) == ([], Position())
    for step in (1, 2):
        spool.write(step, 8 * step, {"reward": 0.5})
    lines, position = spool.since(Position())
    assert steps(lines) == [1, 2]
    assert position.read == spool.path.stat().st_size
    assert spool.since(position) == ([], position)
    spool.write(3, 24, {"reward": 0.5})
    lines, position = spool.since(position)
    assert steps(lines) == [3]


def test_a_torn_line_is_left_for_later(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "metrics.jsonl")
    spool.write(1, 8, {})
    with spool.path.open("a") as stream:
        stream.write('{"step": 2, "roll')
    lines, position = spool.since(Position())
    assert steps(lines) == [1]
    with spool.path.open("a") as stream:
        stream.write('outs": 16, "metrics": {}}\n')
    assert steps(spool.since(position)[0]) == [2]


def test_a_spool_that_was_rewound_is_read_again(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "metrics.jsonl")
    for step in (1, 2, 3):
        spool.write(step, 8 * step, {})
    _, position = spool.since(Position())
    spool.rewind(16)
    for step in (3, 4):
        spool.write(step, 8 * step, {"other": 0.123456})
    assert steps(spool.since(position)[0]) == [1, 2, 3, 4]
