from hypothesis import given
from hypothesis import strategies as st
from isocompute.budget import COHORTS, Counts, History, Limits
from isocompute.budget.ledger import frames

counts = st.builds(Counts, rollouts=st.integers(1, 10**6), response_tokens=st.integers(0, 2**40))
charge = st.builds(
    frames.encode_charge,
    st.integers(0, 50),
    st.dictionaries(st.sampled_from(COHORTS), counts),
    st.sampled_from([0.0, 0.0, 12.5]),
)
attempt = st.builds(frames.encode_attempt, st.just("run"), st.integers(0, 50))
limit = st.builds(
    frames.encode_limits,
    st.builds(Limits, rollouts=st.none() | st.integers(1, 10**9), device_seconds=st.none() | st.floats(0.1, 1e9)),
)
payloads = st.lists(st.one_of(charge, charge, attempt, limit), max_size=6).map(
    lambda rest: [frames.encode_attempt("run", 0), *rest]
)


def test_limits_come_back_as_they_were_noted():
    for limits in (Limits(), Limits(rollouts=5), Limits(rollouts=7, response_tokens=9)):
        assert frames.decode_limits(frames.encode_limits(limits)) == limits


@given(payloads)
def test_charges_come_back_as_they_were_made(contents):
    data = frames.head() + b"".join(frames.frame(number, payload) for number, payload in enumerate(contents))
    history = History.decode(data, "x")
    expected, times = [], []
    number = 0
    for payload in contents:
        if payload[0] == frames.ATTEMPT:
            number += 1
        elif payload[0] in (frames.CHARGE, frames.TIMED_CHARGE):
            head = 1
            if payload[0] == frames.TIMED_CHARGE:
                head = frames.TIMED.size
                times.append((number, *frames.decode_time(payload)))
            expected += [(number, *entry) for entry in frames.ENTRY.iter_unpack(payload[head:])]
    assert list(zip(*history.charges.columns(), strict=True)) == expected
    assert list(history.times) == times


def test_a_run_id_that_is_no_utf_8_is_read_all_the_same(tmp_path):
    opening = frames.ATTEMPTED.pack(frames.ATTEMPT, 0) + b"run-\xff"
    path = tmp_path / "odd.ledger"
    body = frames.frame(0, opening)
    path.write_bytes(frames.head(frames.HEAD_BYTES + len(body)) + body)
    assert History.read(path).run_id == "run-\N{REPLACEMENT CHARACTER}"
