import re
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from isocompute.budget import COHORTS, Counts, History, LedgerError, Limits
from isocompute.budget.ledger import frames

counts = st.builds(Counts, rollouts=st.integers(1, 10**6), response_tokens=st.integers(0, 2**40))
charge = st.builds(
    frames.encode_charge,
    st.integers(0, 50),
    st.dictionaries(st.sampled_from(COHORTS), counts),
    st.sampled_from([0.0, 0.0, 12.5]),
)
attempt = st.builds(frames.encode_attempt, st.just("run"), st.integers(0, 50))
payloads = st.lists(st.one_of(charge, charge, attempt), max_size=6).map(
    lambda rest: [frames.encode_attempt("run", 0), *rest]
)


def joined(contents, synced=frames.HEAD_BYTES):
    """A ledger of which the first so many bytes are synced."""
    return frames.head(synced) + b"".join(frames.frame(number, payload) for number, payload in enumerate(contents))


def all_synced(contents):
    return joined(contents, len(joined(contents)))


def ends_of(contents):
    return [len(joined(contents[:n])) for n in range(len(contents) + 1)]


def read(data):
    return [payload for _, payload in frames.payloads(data, "x")]


SAMPLE = [
    frames.encode_attempt("run", 0),
    frames.encode_limits(Limits(rollouts=96)),
    frames.encode_charge(1, {"trained": Counts(rollouts=28), "filtered": Counts(rollouts=4, response_tokens=9)}),
    frames.encode_attempt("run", 0),
    frames.encode_charge(1, {"trained": Counts(rollouts=32, prompt_tokens=320, response_tokens=480)}),
]


@pytest.mark.slow
@given(payloads, st.integers(0, 6))
def test_truncating_past_the_watermark_recovers_exactly_the_whole_records(contents, synced):
    ends = ends_of(contents)
    synced = ends[min(synced, len(contents))]
    data = joined(contents, synced)
    for cut in range(synced, len(data) + 1):
        end = max(e for e in ends if e <= cut)
        assert read(data[:cut]) == contents[: ends.index(end)]
        history = History.decode(data[:cut], "x")
        assert (history.whole_bytes, history.torn_bytes) == (end, cut - end)


@pytest.mark.slow
@given(payloads, st.integers(0, 6))
def test_a_file_shorter_than_its_watermark_lacks_what_was_acknowledged(contents, first):
    data = all_synced(contents)
    for cut in range(frames.HEAD_BYTES + first, len(data), 7):
        with pytest.raises(LedgerError, match=f"x: ends at byte {cut}, but {len(data)} "):
            History.decode(data[:cut], "x")


@given(payloads, st.integers(0, 6), st.binary(max_size=300))
def test_whatever_follows_the_watermark_is_a_torn_end_however_long(contents, synced, garbage):
    synced = ends_of(contents)[min(synced, len(contents))]
    data = joined(contents, synced)[:synced] + garbage
    whole = contents[: ends_of(contents).index(synced)]
    try:
        assert read(data) == whole
        assert History.decode(data, "x").torn_bytes == len(garbage)
    except LedgerError as error:
        # As good as impossible: the garbage begins with a whole record.
        assert "occurs twice" in str(error) or "comes too early" in str(error)  # noqa: PT017


@given(payloads, st.integers(0, 2**20), st.integers(1, 5000))
def test_zeros_that_a_power_cut_leaves_behind_are_torn_after_the_watermark_only(contents, begin, zeros):
    ends = ends_of(contents)
    begin = ends[0] + begin % (len(joined(contents)) - ends[0] + 1)
    synced = max(end for end in ends if end <= begin)
    data = joined(contents, synced)
    holed = data[:begin] + b"\0" * (len(data) - begin + zeros)
    assert read(holed) == contents[: ends.index(synced)]
    if begin < len(data):
        with pytest.raises(LedgerError, match=f"record {ends.index(synced)} at byte {synced} "):
            read(all_synced(contents)[:begin] + holed[begin:])


def test_a_file_of_zeros_is_not_an_empty_ledger():
    with pytest.raises(LedgerError, match="x: not a ledger"):
        History.decode(bytes(500), "x")
    with pytest.raises(LedgerError, match="x: is empty"):
        History.decode(b"", "x")
    assert History.decode(frames.head(), "x").records == 0


def test_every_single_bit_flip_in_a_synced_ledger_is_named():
    data = all_synced(SAMPLE)
    named = r"^runs/a\.ledger: (not a ledger|the watermark at byte 20|record \d+ at byte \d+) "
    for bit in range(len(data) * 8):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        # The 1 and the 2 of the versions differ in two bits.
        with pytest.raises(LedgerError, match=named):
            History.decode(bytes(flipped), "runs/a.ledger")


@given(payloads, st.integers(0, 2**20), st.integers(0, 2**20))
def test_a_bit_flip_in_a_torn_ledger_is_named_or_in_the_torn_end(contents, cut, bit):
    data = joined(contents)
    data = data[: frames.HEAD_BYTES + cut % (len(data) - frames.HEAD_BYTES + 1)]
    flipped = bytearray(data)
    flipped[bit // 8 % len(data)] ^= 1 << bit % 8
    try:
        found = read(bytes(flipped))
    except LedgerError as error:
        assert re.match(r"x: (not a ledger|the watermark|ends at byte|record \d+ )", str(error))  # noqa: PT017
    else:
        assert found == contents[: len(found)]


def test_a_record_that_is_there_twice_is_named():
    again = frames.frame(2, SAMPLE[2])
    with pytest.raises(LedgerError, match=r"record 2 .*twice .*record 5"):
        History.decode(all_synced(SAMPLE) + again, "x")


@pytest.mark.parametrize("gone", range(len(SAMPLE) - 1))
def test_a_record_that_was_cut_out_is_named(gone):
    begin, end = list(pairwise(ends_of(SAMPLE)))[gone]
    data = joined(SAMPLE)
    with pytest.raises(LedgerError, match=f"record {gone + 1} "):
        History.decode(data[:begin] + data[end:], "x")


@pytest.mark.parametrize(
    "data", [b"run_id,step\n", b"PAR1 and so on, a Parquet file", b"isocompute ledger 3\n", b"iso"]
)
def test_another_file_is_not_taken_for_a_ledger(data):
    with pytest.raises(LedgerError, match="not a ledger"):
        History.decode(data, "x")


def told(read, data):
    """What a reader yields, or the error that it raises."""
    try:
        return list(read(data, "x"))
    except LedgerError as error:
        return str(error)


lengthy = st.lists(
    st.tuples(st.integers(1, 60), st.sampled_from([("trained",), ("trained", "failed"), ("eval",), ()])), max_size=6
)


@given(lengthy, st.booleans(), st.integers(0, 2**20), st.integers(0, 3), st.integers(0, 2**20))
def test_many_charges_at_once_are_read_as_one_by_one(parts, synced, flip, how, cut):
    contents = [frames.encode_attempt("run", 0)]
    for many, cohorts in parts:
        by_cohort = {c: Counts(rollouts=many, prompt_tokens=7) for c in cohorts}
        contents += [frames.encode_charge(step, by_cohort) for step in range(1, many + 1)]
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
