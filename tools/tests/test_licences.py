"""Which licences need a reason, and those of what is installed here."""

from importlib.metadata import distributions
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from tools.environment import COMPLETE
from tools.licences import ACCEPTED, PERMISSIVE, SPOKEN, judged, licence_of, name_of, permissive
from tools.releases import pinned

PINNED = pinned(Path(__file__).parents[2] / COMPLETE)
FREE = st.sampled_from(sorted(PERMISSIVE)) | st.just("Apache-2.0 WITH LLVM-exception")
BOUND = st.sampled_from(["GPL-3.0-only", "LGPL-2.1-only", "AGPL-3.0-or-later", "MPL-2.0", "LicenseRef-Own", "MIT2"])


def expressions(leaves: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """SPDX expressions of some licences."""
    joined = st.sampled_from([" AND ", " OR "])
    return st.recursive(leaves, lambda inner: st.builds("({}{}{})".format, inner, joined, inner), max_leaves=6)


@settings(deadline=None)
@given(expressions(FREE), st.sampled_from([" AND ", " OR "]), BOUND)
def test_a_reason_is_needed_where_one_licence_is_not_permissive(free: str, joined: str, bound: str) -> None:
    assert permissive(free)
    assert not permissive(free + joined + bound)
    assert not permissive(bound + joined + free)


def test_older_metadata_is_understood_and_none_is_not() -> None:
    assert all(map(permissive, SPOKEN))
    assert not permissive("")


def test_a_package_whose_licence_changes_is_accepted_no_more() -> None:
    assert judged([("certifi", "1", ACCEPTED["certifi"][0])])[1] == []
    assert judged([("certifi", "2", "GPL-3.0-only")])[1] == ["certifi 2: GPL-3.0-only"]
    assert judged([("other", "1", "")])[1]


def test_what_is_installed_is_permissive_or_accepted_and_nothing_else_is() -> None:
    assert [name for name in ACCEPTED if name not in PINNED] == []
    found = [(name_of(d), d.version, licence_of(d)) for d in distributions()]
    locked = [each for each in found if PINNED.get(each[0]) == each[1].partition("+")[0]]
    assert locked
    assert judged(locked)[1] == []
    assert [name for name, _, licence in locked if name in ACCEPTED and permissive(licence)] == []
