"""Folders and checkpoints are whole after a kill or a power cut, or not there."""

import json
import math
import os
import resource
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from threading import Event, Timer

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from isocompute.learner.errors import CheckpointError
from isocompute.learner.saving import checkpoint as saving
from isocompute.learner.saving.checkpoint import (
    Checkpoint,
    Checkpoints,
    TensorFiles,
    tensors_hash,
    whole_folder,
    write_tensors,
)
from safetensors.torch import save_file
from small_run import Killed, counted_writes


def checkpoint(step: int, value: float | None = None) -> Checkpoint:
    return Checkpoint(
        step=step,
        tensors={"w": torch.full((3,), float(step if value is None else value))},
        values={"version": step},
        progress={"evals": []},
    )


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def newest(folder: Path) -> Checkpoint:
    found = Checkpoints(folder).newest()
    assert found is not None
    return found


def test_checkpoints_are_due_by_evaluations_and_by_steps(tmp_path: Path) -> None:
    """Evaluations are before the first step and after every second one."""
    for given_settings, expected in (
        ({"every_evaluations": 3}, [0, 6]),
        ({"every_evaluations": None, "every_steps": 3}, [3, 6]),
        ({"every_evaluations": 2, "every_steps": 3}, [0, 3, 4, 6, 8]),
        ({"every_evaluations": 3, "keep_steps": [5, 6]}, [0, 5, 6]),
    ):
        store = Checkpoints(tmp_path, **given_settings)
        evaluated = {step: None if step % 2 else 1 + step // 2 for step in range(9)}
        assert [step for step, number in evaluated.items() if store.due(step=step, evaluations=number)] == expected


def test_a_setting_that_makes_no_sense_is_refused(tmp_path: Path) -> None:
    for given_settings, message in (
        ({"keep": 0}, "keep is 0"),
        ({"every_evaluations": None}, "one must say when to save"),
        ({"keep_steps": [8, 0]}, r"keep_steps is \[0, 8\]; steps are counted from 1"),
        ({"may_change": ["compute.layout", "learning_rate"]}, "may_change holds learning_rate; .*micro_batch_tokens"),
    ):
        with pytest.raises(CheckpointError, match=message):
            Checkpoints(tmp_path, **given_settings)


@pytest.mark.parametrize("step", [1, 2])
def test_killed_at_any_instant_a_save_leaves_the_old_checkpoint_or_the_new_one_and_no_half_of_any(
    step: int, tmp_path: Path
) -> None:
    """One that replaces another of its step, and one after which another is deleted."""
    found, listed = [], Path.glob

    def killed() -> None:
        raise Killed

    for instant in range(1, 99):
        folder = tmp_path / str(instant)
        Checkpoints(folder).save(checkpoint(1))
        with pytest.MonkeyPatch.context() as patch:
            counted_writes(patch, instant, killed)
            try:
                Checkpoints(folder, keep=1).save(checkpoint(step, value=7.0))
            except Killed:
                pass
            else:
                break
        assert all(len(names(each)) == 3 for each in folder.glob("step-*"))
        for backwards in (False, True):
            # In whatever order the system lists them.
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(Path, "glob", lambda *given, order=backwards: sorted(listed(*given), reverse=order))
                found.append((newest(folder).step, float(newest(folder).tensors["w"][0])))
        for again in (step, 3):
            copied = shutil.copytree(folder, tmp_path / f"{instant} and {again}")
            Checkpoints(copied, keep=1).save(checkpoint(again, value=8.0))
            assert float(newest(copied).tensors["w"][0]) == 8
            assert names(copied) == [f"step-{again:09}"]
    assert sorted(found) == found
    assert set(found) == {(1, 1.0), (step, 7.0)}


def flipped(path: Path, share: float) -> None:
    content = bytearray(path.read_bytes())
    content[int(share * len(content))] ^= 1
    path.write_bytes(content)


def without_tensors(folder: Path) -> None:
    sums = json.loads((folder / "checksums.json").read_text())
    (folder / "checksums.json").write_text(json.dumps({"state.json": sums["state.json"]}))
    (folder / "tensors-00000.safetensors").unlink()


# Of a file of a checkpoint, at a share of its length; ``other`` is a checkpoint of another step.
DAMAGES: dict[str, Callable[[Path, float, Path], object]] = {
    "flipped": lambda path, share, other: flipped(path, share),
    "missing": lambda path, share, other: path.unlink(),
    "cut": lambda path, share, other: path.write_bytes(path.read_bytes()[: int(share * path.stat().st_size)]),
    "swapped": lambda path, share, other: shutil.copy(other / path.name, path),
    "all of another step": lambda path, share, other: shutil.copytree(other, path.parent, dirs_exist_ok=True),
    "another step's tensors beside it": lambda path, share, other: shutil.copy(
        other / "tensors-00000.safetensors", path.with_name(f"tensors-{1 + int(9 * share):05d}.safetensors")
    ),
    "a list without tensors": lambda path, share, other: without_tensors(path.parent),
    "an empty list": lambda path, share, other: (path.parent / "checksums.json").write_text("{}"),
}


@given(
    kind=st.sampled_from(list(DAMAGES)),
    file=st.sampled_from(["tensors-00000.safetensors", "state.json", "checksums.json"]),
    share=st.floats(0, 0.99),
)
@settings(max_examples=40)
def test_whatever_of_a_checkpoint_is_damaged_the_one_before_is_read(kind: str, file: str, share: float) -> None:
    with tempfile.TemporaryDirectory() as place:
        store = Checkpoints(place, keep=3)
        other, before = (store.save(checkpoint(step)) for step in (1, 2))
        # The second time there is another one aside.
        for _ in range(2):
            last = store.save(checkpoint(3))
            DAMAGES[kind](last / file, share, other)
            found = newest(Path(place))
        assert (found.step, found.values, found.tensors["w"].tolist()) == (2, {"version": 2}, [2.0] * 3)
        assert [path.name for path in Path(place).glob("damaged-*")] == [f"damaged-{last.name}"]
        assert before.exists()


SIZES = st.lists(st.integers(0, 3), max_size=2).map(tuple)


@given(
    shapes=st.dictionaries(st.text("ab.", min_size=1, max_size=3), SIZES, min_size=1, max_size=5),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.int64]),
    data=st.data(),
)
@settings(max_examples=20)
def test_a_hash_of_tensors_is_that_of_all_of_their_bytes_and_not_of_their_files(
    shapes: dict[str, tuple[int, ...]], dtype: torch.dtype, data: st.DataObject
) -> None:
    tensors = {name: torch.arange(1, 1 + math.prod(shape)).reshape(shape).to(dtype) for name, shape in shapes.items()}
    expected = tensors_hash(tensors)
    with tempfile.TemporaryDirectory() as place:
        paths, parts = [], data.draw(st.permutations(list(tensors)))
        for number, part in enumerate((parts[::2], parts[1::2])):
            save_file({name: tensors[name] for name in part}, path := Path(place) / f"{number}.safetensors")
            paths.append(path)
        assert tensors_hash(TensorFiles(paths), threads=2) == expected
    name = data.draw(st.sampled_from(list(tensors)))
    others = [{**tensors, name: tensors[name].to(torch.float64)}, {**tensors, "c": tensors[name]}]
    others.append({**tensors, name: tensors[name][None]})
    if tensors[name].numel():
        changed = tensors[name].clone()
        changed.view(-1)[data.draw(st.integers(0, changed.numel() - 1))] += 1
        others.append({**tensors, name: changed})
    assert expected not in map(tensors_hash, others)


