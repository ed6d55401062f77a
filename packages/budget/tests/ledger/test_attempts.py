from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from isocompute.budget import Counts, History, Ledger
from isocompute.budget.ledger import frames
from isocompute.budget.ledger.frames import Origin, decode_origin, encode_origin, here

# Printable, since a name ends at the first zero byte.
names = st.text(st.characters(min_codepoint=33, max_codepoint=0xD7FF), max_size=90)


@given(host=names, job=st.none() | names, seconds=st.integers(0, 2**33), salt=st.binary(min_size=8, max_size=8))
def test_an_origin_comes_back_with_names_cut_to_64_bytes(host, job, seconds, salt):
    origin = Origin(began=datetime.fromtimestamp(seconds, UTC), host=host, job=job, salt=salt)
    payload = encode_origin(frames.ORIGIN_KIND, origin)
    back = decode_origin(payload + b"of a later version")
    assert (back.began, back.salt) == (origin.began, salt)
    assert host.startswith(back.host)
    assert len(back.host.encode()) >= min(len(host.encode()), frames.TEXT_BYTES - 2)
    assert (job or "").startswith(back.job or "")
    assert len(payload) == frames.ORIGIN_LAYOUT.size


def test_an_origin_that_is_cut_short_is_refused():
    with pytest.raises(ValueError, match="when an attempt began"):
        decode_origin(b"a123")


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
        assert abs((first.began - datetime.now(UTC)).total_seconds()) < 3600
        tables.append(ledger.table())
    assert tables[0].equals(tables[1])
