"""A folder is whole after a power cut, too: what is renamed lies on the disk before, and the name of it after."""

import os
from pathlib import Path

import pytest
from isocompute.learner.errors import CheckpointError, LearnerError
from isocompute.learner.saving import checkpoint
from isocompute.learner.saving.checkpoint import remove_folder, whole_folder


def written(folder: Path, text: str = "new") -> None:
    with whole_folder(folder, what="the thing", error=CheckpointError) as aside:
        (aside / "state.json").write_text(text)
        (aside / "inner").mkdir()
        (aside / "inner" / "tensors").write_bytes(b"1234")


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("replaces", [False, True])
def test_all_is_flushed_before_the_rename_and_the_name_after_it(
    replaces: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    final = tmp_path / "thing"
    if replaces:
        written(final, "old")
    done: list[tuple[str, str]] = []
    flush, rename = os.fsync, Path.rename

    def flushed(handle: int) -> None:
        done.append(("flush", os.path.relpath(Path(f"/proc/self/fd/{handle}").readlink(), tmp_path)))
        flush(handle)

    def renamed(self: Path, target: Path) -> Path:
        done.append(("rename", f"{self.name} {target.name}"))
        return rename(self, target)

    monkeypatch.setattr(checkpoint.os, "fsync", flushed)
    monkeypatch.setattr(Path, "rename", renamed)
    written(final)
    monkeypatch.undo()
    aside = ".thing.writing"
    place = done.index(("rename", f"{aside} thing"))
    before, after = done[:place], done[place + 1 :]
    whole = [aside, f"{aside}/state.json", f"{aside}/inner", f"{aside}/inner/tensors"]
    assert sorted(name for what, name in before if what == "flush") == sorted(whole)
    # What is replaced goes only when the name of the new one is safe.
    assert after[0] == ("flush", ".")
    assert [pair for pair in done if pair[0] == "rename"][:-1] == (
        [("rename", "thing thing.before"), ("rename", f"{aside} thing")] if replaces else []
    )
    assert names(tmp_path) == ["thing"]
    assert (final / "state.json").read_text() == "new"


def test_a_block_that_fails_leaves_what_was_there(tmp_path: Path) -> None:
    def half_written() -> None:
        with whole_folder(tmp_path / "thing", what="the thing", error=CheckpointError) as aside:
            (aside / "state.json").write_text("half")
            raise KeyError

    written(tmp_path / "thing", "old")
    with pytest.raises(KeyError):
        half_written()
    assert names(tmp_path) == ["thing"]
    assert (tmp_path / "thing" / "state.json").read_text() == "old"


def test_an_error_of_the_system_is_the_error_that_was_asked_for(tmp_path: Path) -> None:
    with (
        pytest.raises(CheckpointError, match=r"thing cannot be written"),
        whole_folder(tmp_path / "thing", what="the thing", error=CheckpointError) as aside,
    ):
        (aside / "nothing" / "file").write_text("")
    assert issubclass(CheckpointError, LearnerError)
    assert names(tmp_path) == []


def test_what_an_earlier_kill_has_left_aside_is_no_part_of_the_folder(tmp_path: Path) -> None:
    left = tmp_path / ".thing.writing"
    left.mkdir()
    (left / "torn").write_text("")
    written(tmp_path / "thing")
    assert names(tmp_path) == ["thing"]
    assert names(tmp_path / "thing") == ["inner", "state.json"]


def test_a_folder_that_is_removed_leaves_its_name_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kill while it is being deleted leaves no half of it that could be read."""
    written(tmp_path / "thing")
    seen: list[list[str]] = []
    remove = checkpoint.shutil.rmtree

    def removed(folder: Path, **named: bool) -> None:
        seen.append(names(tmp_path))
        remove(folder, **named)

    monkeypatch.setattr(checkpoint.shutil, "rmtree", removed)
    remove_folder(tmp_path / "thing")
    remove_folder(tmp_path / "thing")
    assert "thing" not in seen[-1]
    assert names(tmp_path) == []