def test_a_folder_is_held_by_one_run_at_a_time(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "c"
    with Checkpoints(folder).held():
        with pytest.raises(CheckpointError, match="another run"), Checkpoints(folder).held():
            pass
        with Checkpoints(tmp_path / "b").held():
            pass
        Checkpoints(folder).save(checkpoint(1))
    with Checkpoints(folder).held():
        assert names(folder) == ["step-000000001"]
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="file: cannot hold checkpoints"), Checkpoints(tmp_path / "file").held():
        pass


def test_a_checkpoint_that_does_not_fit_leaves_the_one_before(tmp_path: Path) -> None:
    """The system ends a file at 64 kB here, as a full disk would; a file of its name is left as it is, too."""
    store = Checkpoints(tmp_path)
    (store.save(checkpoint(1)) / ".DS_Store").write_text("no damage")
    large = Checkpoint(step=2, tensors={"w": torch.zeros(100_000)}, values={}, progress={})
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**16, hard))
    try:
        with pytest.raises(CheckpointError, match="step-000000002: "):
            store.save(large)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert newest(tmp_path).step == 1
    assert names(tmp_path) == ["step-000000001"]
    (tmp_path / "step-000000002").write_text("mine")
    with pytest.raises(CheckpointError, match="a file is there"):
        store.save(checkpoint(2))
    assert (tmp_path / "step-000000002").read_text() == "mine"


