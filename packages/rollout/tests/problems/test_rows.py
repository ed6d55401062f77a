"""Chats, answers and files as people have them: each row becomes a problem, is dropped with a reason, or is refused."""

import json
import math
import re
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from isocompute.rollout import RolloutError, load_checked, source_from
from isocompute.rollout.problems.loading import candidates
from isocompute.rollout.problems.rows import MISSING, ROLES, answer_text
from isocompute.rollout.problems.sources import Candidate

pytestmark = pytest.mark.slow("files and datasets")

SHARED_FOLDER = settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
OWN_ROLES = {meaning: [role for role in ROLES if ROLES[role] == meaning] for meaning in ROLES.values()}


def read(folder: Path, rows: list[Any], **other: Any) -> list[Candidate]:
    """What a file with these rows gives."""
    path = folder / "own.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return list(candidates(source_from({"kind": "file", "path": str(path), **other})))


@st.composite
def messages(draw: st.DrawFn, number: int, turn: int) -> tuple[dict[str, Any], str | None]:
    """A message marked by row and turn, and whose it is; None where it is no text of a known role."""
    whose = draw(st.sampled_from(["system", "user", "user", "assistant", "tool"]))
    role: Any = draw(st.sampled_from([*OWN_ROLES[whose], whose.title()]))
    text = f"<{number}.{turn}>{draw(st.text(max_size=5))}"
    part = {"type": "text", "text": text}
    content: Any = draw(st.sampled_from([text, text, [text], [part], [part, "and"]]))
    keys = draw(st.sampled_from([("role", "content"), ("from", "value")]))
    fault = draw(st.sampled_from([""] * 12 + ["null", "role", "image", "keys", "tools", "empty", "type"]))
    if fault == "null":
        content = None
    elif fault == "empty":
        content = draw(st.sampled_from(["", " \n", []]))
    elif fault == "role":
        role = draw(st.sampled_from(["narrator", None, 7, ["user"]]))
    elif fault == "image":
        content = [{"type": "image_url", "image_url": {"url": "data:"}}, part]
    elif fault == "type":
        content = draw(st.sampled_from([7, {"text": text}, [7], [[text]], [{"type": "text", "text": None}]]))
    message = {keys[0]: role, keys[1]: content}
    if fault == "keys":
        message = {f"my {key}": held for key, held in message.items()}
    elif fault == "tools":
        message["tool_calls"] = [{"name": "f"}]
    message |= draw(st.sampled_from([{}, {"name": None}, {"weight": 1.0, "id": "x"}]))
    return message, None if fault else whose


@st.composite
def chats(draw: st.DrawFn, number: int) -> tuple[list[Any], bool]:
    """A prompt as a chat, and whether a problem can have it."""
    turns = [draw(messages(number, turn)) for turn in range(draw(st.integers(0, 3)))]
    return [message for message, _ in turns], [whose for _, whose in turns] in (["user"], ["system", "user"])


@given(data=st.data(), count=st.integers(1, 3))
@SHARED_FOLDER
def test_a_chat_gives_every_turn_once_and_in_order_or_is_refused_by_its_row(
    data: st.DataObject, count: int, tmp_path: Path
) -> None:
    drawn = [data.draw(chats(number)) for number in range(1, count + 1)]
    rows = [{"prompt": chat, "answer": "1"} for chat, _ in drawn]
    if all(right for _, right in drawn):
        prompts = sorted((each.prompt for each in read(tmp_path, rows)), key=lambda text: text[1])
        for number, (prompt, (chat, _)) in enumerate(zip(prompts, drawn, strict=True), 1):
            assert re.findall(r"<(\d+\.\d+)>", prompt) == [f"{number}.{turn}" for turn in range(len(chat))]
            assert not re.search(r"'(role|from|type|text)'", prompt)
        return
    with pytest.raises(RolloutError, match=r"row \d") as refused:
        read(tmp_path, rows)
    row = int(re.findall(r"row (\d+)", str(refused.value))[0])
    assert not drawn[row - 1][1]
    assert len(str(refused.value)) < 600


PLAIN = st.none() | st.booleans() | st.integers() | st.floats() | st.text()
VALUES = st.recursive(PLAIN, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3))


@given(VALUES)
def test_an_answer_is_a_text_or_json_or_a_fault(value: Any) -> None:
    for verifier, reads_json in (("exact", False), ("runs", True), ("python:json:loads|partial", True)):
        text, fault = answer_text(value, verifier)
        if value is None or (isinstance(value, float) and math.isnan(value)):
            assert (text, fault) == ("", MISSING)
        elif isinstance(value, str):
            assert (text, fault) == (value, "")
        elif isinstance(value, bool | int | float):
            assert fault == ""
            assert float(json.loads(text.replace("inf", "Infinity"))) == float(value)
        elif reads_json:
            assert fault == ""
            assert json.dumps(json.loads(text), sort_keys=True) == json.dumps(value, sort_keys=True)
        elif isinstance(value, list) and len(value) == 1:
            assert not fault or not isinstance(value[0], str | int)
            assert fault or (text, fault) == answer_text(value[0], verifier)
        else:
            assert fault


