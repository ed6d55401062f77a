"""Tables on disk, whatever interrupted their writing."""

from pathlib import Path
from typing import Any

import pytest
from isocompute.rollout.contract import tables


def test_a_write_that_was_interrupted_does_not_break_a_reader(
    tiny: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables.write(tiny.problems, "problems", tmp_path / "problems.parquet")

    def interrupt(_: int) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", interrupt)
        with pytest.raises(KeyboardInterrupt):
            tables.write(tiny.problems.head(1), "problems", tmp_path / "problems.parquet")
    assert [path.name for path in tmp_path.iterdir()] == ["problems.parquet"]
    # What a killed process leaves behind.
    (tmp_path / ".problems.parquet.k1ll3d.writing").write_bytes(b"PAR1")
    assert len(tables.read(tmp_path, "problems")) == 6