def test_the_newest_are_kept_and_beside_them_those_of_some_steps_for_good(tmp_path: Path) -> None:
    store = Checkpoints(tmp_path, keep=2, keep_steps={5, 7, 10})
    for step in range(4, 11):
        store.save(checkpoint(step))
    assert names(tmp_path) == [f"step-{step:09}" for step in (5, 7, 8, 9, 10)]
    assert newest(tmp_path).step == 10
    # Killed between the two renames of a replacement, what was there is kept as well, and only while nothing else is.
    (tmp_path / "step-000000005").rename(tmp_path / "step-000000005.before")
    store.save(checkpoint(11))
    assert store.read(5).tensors["w"].tolist() == [5.0] * 3
    store.save(checkpoint(5, value=8.0))
    shutil.copytree(tmp_path / "step-000000007", tmp_path / "step-000000007.before")
    # Killed before the deletion of old ones, there are more than are kept.
    shutil.copytree(tmp_path / "step-000000010", tmp_path / "step-000000006")
    store.prune()
    assert names(tmp_path) == [f"step-{step:09}" for step in (5, 7, 9, 10, 11)]


def test_a_step_without_a_checkpoint_and_a_damaged_one_are_named(tmp_path: Path) -> None:
    """Where all are damaged, the newest is, and stays where it is."""
    with pytest.raises(CheckpointError, match=r"step 3 \(of others: none"):
        Checkpoints(tmp_path / "c").read(3)
    store = Checkpoints(tmp_path)
    for step in (1, 2):
        (store.save(checkpoint(step)) / "tensors-00000.safetensors").write_bytes(b"no")
    with pytest.raises(CheckpointError, match=r"step 3 .*step-000000002"):
        store.read(3)
    with pytest.raises(CheckpointError, match=r"0001: .*tensors-00000"):
        store.read(1)
    with pytest.raises(CheckpointError, match=r"step-000000002.*damaged"):
        store.newest()
    assert names(tmp_path) == ["step-000000001", "step-000000002"]


def test_all_is_flushed_before_the_rename_and_the_name_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    final, done = tmp_path / "thing", list[tuple[str, str]]()
    final.mkdir()
    flush, rename = os.fsync, Path.rename

    def flushed(handle: int) -> None:
        done.append(("flush", os.path.relpath(Path(f"/proc/self/fd/{handle}").readlink(), tmp_path)))
        flush(handle)

    def renamed(self: Path, target: Path) -> Path:
        done.append(("rename", f"{self.name} {target.name}"))
        return rename(self, target)

    monkeypatch.setattr(saving.os, "fsync", flushed)
    monkeypatch.setattr(Path, "rename", renamed)
    with whole_folder(final, what="the thing", error=CheckpointError) as written:
        (written / "inner").mkdir()
        (written / "inner" / "tensors").write_bytes(b"1234")
    monkeypatch.undo()
    aside = ".thing.writing"
    whole = [("flush", f"{aside}{rest}") for rest in ("", "/inner", "/inner/tensors")]
    assert sorted(done[:3]) == whole
    # What is replaced goes only when the name of the new one is safe.
    assert done[3:6] == [("rename", "thing thing.before"), ("rename", f"{aside} thing"), ("flush", ".")]
    assert names(tmp_path) == ["thing"]
    assert (final / "inner" / "tensors").read_bytes() == b"1234"


