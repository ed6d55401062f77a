import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from isocompute.learner.errors import LearnerError
from isocompute.learner.objective.advantages import listed, ragged

ROWS = st.lists(st.lists(st.floats(-4, 4, width=32), max_size=5), min_size=1, max_size=6)


@given(ROWS)
def test_lists_are_read_and_written_again(rows: list[list[float]]) -> None:
    table = pl.DataFrame({"values": pl.Series(rows, dtype=pl.List(pl.Float32))})
    lengths = np.array([len(row) for row in rows])
    found = ragged(table, "values", lengths)
    assert listed("values", found).to_list() == rows
    assert found.sums() == pytest.approx([sum(row) for row in rows])
    matrix = found.padded()
    assert (matrix[found.mask] == found.values).all()
    assert not matrix[~found.mask].any()
    assert [found.values[place] for place in found.last] == [row[-1] for row in rows if row]
    # A part of a table, whose lists do not begin at the start of a buffer.
    assert ragged(table[1:], "values", lengths[1:]).values.tolist() == [x for row in rows[1:] for x in row]


def test_a_column_that_does_not_fit_is_refused() -> None:
    table = pl.DataFrame({"values": [[1.0], None, [1.0, 2.0]]})
    assert ragged(table, "values", np.array([1, 0, 2])).values.tolist() == [1.0, 1.0, 2.0]
    with pytest.raises(LearnerError, match=r"row 2 .* 2 .* 1 "):
        ragged(table, "values", np.array([1, 0, 1]))
    with pytest.raises(LearnerError, match="column old_logprobs"):
        ragged(table, "old_logprobs", np.array([1, 0, 2]))
