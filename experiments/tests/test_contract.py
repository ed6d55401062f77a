"""The folder that every package links to: versions of tables, and files that are replaced whole or not at all."""

import os
from importlib import import_module
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from isocompute.budget.contract import files, tables
from isocompute.budget.contract.errors import FileError, IsoComputeError, TableError, TrackingError
from isocompute.budget.contract.tables import schema

ROOT = Path(__file__).parents[2]
PACKAGES = ("budget", "rollout", "learner", "frontier")
TIMINGS = pl.DataFrame({"run_id": ["r"], "step": [1], "phase": ["sample"], "seconds": [2.0], "device_seconds": [2.0]})


def written_with(path: Path, version: str | None, **columns: object) -> Path:
    """A timings table whose file states some version, or none."""
    stated = {} if version is None else {"isocompute.table": "timings", "isocompute.schema_version": version}
    TIMINGS.with_columns(**columns).write_parquet(path, metadata=stated)
    return path


def test_a_file_states_its_table_and_the_version_of_its_schema(tmp_path: Path) -> None:
    path = tables.write(TIMINGS, "timings", tmp_path / "timings.parquet")
    stated = pl.read_parquet_metadata(path)
    assert stated["isocompute.table"] == "timings"
    assert stated["isocompute.schema_version"] == schema("timings").version == "1.0"


@pytest.mark.parametrize("version", [None, "", "1.0", "1.7", "0.9", "unknown"])
def test_files_of_this_major_version_or_of_none_are_read_and_extra_columns_ignored(
    tmp_path: Path, version: str | None
) -> None:
    path = written_with(tmp_path / "timings.parquet", version, added_later=pl.lit(3))
    assert tables.read(path, "timings").drop("added_later").equals(tables.check(TIMINGS, "timings", where="memory"))


@pytest.mark.parametrize("source", ["file", "folder"])
def test_a_newer_major_version_is_refused_in_one_sentence(tmp_path: Path, source: str) -> None:
    path = written_with(tmp_path / "timings.parquet", "2.1")
    with pytest.raises(TableError) as refused:
        tables.read(path if source == "file" else tmp_path, "timings")
    assert str(refused.value) == (
        f"{path}: the timings table has schema version 2.1, and this isocompute-budget reads 1.x: "
        "pip install --upgrade isocompute-budget"
    )


def test_a_table_of_a_name_that_only_newer_releases_know_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "file.parquet"
    TIMINGS.write_parquet(path, metadata={"isocompute.table": "episodes", "isocompute.schema_version": "1.0"})
    with pytest.raises(TableError, match="isocompute-budget has no table named episodes: pip install --upgrade"):
        tables.read(path, "timings")


@pytest.mark.parametrize("package", PACKAGES)
def test_the_errors_of_a_package_have_one_base(package: str) -> None:
    contract = import_module(f"isocompute.{package}.contract.errors")
    own = getattr(import_module(f"isocompute.{package}.errors"), f"{package.capitalize()}Error")
    shown = import_module(f"isocompute.{package}.contract.tables").TableError
    assert shown is contract.TableError
    for kind in (own, contract.TableError, contract.TrackingError, contract.FileError):
        assert issubclass(kind, contract.IsoComputeError)
        assert issubclass(kind, ValueError)


@pytest.mark.parametrize("package", PACKAGES)
def test_what_is_missing_for_mlflow_is_named_after_the_package(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tracking = import_module(f"isocompute.{package}.contract.tracking")
    monkeypatch.setitem(__import__("sys").modules, "mlflow", None)
    with pytest.raises(ValueError, match=rf'pip install "isocompute-{package}\[mlflow\]"'):
        tracking.ensure_store("sqlite:///nowhere.db")


@pytest.mark.slow
@given(before=st.binary(max_size=64), parts=st.lists(st.binary(max_size=64), max_size=4), breaks_at=st.integers(0, 6))
def test_a_file_is_the_old_one_or_the_new_one(
    tmp_path_factory: pytest.TempPathFactory, before: bytes, parts: list[bytes], breaks_at: int
) -> None:
    path = tmp_path_factory.mktemp("files") / "deep" / "file"
    path.parent.mkdir()
    path.write_bytes(before)
    try:
        with files.atomic_write(path) as stream:
            for index, part in enumerate(parts):
                if index == breaks_at:
                    raise KeyboardInterrupt
                stream.write(part)
            assert path.read_bytes() == before
    except KeyboardInterrupt:
        assert path.read_bytes() == before
    else:
        assert path.read_bytes() == b"".join(parts)
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("mask", [0o022, 0o002, 0o077, 0o027])
def test_a_file_follows_the_umask(mask: int, tmp_path: Path) -> None:
    before = os.umask(mask)
    try:
        files.write_text(tmp_path / "new", "text")
        files.write_text(tmp_path / "new", "again")
    finally:
        os.umask(before)
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o666 & ~mask


def test_a_file_that_cannot_be_written_is_the_error_asked_for_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("here")
    for place, why in ((tmp_path / "file" / "below", "Not a directory|File exists"), (tmp_path, "it is a folder")):
        for kind in (FileError, TableError, TrackingError):
            with pytest.raises(kind, match=rf"cannot be written \(({why})\)"):
                files.write_text(place, "text", error=kind)
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_a_file_that_is_there_is_refused_where_it_must_not_be_replaced(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with files.atomic_write(path, replace=False) as stream:
        stream.write(b"first")
    with pytest.raises(FileError, match="file: is there already"), files.atomic_write(path, replace=False) as stream:
        stream.write(b"second")
    assert path.read_bytes() == b"first"
    assert list(tmp_path.iterdir()) == [path]


def test_a_disk_without_space_keeps_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = files.write_text(tmp_path / "file", "old")

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files.os, "fsync", full)
    with pytest.raises(IsoComputeError, match=r"file: cannot be written \(No space left on device\)"):
        files.write_text(path, "new")
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["file"]
