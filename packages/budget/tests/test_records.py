import re
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from isocompute.budget import COHORTS, Counts, History, LedgerError, Limits, records

counts = st.builds(Counts, rollouts=st.integers(1, 10**6), response_tokens=st.integers(0, 2**40))
charge = st.builds(
    records.charge,
    st.integers(0, 50),
    st.dictionaries(st.sampled_from(COHORTS), counts, min_size=1),
    st.sampled_from([0.0, 0.0, 12.5]),
)
attempt = st.builds(records.attempt, st.just("run"), st.integers(0, 50))
limit = st.builds(
    records.limit,
    st.builds(Limits, rollouts=st.none() | st.integers(1, 10**9), device_seconds=st.none() | st.floats(0.1, 1e9)),
)
payloads = st.lists(st.one_of(charge, charge, attempt, limit), max_size=6).map(
    lambda rest: [records.attempt("run", 0), *rest]
)


def joined(contents):
    return records.MAGIC + b"".join(records.framed(number, payload) for number, payload in enumerate(contents))


def charges(history):
    return list(zip(*history.charges.columns(), strict=True))


SAMPLE = [
    records.attempt("run", 0),
    records.limit(Limits(rollouts=96)),
    records.charge(1, {"trained": Counts(rollouts=28), "filtered": Counts(rollouts=4, response_tokens=9)}),
    records.attempt("run", 0),
    records.charge(1, {"trained": Counts(rollouts=32, prompt_tokens=320, response_tokens=480)}),
]


@given(payloads)
def test_truncating_at_every_byte_recovers_exactly_the_whole_records(contents):
    data = joined(contents)
    ends = [0] + [len(joined(contents[:n])) for n in range(1, len(contents) + 1)]
    for cut in range(len(data) + 1):
        end = max(e for e in ends if e <= cut)
        assert [p for _, p in records.payloads(data[:cut], "x")] == contents[: ends.index(end)]
        history = History.decode(data[:cut], "x")
        assert (history.whole_bytes, history.torn_bytes) == (end, cut - end)


@given(payloads, st.integers(0, 2**20), st.integers(1, 5000))
def test_zeros_that_a_power_cut_leaves_behind_are_a_torn_tail(contents, cut, zeros):
    data = joined(contents)
    cut %= len(data) + 1
    whole = [p for _, p in records.payloads(data[:cut], "x")]
    assert [p for _, p in records.payloads(data[:cut] + b"\0" * zeros, "x")] == whole


def test_every_single_bit_flip_in_a_whole_ledger_is_named():
    data = joined(SAMPLE)
    for bit in range(len(data) * 8):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(LedgerError, match=r"^runs/a\.ledger: (not a ledger|record \d+ at byte \d+ is damaged)"):
            History.decode(bytes(flipped), "runs/a.ledger")


@given(payloads, st.integers(0, 2**20), st.integers(0, 2**20))
def test_a_bit_flip_in_a_torn_ledger_is_named_or_in_the_torn_tail(contents, cut, bit):
    data = joined(contents)
    data = data[: 1 + cut % len(data)]
    whole = [p for _, p in records.payloads(data, "x")]
    flipped = bytearray(data)
    flipped[bit // 8 % len(data)] ^= 1 << bit % 8
    try:
        assert [p for _, p in records.payloads(bytes(flipped), "x")] == whole
    except LedgerError as error:
        assert re.match(r"x: (not a ledger|record \d+ )", str(error))  # noqa: PT017


def test_a_record_that_is_there_twice_is_named():
    data = joined(SAMPLE)
    again = records.framed(2, SAMPLE[2])
    with pytest.raises(LedgerError, match=r"record 2 is there twice \(at byte \d+, where record 5 belongs\)"):
        History.decode(data + again, "x")


def test_a_file_that_was_appended_to_itself_is_named():
    data = joined(SAMPLE)
    with pytest.raises(LedgerError, match=r"x: record \d+ "):
        History.decode(data + data, "x")


@pytest.mark.parametrize("gone", range(len(SAMPLE) - 1))
def test_a_record_that_was_cut_out_is_named(gone):
    offsets = [len(joined(SAMPLE[:n])) for n in range(len(SAMPLE) + 1)]
    begin, end = list(pairwise(offsets))[gone]
    data = joined(SAMPLE)
    with pytest.raises(LedgerError, match=f"record {gone + 1} comes too early"):
        History.decode(data[:begin] + data[end:], "x")


@pytest.mark.parametrize("data", [b"run_id,step\n", b"PAR1 and so on, a Parquet file", b"isocompute ledger 2\n"])
def test_another_file_is_not_taken_for_a_ledger(data):
    with pytest.raises(LedgerError, match="not a ledger that this version reads"):
        History.decode(data, "x")


def test_limits_come_back_as_they_were_noted():
    for limits in (Limits(), Limits(rollouts=5), Limits(rollouts=7, response_tokens=9)):
        assert records.limit_in(records.limit(limits)) == limits


@given(payloads)
def test_charges_come_back_as_they_were_made(contents):
    history = History.decode(joined(contents), "x")
    expected, times = [], []
    number = 0
    for payload in contents:
        if payload[0] == records.ATTEMPT:
            number += 1
        elif payload[0] in (records.CHARGE, records.TIMED_CHARGE):
            head = 1
            if payload[0] == records.TIMED_CHARGE:
                head = records.TIMED.size
                times.append((number, *records.time_in(payload)))
            expected += [(number, *entry) for entry in records.ENTRY.iter_unpack(payload[head:])]
    assert charges(history) == expected
    assert list(history.times) == times


def told(read, data):
    """What a reader yields, or the error that it raises."""
    try:
        return list(read(data, "x"))
    except LedgerError as error:
        return str(error)


lengthy = st.lists(
    st.tuples(st.integers(1, 60), st.sampled_from([("trained",), ("trained", "failed"), ("eval",)])), max_size=6
)


@given(lengthy, st.integers(0, 2**20), st.integers(0, 3), st.integers(0, 2**20))
def test_many_charges_at_once_are_read_as_one_by_one(parts, flip, how, cut):
    contents = [records.attempt("run", 0)]
    for many, cohorts in parts:
        by_cohort = {c: Counts(rollouts=many, prompt_tokens=7) for c in cohorts}
        contents += [records.charge(step, by_cohort) for step in range(1, many + 1)]
    data = bytearray(joined(contents))
    if how == 1:
        data[flip % len(data)] ^= 1 << cut % 8
    elif how == 2:
        del data[cut % len(data) :]
    elif how == 3:
        data += b"\0" * (cut % 100)
    data = bytes(data)
    one_by_one, together = told(records.payloads, data), told(records.runs, data)
    if isinstance(one_by_one, str):
        assert together == one_by_one
        return
    assert sum(many for _, many, _ in together) == len(one_by_one)
    assert [end for end, _, _ in together][-1:] == [end for end, _ in one_by_one][-1:]
    entries = b"".join(p[1:] for _, _, p in together if p[0] == records.CHARGE)
    assert entries == b"".join(p[1:] for _, p in one_by_one if p[0] == records.CHARGE)