class OfRanks(dict[str, torch.Tensor]):
    """Tensors that two ranks write, each its rows, when they are let."""

    def __init__(self, step: int) -> None:
        super().__init__(w=torch.arange(5.0) + step, count=torch.tensor(float(step)))
        self.let, self.fault = Event(), ""

    def write(self, folder: Path) -> Callable[[], dict[str, str]]:
        copy = self["w"].clone()

        def written() -> dict[str, str]:
            assert self.let.wait(60)
            first = {"w": copy[:3], "count": self["count"]}
            found = write_tensors(folder, first.items(), begins={"w": 0}, rank=0, ranks=2)
            if self.fault == "missing":
                return found | {"tensors-00001.safetensors": "0"}
            if self.fault:
                raise CheckpointError(self.fault)
            return found | write_tensors(folder, [("w", copy[3:])], begins={"w": 3}, rank=1, ranks=2)

        return written


def of_ranks(step: int) -> Checkpoint:
    return Checkpoint(step=step, tensors=OfRanks(step), values={"version": step})


def test_what_ranks_write_is_there_when_all_parts_are_and_is_put_together_again(tmp_path: Path) -> None:
    store, given = Checkpoints(tmp_path), of_ranks(2)
    store.save(checkpoint(1))
    folder = store.save(given)
    # Still being written: what is learnt meanwhile is not in it.
    assert (newest(tmp_path).step, folder.exists()) == (1, False)
    expected, _ = given.tensors["w"].clone(), given.tensors["w"].zero_()
    given.tensors.let.set()
    store.settle()
    saved = newest(tmp_path)
    assert (saved.step, set(saved.tensors)) == (2, {"w", "count"})
    assert torch.equal(saved.tensors["w"], expected)
    assert saved.tensors["count"] == 2
    assert names(folder) == ["checksums.json", "state.json", "tensors-00000.safetensors", "tensors-00001.safetensors"]
    (folder / "tensors-00001.safetensors").unlink()
    assert newest(tmp_path).step == 1


def test_a_part_that_cannot_be_written_leaves_the_checkpoint_before_and_is_said_by_the_next(tmp_path: Path) -> None:
    store = Checkpoints(tmp_path)
    store.save(checkpoint(1))
    for fault, said in (("missing", "tensors-00001.* is not there"), ("rank 1 of 2 cannot write",) * 2):
        given = of_ranks(2)
        given.tensors.fault = fault
        store.save(given)
        given.tensors.let.set()
        with pytest.raises(CheckpointError, match=said):
            store.save(checkpoint(3))
        assert names(tmp_path) == ["step-000000001"]
    store.save(checkpoint(3))
    assert newest(tmp_path).step == 3


def test_a_run_that_ends_waits_for_what_ranks_write_and_its_own_error_is_the_one_that_is_said(tmp_path: Path) -> None:
    store, given, failing = Checkpoints(tmp_path), of_ranks(2), of_ranks(3)
    with store.held():
        store.save(given)
        Timer(0.2, given.tensors.let.set).start()
    assert newest(tmp_path).step == 2
    failing.tensors.fault = "rank 1 of 2 cannot write"

    def killed() -> None:
        with store.held():
            store.save(failing)
            failing.tensors.let.set()
            raise Killed

    with pytest.raises(Killed):
        killed()
    assert names(tmp_path) == ["step-000000002"]
