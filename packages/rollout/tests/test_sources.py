from pathlib import Path

import polars as pl
import pytest
from isocompute.rollout import RolloutError, load_problems, source_from, verifier


@pytest.fixture
def jsonl(tmp_path: Path) -> Path:
    path = tmp_path / "own.jsonl"
    frame = pl.DataFrame({"prompt": [f"q{i}" for i in range(9)] + ["Q0 "], "answer": [str(i) for i in range(10)]})
    frame.write_ndjson(path)
    return path


def test_the_users_own_file_gives_disjoint_sides(jsonl: Path) -> None:
    table = load_problems(source_from({"kind": "file", "path": str(jsonl), "train": 6, "validation": 3}))
    sides = {s: {p.strip().lower() for p in g["prompt"]} for (s,), g in table.group_by("split")}
    assert len(sides["train"]) == 6
    assert len(sides["validation"]) == 3
    assert not sides["train"] & sides["validation"]
    assert set(table["source"]) == {"file:own.jsonl"}


def test_too_few_distinct_problems_are_said(jsonl: Path) -> None:
    with pytest.raises(RolloutError, match="has 9 distinct problems"):
        load_problems(source_from({"kind": "file", "path": str(jsonl), "train": 8, "validation": 2}))


def test_a_missing_file_and_an_unknown_setting_are_named(tmp_path: Path) -> None:
    with pytest.raises(RolloutError, match="no such file"):
        load_problems(source_from({"kind": "file", "path": str(tmp_path / "nope.jsonl")}))
    with pytest.raises(RolloutError, match="no setting paht"):
        source_from({"kind": "file", "paht": "x"})


def test_chain_sum_asks_with_its_bare_expression() -> None:
    pytest.importorskip("reasoning_gym")
    settings = {"min_terms": 3, "max_terms": 3, "min_digits": 1, "max_digits": 1}
    source = source_from(
        {"kind": "reasoning_gym", "task": "chain_sum", "digits": "12345", "train": 20, "validation": 10,
         "settings": settings}
    )  # fmt: skip
    table = load_problems(source)
    assert table["prompt"].str.contains(r"^[1-5][+-][1-5][+-][1-5]=$").all()
    assert all(eval(p[:-1]) == int(a) for p, a in table.select("prompt", "answer").iter_rows())
    assert load_problems(source).equals(table)


@pytest.mark.parametrize("task", ["gcd", "basic_arithmetic"])
def test_other_tasks_ask_with_their_question_and_accept_their_answer(task: str) -> None:
    pytest.importorskip("reasoning_gym")
    table = load_problems(source_from({"kind": "reasoning_gym", "task": task, "train": 5, "validation": 3}))
    right = verifier(f"reasoning_gym:{task}")
    assert all(right(answer, answer) for answer in table["answer"])


def test_only_a_full_score_is_a_success() -> None:
    pytest.importorskip("reasoning_gym")
    right = verifier("reasoning_gym:chain_sum")
    assert right("5=10", "10")
    assert not right("5=100", "10")
    assert not right("", "10")
    assert not right("==", "10")


def test_a_hugging_face_dataset_in_guru_maths_layout(tmp_path: Path) -> None:
    pytest.importorskip("datasets")
    pytest.importorskip("math_verify")
    rows = [
        {"prompt": [{"role": "system", "content": "s"}, {"role": "user", "content": f"What is {i} / 2?"}],
         "reward_model": {"ground_truth": str(i / 2)}}
        for i in range(8)
    ]  # fmt: skip
    pl.DataFrame(rows).write_parquet(tmp_path / "train.parquet")
    table = load_problems(source_from({"kind": "hub", "dataset": str(tmp_path), "train": 5, "validation": 3}))
    assert table["prompt"].str.starts_with("What is").all()
    assert verifier("math")("so \\boxed{1/2}", "0.5")
    assert not verifier("math")("so \\boxed{2}", "0.5")


def test_a_hub_dataset_needs_a_pinned_revision() -> None:
    pytest.importorskip("datasets")
    with pytest.raises(RolloutError, match="no revision"):
        load_problems(source_from({"kind": "hub", "dataset": "somebody/something"}))
