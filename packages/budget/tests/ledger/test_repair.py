import fcntl
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from isocompute.budget import Counts, History, Ledger, LedgerError
from isocompute.budget.cli import main
from isocompute.budget.ledger import frames
from isocompute.budget.ledger.repair import salvage

CONTENTS = [
    frames.encode_attempt("run", 0),
    *(
        frames.encode_charge(step, {"trained": Counts(rollouts=step), "failed": Counts(rollouts=100)})
        for step in range(1, 6)
    ),
    frames.encode_attempt("run", 4),
    *(frames.encode_charge(step, {"trained": Counts(rollouts=step)}, 2.0) for step in range(5, 8)),
]


def joined(contents=CONTENTS, numbers=None):
    body = b"".join(frames.frame(n, p) for n, p in zip(numbers or range(len(contents)), contents, strict=True))
    return frames.head(frames.HEAD_BYTES + len(body)) + body


ENDS = [len(joined(CONTENTS[:n])) for n in range(len(CONTENTS) + 1)]


def payloads(content):
    return [payload for _, payload in frames.payloads(content, "x")]


@given(st.lists(st.tuples(st.integers(0, 2000), st.binary(min_size=1, max_size=90)), min_size=1, max_size=4))
def test_every_record_that_was_not_touched_is_saved_and_every_byte_is_accounted_for(hits):
    whole = joined()
    data = bytearray(whole)
    for at, garbage in hits:
        at = ENDS[1] + at % (len(data) - ENDS[1])
        data[at : at + len(garbage)] = garbage[: len(data) - at]
    data = bytes(data)
    if data == whole:
        return
    saved = salvage(data, "x")
    untouched = [n for n, (b, e) in enumerate(pairwise(ENDS)) if data[b:e] == whole[b:e]]
    assert payloads(saved.content) == [CONTENTS[n] for n in untouched]
    lost = sum(ENDS[n + 1] - ENDS[n] for n in range(len(CONTENTS)) if n not in untouched)
    assert sum(part.end - part.begin for part in saved.dropped) == lost
    gone = [n for first, last in saved.missing for n in range(first, last + 1)]
    # Records after the last whole one leave no trace.
    assert gone == [n for n in range(untouched[-1]) if n not in untouched]
    assert History.decode(saved.content, "x").torn_bytes == 0


def test_a_record_that_is_there_twice_is_saved_once_and_two_with_one_number_both():
    other = frames.encode_charge(9, {"stale": Counts(rollouts=7)})
    data = joined([*CONTENTS[:3], CONTENTS[2], other, *CONTENTS[3:]], [0, 1, 2, 2, 2, *range(3, len(CONTENTS))])
    saved = salvage(data, "x")
    assert payloads(saved.content) == [*CONTENTS[:3], other, *CONTENTS[3:]]
    assert [part.reason for part in saved.dropped] == ["it occurs twice"]
    assert saved.missing == ()
    assert "record 2 occurs twice with different content: both are kept" in saved.notes[0]


def test_a_ledger_that_lost_its_beginning_keeps_its_run():
    data = b"\0" * ENDS[2] + joined()[ENDS[2] :]
    saved = salvage(data, "x")
    assert saved.history.run_id == "run"
    assert payloads(saved.content) == [frames.encode_attempt("run", 0), *CONTENTS[2:]]
    assert saved.missing == ((0, 1),)
    assert "the record that began the first attempt is lost" in saved.notes[0]
    assert "a missing record may have begun an attempt" in saved.notes[1]


def test_a_ledger_without_any_attempt_needs_its_run_said():
    data = b"\0" * ENDS[1] + joined()[ENDS[1] : ENDS[4]]
    with pytest.raises(LedgerError, match="--run-id"):
        salvage(data, "x")
    assert salvage(data, "x", run_id="run").history.totals().paid.rollouts == 1 + 2 + 3 + 300
    with pytest.raises(LedgerError, match="run run, not of other"):
        salvage(joined() + b"torn", "x", run_id="other")


def test_two_runs_are_not_put_into_one_ledger():
    with pytest.raises(LedgerError, match="runs other and run"):
        salvage(joined() + joined([frames.encode_attempt("other", 0)])[frames.HEAD_BYTES :], "x")


def damaged(path):
    with Ledger.open(path, run_id="demo") as ledger:
        for step in (1, 2, 3):
            ledger.charge(step, {"trained": Counts(rollouts=32, prompt_tokens=320, response_tokens=480)})
    data = bytearray(path.read_bytes())
    # In the last record but one.
    data[-2 * 54 + 30] ^= 1
    path.write_bytes(data)
    return bytes(data)


def test_the_command_writes_a_new_ledger_and_lists_what_is_not_in_it(tmp_path, capsys):
    path, new = tmp_path / "a.ledger", tmp_path / "saved" / "b.ledger"
    data = damaged(path)
    assert main(["show", str(path), "--repair", str(new)]) == 0
    out = capsys.readouterr().out
    assert f"{path}: record 3 at byte 275 is damaged (its checksum does not match; the 3 records before" in out
    assert f"{new}: 4 records of run demo, 1 attempt: used 64 rollouts, paid 64" in out
    assert (
        "dropped: bytes 275 to 329 (record 3): its checksum does not match; it seems to charge step 2, trained" in out
    )
    assert "not saved: record 3\n" in out
    assert "note:" not in out
    assert path.read_bytes() == data
    assert [file.name for file in new.parent.iterdir()] == ["b.ledger"]
    with Ledger.open(new, run_id="demo", resumed_from=3) as ledger:
        assert ledger.used.rollouts == 64


def test_the_command_never_writes_over_a_file(tmp_path, capsys):
    path, new = tmp_path / "a.ledger", tmp_path / "b.ledger"
    data = damaged(path)
    new.write_text("mine")
    for output in (new, path):
        assert main(["show", str(path), "--repair", str(output)]) == 2
        assert "already exists; a repaired ledger is written to a new file" in capsys.readouterr().err
    assert (new.read_text(), path.read_bytes()) == ("mine", data)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["a.ledger", "b.ledger"]


def test_what_cannot_be_repaired_is_said_in_one_line(tmp_path, capsys):
    whole, table, held = tmp_path / "a.ledger", tmp_path / "b.parquet", tmp_path / "c.ledger"
    Ledger.open(whole, run_id="demo").close()
    table.write_bytes(b"PAR1" * 100)
    damaged(held)
    for path, problem in (
        (whole, "is whole, so there is nothing to repair"),
        (table, "holds no whole record, so nothing can be saved"),
        (tmp_path / "none", "cannot be read (No such file or directory)"),
        (tmp_path, "cannot be read (Is a directory)"),
        (held, "a run has this ledger open; stop it first"),
    ):
        with held.open("rb") as stream:
            fcntl.flock(stream, fcntl.LOCK_EX)
            assert main(["show", str(path), "--repair", str(tmp_path / "new")]) == 2
        said = capsys.readouterr()
        assert said.err == f"error: {path}: {problem}\n"
        assert not said.out
    assert not (tmp_path / "new").exists()
