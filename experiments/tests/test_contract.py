"""The folder that every package links to: tables, files, and errors of Ray that are infrastructure."""

import inspect
import json
import os
import pickle
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Literal

import polars as pl
import pytest
import ray.exceptions
import yaml
from hypothesis import given
from hypothesis import strategies as st
from isocompute.budget.contract import files, tables, tracking
from isocompute.budget.contract.documents import DEEPEST, DocumentError, EndlessError, parsed
from isocompute.budget.contract.errors import FileError, IsoComputeError, TableError, TrackingError
from isocompute.learner.errors import LearnerError, RankError
from isocompute.rollout.commands import settings as flags
from isocompute.rollout.contract.deaths import death
from isocompute.rollout.errors import EngineError, RolloutError

from experiments.errors import ExperimentError
from experiments.settings import reading

from .made import PACKAGES

TIMINGS = pl.DataFrame({"run_id": ["r"], "step": [1], "phase": ["sample"], "seconds": [2.0], "device_seconds": [2.0]})


def written_with(path: Path, version: str | None, **columns: object) -> Path:
    """A timings table whose file states some version, or none."""
    stated = {} if version is None else {"isocompute.table": "timings", "isocompute.schema_version": version}
    TIMINGS.with_columns(**columns).write_parquet(path, metadata=stated)
    return path


def test_files_of_this_major_version_or_of_none_are_read_and_extra_columns_ignored(tmp_path: Path) -> None:
    for version in (None, "", "1.0", "1.7", "0.9", "unknown"):
        path = written_with(tmp_path / "timings.parquet", version, added_later=pl.lit(3))
        assert tables.read(path, "timings").drop("added_later").equals(tables.check(TIMINGS, "timings", where="memory"))


def test_what_only_newer_releases_know_is_refused_in_one_sentence(tmp_path: Path) -> None:
    path = written_with(tmp_path / "timings.parquet", "2.1")
    for source in (path, tmp_path):
        with pytest.raises(TableError, match=f"{path}: .* version 2.1, and this isocompute-budget reads 1.x"):
            tables.read(source, "timings")
    TIMINGS.write_parquet(path, metadata={"isocompute.table": "episodes", "isocompute.schema_version": "1.0"})
    with pytest.raises(TableError, match="isocompute-budget has no table named episodes: pip install --upgrade"):
        tables.read(path, "timings")


def test_the_errors_of_all_packages_are_caught_by_one_base_also_from_another_process() -> None:
    for package in PACKAGES:
        contract = import_module(f"isocompute.{package}.contract.errors")
        own = getattr(import_module(f"isocompute.{package}.errors"), f"{package.capitalize()}Error")
        for kind in (own, contract.TableError, contract.TrackingError, contract.FileError, ExperimentError):
            with pytest.raises(IsoComputeError, match="no"):
                raise pickle.loads(pickle.dumps(kind("no")))


def test_what_is_missing_for_mlflow_is_named_after_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mlflow", None)
    for package in PACKAGES:
        tracking = import_module(f"isocompute.{package}.contract.tracking")
        with pytest.raises(ValueError, match=rf'pip install "isocompute-{package}\[mlflow\]"'):
            tracking.connect("sqlite:///nowhere.db")


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


def test_a_file_follows_the_umask(tmp_path: Path) -> None:
    for mask in (0o022, 0o002, 0o077, 0o027):
        before = os.umask(mask)
        try:
            files.write_text(tmp_path / "new", "text")
        finally:
            os.umask(before)
        assert (tmp_path / "new").stat().st_mode & 0o777 == 0o666 & ~mask


def test_a_file_that_cannot_be_written_is_the_error_asked_for_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = files.write_text(tmp_path / "file", "old")
    for place, why in ((path / "below", "Not a directory|File exists"), (tmp_path, "it is a folder")):
        for kind in (FileError, TableError, TrackingError):
            with pytest.raises(kind, match=rf"cannot be written \(({why})\)"):
                files.write_text(place, "text", error=kind)
    with (
        pytest.raises(FileError, match="file: is there already"),
        files.atomic_write(path, replace=False) as stream,
    ):
        stream.write(b"second")

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files.os, "fsync", full)
    with pytest.raises(IsoComputeError, match=r"file: cannot be written \(No space left on device\)"):
        files.write_text(path, "new")
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


