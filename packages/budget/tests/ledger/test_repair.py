from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st
from isocompute.budget import Counts, History, Ledger
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