def test_a_problem_that_nobody_answered_is_dropped_and_counted(tmp_path: Path) -> None:
    held = [{"gold": str(i)} if i % 4 else [None, {"gold": None}][i // 4 % 2] for i in range(40)]
    rows = [{"prompt": f"q{i}", "answer": each} for i, each in enumerate(held)]
    pl.DataFrame(rows, strict=False).write_parquet(tmp_path / "own.parquet")
    own = {"kind": "file", "path": str(tmp_path / "own.parquet"), "answer": "answer.gold", "validation": 5}
    loaded = load_checked(source_from({**own, "train": 25}))
    assert set(loaded.dropped["reason"]) == {MISSING}
    assert not loaded.problems["answer"].is_in(["None", "nan", ""]).any()
    with pytest.raises(RolloutError, match=r"has 30 distinct problems .10 more were dropped, the last since it has no"):
        load_checked(source_from({**own, "train": 26}))


def test_a_struct_is_no_answer_of_a_text_and_a_list_of_one_is_its_value(tmp_path: Path) -> None:
    frame = pl.DataFrame({"prompt": [f"q{i}" for i in range(9)], "answer": [[str(i)] for i in range(9)]})
    own = {"kind": "file", "path": str(tmp_path / "own.parquet"), "train": 5, "validation": 4}
    frame.write_parquet(own["path"])
    assert sorted(load_checked(source_from(own)).problems["answer"]) == [str(i) for i in range(9)]
    frame.with_columns(answer=pl.struct(value="answer")).write_parquet(own["path"])
    with pytest.raises(RolloutError, match="since its answer is no text, but a struct"):
        load_checked(source_from(own))
    tests = [{"input": "", "output": "1"}]
    frame.with_columns(answer=pl.Series([tests] * 9)).write_parquet(own["path"])
    assert json.loads(load_checked(source_from({**own, "verifier": "runs"})).problems["answer"][0]) == tests


def test_a_damaged_file_is_refused_in_a_sentence_that_names_the_line(tmp_path: Path) -> None:
    path = tmp_path / "own.jsonl"
    own = source_from({"kind": "file", "path": str(path)})
    right = b'{"prompt": "q", "answer": "1"}\n'
    for written, message in (
        (right + b"[" * 100_000, "line 2: is nested more than 100 deep"),
        (right + b"\n{", "line 3: not JSON"),
        (right + b'{"prompt": "q", "answer": ' + b"9" * 5000 + b"}", "line 2: not JSON"),
        (right + b"[]", "line 2: no JSON object"),
        (b"\xff\xfe", "not readable as jsonl"),
        (b'{"question": "q"}', "there is no column prompt .it has question"),
        (b'{"prompt": "\\ud800", "answer": "1"}', "row 1 holds .*half of a character"),
        (b'{"prompt": null, "answer": "1"}', "row 1 has no prompt"),
        (b'{"prompt": " ", "answer": "1"}', "row 1 has no prompt"),
        (b"\n", "there is no column prompt .it has no row, such as {"),
    ):
        path.write_bytes(written)
        with pytest.raises(RolloutError, match=message):
            list(candidates(own))
    path.write_bytes(b"\xef\xbb\xbf" + right)
    assert [each.prompt for each in candidates(own)] == ["q"]


def test_the_order_of_rows_is_that_of_the_libraries(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    frame = pl.DataFrame({"prompt": [f"q{i}" for i in range(50)], "answer": "1", "picture": b"no picture"})
    (tmp_path / "hub").mkdir()
    for name in ("own.parquet", "hub/rows.parquet"):
        frame.write_parquet(tmp_path / name)
    frame.drop("picture").write_ndjson(tmp_path / "own.jsonl")
    shuffled = frame.sample(fraction=1.0, shuffle=True, seed=3)["prompt"].to_list()
    for name in ("own.parquet", "own.jsonl"):
        source = source_from({"kind": "file", "path": str(tmp_path / name), "seed": 3})
        assert [each.prompt for each in candidates(source)] == shuffled
    rows = datasets.Dataset.from_list(frame.to_dicts()).shuffle(seed=3)
    source = source_from({"kind": "hub", "dataset": str(tmp_path / "hub"), "answer": "answer", "seed": 3})
    assert [each.prompt for each in candidates(source)] == list(rows["prompt"])