EVERY = [
    kind
    for kind in vars(ray.exceptions).values()
    if isinstance(kind, type) and issubclass(kind, ray.exceptions.RayError)
]
"""``RayTaskError`` among them."""
OF_CODE = {"RayTaskError", "CrossLanguageError", "UserCodeException"}
OUT_OF_MEMORY = """1 worker(s) were killed due to the node running low on memory. Memory on the node (IP: 192.0.2.2, \
ID: 73cc38cf) was 14.11GB used / 23.54GB limit (0.599512)
OOM kill reason: Memory usage 15112216576B exceeded threshold of 252765008B (1.0% of 25276502016B limit)
Selected to kill: (Actor(7e70): task name=A.__init__, pid=10380, actual memory used=0.04GB, worker ID=109c)
Top 10 memory users: PID	MEM(GB)	COMMAND
9150	12.86	python /another/program.py
9870	0.14	python -m pytest
Refer to the documentation on how to address the out of memory issue.
"""


def made(kind: type) -> Exception:
    """An error of a class, each argument that it cannot do without a text."""
    needed = [
        p
        for p in inspect.signature(kind.__init__).parameters.values()
        if p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) and p.name != "self"
    ]
    if kind.__name__ == "RayTaskError":
        return kind("train", "Traceback: it broke", ValueError("it broke"))
    if kind.__name__ == "CrossLanguageError":
        return kind.__new__(kind, "it broke")
    return kind(*[None if p.name == "actor_id" else "00" for p in needed])


def failed(cause: Exception) -> Exception:
    """What ``ray.get`` raises for a task that ended with an error."""
    error = ray.exceptions.RayTaskError("train", "Traceback: it ended", cause)
    return error.as_instanceof_cause()


def test_every_error_of_ray_but_that_of_a_task_is_infrastructure_at_any_depth() -> None:
    for kind in EVERY:
        error = made(kind)
        why = death(error)
        assert (why is None) == (kind.__name__ in OF_CODE), kind
        assert why is None or (why and "\n" not in why and len(why) < 500)
        # Of the base of them all Ray makes what an error is that cannot be pickled.
        for _ in range(0 if kind is ray.exceptions.RayError else 3):
            error = failed(error)
            assert (death(error) is None) == (kind.__name__ in OF_CODE), kind


class UnpicklableError(Exception):
    """Ray puts its own error in the place of such a one."""

    def __reduce__(self) -> str:
        raise TypeError("not this one")


def test_an_error_of_the_code_that_was_called_is_none() -> None:
    code = (ValueError("no"), MemoryError(), OSError(28, "No space left"), KeyError("x"), TimeoutError())
    for cause in (*code, RolloutError("no"), LearnerError("no")):
        assert death(cause) is death(failed(cause)) is death(failed(failed(cause))) is None
    replaced = ray.exceptions.RayTaskError("train", "Traceback: it broke", UnpicklableError())
    assert type(replaced.cause) is ray.exceptions.RayError
    # An actor whose constructor raised did not die.
    broken = ray.exceptions.RayTaskError("A.__init__", "Traceback: it broke", ValueError("it broke"))
    assert death(replaced) is death(ray.exceptions.ActorDiedError.from_task_error(broken)) is None


def test_engines_and_ranks_that_died_are_infrastructure_for_whoever_called_their_worker() -> None:
    for kind in (EngineError, RankError):
        assert death(kind("no")) == death(failed(failed(kind("no")))) == "no"


def test_lack_of_memory_names_node_memory_and_the_settings_that_help() -> None:
    said = death(failed(ray.exceptions.OutOfMemoryError(OUT_OF_MEMORY))) or ""
    parts = ("node 192.0.2.2", "14.11GB used / 23.54GB limit", "this worker used 0.04GB", "process 9150 used 12.86GB")
    assert [part for part in (*parts, "fewer workers", "RAY_memory_usage_threshold") if part not in said] == []


def test_a_process_that_was_killed_names_its_node() -> None:
    text = (
        "The actor died unexpectedly before finishing this task.\n\tclass_name: A\n\tpid: 10332\n\tip: 192.0.2.2\n"
        "The actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR Worker exit detail: "
        "Worker unexpectedly exits with a connection error code 2. End of file. Some common causes include: (1) …"
    )
    said = death(ray.exceptions.RayActorError("00", text)) or ""
    assert said.startswith("RayActorError on node 192.0.2.2: The actor is dead because its worker process has died. ")
    assert "End of file" not in said


PLAIN = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
DOCUMENTS = st.recursive(PLAIN, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner))


