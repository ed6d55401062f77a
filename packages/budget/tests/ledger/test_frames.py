"""The bytes of a ledger: what was recorded comes back, a torn end is told from damage, and damage is named."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from isocompute.budget import COHORTS, Counts, History, Ledger, LedgerError, Limits
from isocompute.budget.ledger import frames
from isocompute.budget.ledger.frames import here

counts = st.builds(Counts, rollouts=st.integers(1, 10**6), response_tokens=st.integers(0, 2**40))
by_cohort = st.dictionaries(st.sampled_from(COHORTS), counts)
charge = st.builds(frames.encode_charge, st.integers(0, 50), by_cohort, st.sampled_from([0.0, 0.0, 12.5]))
attempt = st.builds(frames.encode_attempt, st.just("run"), st.integers(0, 50))
payloads = st.lists(st.one_of(charge, charge, attempt), max_size=6).map(lambda rest: [OPENING, *rest])
OPENING = frames.encode_attempt("run", 0)
SAMPLE = [
    OPENING,
    frames.encode_limits(Limits(rollouts=96)),
    frames.encode_charge(1, {"trained": Counts(rollouts=28), "filtered": Counts(rollouts=4, response_tokens=9)}),
    OPENING,
    frames.encode_charge(1, {"trained": Counts(rollouts=32, prompt_tokens=320, response_tokens=480)}),
]


def joined(contents, synced=frames.HEAD_BYTES):
    """A ledger of which the first so many bytes are synced."""
    return frames.head(synced) + b"".join(frames.frame(number, payload) for number, payload in enumerate(contents))


def all_synced(contents):
    return joined(contents, len(joined(contents)))


def ends_of(contents):
    return [len(joined(contents[:n])) for n in range(len(contents) + 1)]


def read(data):
    return [payload for _, payload in frames.payloads(data, "x")]


@given(payloads)
def test_charges_come_back_as_they_were_made(contents):
    history = History.decode(joined(contents), "x")
    expected, times, number = [], [], 0
    for payload in contents:
        if payload[0] == frames.ATTEMPT:
            number += 1
        elif payload[0] in (frames.CHARGE, frames.TIMED_CHARGE):
            timed = payload[0] == frames.TIMED_CHARGE
            times += [(number, *frames.decode_time(payload))] if timed else []
            entries = frames.ENTRY.iter_unpack(payload[frames.TIMED.size if timed else 1 :])
            expected += [(number, *entry) for entry in entries]
    assert list(zip(*history.charges.columns(), strict=True)) == expected
    assert list(history.times) == times


@given(
    st.builds(
        Limits,
        rollouts=st.none() | st.integers(1, 10**9),
        response_tokens=st.none() | st.integers(1, 10**9),
        device_seconds=st.none() | st.floats(0.1, 1e9),
        counted=st.sampled_from(["paid", "used"]),
    )
)
def test_limits_come_back_as_they_were_noted(limits):
    assert frames.decode_limits(frames.encode_limits(limits)) == limits


# Printable, since a name ends at the first zero byte.
names = st.text(st.characters(min_codepoint=33, max_codepoint=0xD7FF), max_size=90)


def test_every_attempt_has_its_time_host_and_salt_and_no_table_does(tmp_path, monkeypatch):
    for name in frames.JOB_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    tables = []
    for number in (1, 2):
        path = tmp_path / f"{number}.ledger"
        for resumed_from in (None, 1):
            with Ledger.open(path, run_id="a", resumed_from=resumed_from) as ledger:
                ledger.charge(1, {"trained": Counts(rollouts=4)})
        first, second = History.read(path).origins
        assert first.salt != second.salt
        assert (first.host, first.job) == (here().host, None)
        tables.append(ledger.table())
    assert tables[0].equals(tables[1])


@given(payloads, st.integers(0, 6), st.binary(max_size=300) | st.integers(1, 5000).map(bytes))
def test_whatever_follows_the_watermark_is_a_torn_end_however_long(contents, synced, garbage):
    ends = ends_of(contents)
    synced = ends[min(synced, len(contents))]
    data = joined(contents, synced)[:synced] + garbage
    assert read(data) == contents[: ends.index(synced)]
    assert History.decode(data, "x").torn_bytes == len(garbage)


def test_every_single_bit_flip_in_a_synced_ledger_is_named():
    data = all_synced(SAMPLE)
    for bit in range(len(data) * 8):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(LedgerError, match=r"^x: (not a ledger|the watermark at byte 20|record \d+ at byte \d+) "):
            History.decode(bytes(flipped), "x")


def test_a_record_that_is_there_twice_or_was_cut_out_is_named():
    with pytest.raises(LedgerError, match=r"record 2 .*twice .*record 5"):
        History.decode(all_synced(SAMPLE) + frames.frame(2, SAMPLE[2]), "x")
    for gone, (begin, end) in enumerate(list(pairwise(ends_of(SAMPLE)))[:-1]):
        data = joined(SAMPLE)
        with pytest.raises(LedgerError, match=f"record {gone + 1} "):
            History.decode(data[:begin] + data[end:], "x")


@pytest.mark.parametrize("data", [b"run_id,step\n", b"PAR1 and so on, a Parquet file", b"isocompute ledger 3\n"])
def test_another_file_is_not_taken_for_a_ledger(data):
    with pytest.raises(LedgerError, match="not a ledger"):
        History.decode(data, "x")


@pytest.mark.parametrize(
    ("payload", "problem"),
    [
        (b"X", "record 1 is not one that this version knows"),
        (b"", "record 1 is not one that this version knows"),
        (b"E", "record 1 is not one that this version knows"),
        (frames.TIMED.pack(frames.TIMED_CHARGE, 1, 2.0) + b"12345", "record 1 is not one that this version knows"),
        (b"C" + frames.ENTRY.pack(1, 17, 1, 1, 1), "a charge of attempt 1 is not one that this version knows"),
        (b"C" + frames.ENTRY.pack(1, 0, -1, 1, 1), "a charge of attempt 1 is not one that this version knows"),
        (b"a123", "record 1 .*when an attempt began"),
        (frames.encode_attempt("other", 0), "runs other and run"),
    ],
)
def test_a_whole_record_that_makes_no_sense_is_named(payload, problem):
    with pytest.raises(LedgerError, match=f"x: .*{problem}"):
        History.decode(joined([OPENING, payload]), "x")


def test_an_unknown_ancillary_record_is_left_out_and_a_charge_before_any_attempt_is_not():
    charged = [frames.encode_charge(step, {"trained": Counts(rollouts=step)}) for step in (1, 2)]
    history = History.decode(joined([OPENING, b"x", charged[0], b"zanything", charged[1]]), "x")
    assert (history.totals().used.rollouts, history.records, history.last_step) == (3, 5, 2)
    assert history.origins == (None,)
    with pytest.raises(LedgerError, match="attempt must begin"):
        History.decode(joined(charged), "x")


def told(read, data):
    """Return what a reader yields, or the error that it raises."""
    try:
        return list(read(data, "x"))
    except LedgerError as error:
        return str(error)


lengthy = st.lists(
    st.tuples(st.integers(1, 60), st.sampled_from([("trained",), ("trained", "failed"), ("eval",), ()])), max_size=6
)


@given(lengthy, st.booleans(), st.integers(0, 2**20), st.integers(0, 3), st.integers(0, 2**20))
def test_many_charges_at_once_are_read_as_one_by_one(parts, synced, flip, how, cut):
    contents = [OPENING]
    for many, cohorts in parts:
        charged = {c: Counts(rollouts=many, prompt_tokens=7) for c in cohorts}
        contents += [frames.encode_charge(step, charged) for step in range(1, many + 1)]
    data = bytearray(all_synced(contents) if synced else joined(contents))
    if how == 1:
        data[flip % len(data)] ^= 1 << cut % 8
    elif how == 2:
        del data[cut % len(data) :]
    elif how == 3:
        data += b"\0" * (cut % 100)
    data = bytes(data)
    one_by_one, together = told(frames.payloads, data), told(frames.read_blocks, data)
    if isinstance(one_by_one, str):
        assert together == one_by_one
        return
    assert sum(many for _, many, _ in together) == len(one_by_one)
    assert [end for end, _, _ in together][-1:] == [end for end, _ in one_by_one][-1:]
    entries = b"".join(p[1:] for _, _, p in together if p[0] == frames.CHARGE)
    assert entries == b"".join(p[1:] for _, p in one_by_one if p[0] == frames.CHARGE)