@given(DOCUMENTS)
def test_documents_within_the_bounds_are_read_as_they_are(document: object) -> None:
    assert parsed(json.dumps(document), "json") == document
    assert parsed(yaml.safe_dump(document), "yaml") == document
    shared = [document, {"again": document}]
    assert parsed(yaml.safe_dump(shared)) == shared


HOSTILE = {
    "laughs": "l0: &l0 [x]\n" + "\n".join(f"l{i + 1}: &l{i + 1} [{', '.join([f'*l{i}'] * 9)}]" for i in range(7)),
    "circle": "a: &a [*a]",
    "circle in a merge": "a: &a {b: [{<<: *a}]}",
    "circle in a key": "a: &a [{? *a : 1}]",
    "deep": "a: " + "[" * DEEPEST + "]" * DEEPEST,
    "deep in an alias": "a: &a " + "[" * 60 + "]" * 60 + "\nb: " + "[" * 60 + "*a" + "]" * 60,
    "deep in blocks": "\n".join(f"{' ' * k}a:" for k in range(5_000)),
    "deeper": '{"a": ' + "[" * 100_000,
    "long": "a: &a " + "x" * 10**5 + "\nb: [" + "*a, " * 1000 + "]",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_what_has_no_end_is_refused_at_once(name: str) -> None:
    with pytest.raises(EndlessError, match=r"deep|aliases|contains itself"):
        parsed(HOSTILE[name], "json" if name == "deeper" else "yaml")
    # As deep as may be, and deeper in JSON.
    parsed("[" * DEEPEST + "]" * DEEPEST)
    with pytest.raises(EndlessError, match="deep"):
        parsed(f"[{'[' * DEEPEST}{']' * DEEPEST}]", "json")


@pytest.mark.parametrize(
    ("file", "kind", "read"),
    [
        ("q.yaml", RolloutError, flags.yaml_mappings),
        ("params.yaml", ExperimentError, reading.load),
        ("--engine key", RolloutError, lambda path: flags.pairs([f"key={path.read_text()}"], flag="--engine")),
    ],
)
def test_every_reader_of_yaml_and_json_says_so_in_a_sentence(
    file: str, kind: type[Exception], read: Callable[[Path], object], tmp_path: Path
) -> None:
    path = tmp_path / file
    path.write_text(HOSTILE["laughs"])
    with pytest.raises(kind, match=rf"{file}:? .*aliases") as refused:
        read(path)
    assert len(str(refused.value).splitlines()) == 1
    assert len(str(refused.value)) < 300 + len(str(tmp_path))


@given(st.text(), st.sampled_from(["yaml", "json", "toml"]))
def test_any_text_is_a_document_or_refused(text: str, kind: Literal["yaml", "json", "toml"]) -> None:
    with suppress(DocumentError):
        parsed(text, kind)


def test_a_key_that_is_there_twice_is_refused_with_its_lines() -> None:
    with pytest.raises(DocumentError, match=r"'b' twice .* line 2 and in line 4"):
        parsed("a:\n  b: 1\n  c: {b: 2}\n  b: 3\n")
    with pytest.raises(DocumentError, match="'x' twice"):
        parsed("[{x: 1, x: 1}]")
    assert parsed("a: &a {b: 1}\nc: &c {d: 2}\ne: {<<: *a, <<: *c, b: 3}\nf: *a")["e"] == {"b": 3, "d": 2}


def test_tags_and_values_that_are_none_are_refused() -> None:
    for value in ("!!bool x", "!!timestamp x", "2024-99-99", "9" * 5_000, "!!python/name:os.system", "{[1]: 2}"):
        with pytest.raises(DocumentError, match="not YAML"):
            parsed(value)


@given(st.text(alphabet="a1_-./\\\n ", min_size=1, max_size=12))
def test_an_artifact_is_fetched_into_a_folder_of_its_own_whatever_a_server_calls_the_run(run_id: str) -> None:
    class Client:
        def list_artifacts(self, run_id: str) -> list[SimpleNamespace]:
            return [SimpleNamespace(path="evals.parquet")]

        def download_artifacts(self, run_id: str, path: str, target: str) -> str:
            (Path(target) / path).write_text("")
            return str(Path(target) / path)

    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "a"
        folder.mkdir()
        with suppress(TrackingError):
            found = tracking._download(Client(), run_id, "evals", folder)
            assert found.parent.parent == folder
        written = [path for path in Path(place).rglob("*") if path.is_file()]
        assert all(path.parent.parent == folder for path in written)
        assert bool(written) == all(letter in "a1_-" for letter in run_id)
