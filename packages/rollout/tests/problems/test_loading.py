import json
import re
from pathlib import Path

import polars as pl
import pytest
from isocompute.rollout import RolloutError, load_checked, load_problems, source_from, verifier
from isocompute.rollout.scoring.rules import EXECUTING, REFUSED
from isocompute.rollout.scoring.sandbox.process import ScoringConfig
from isocompute.rollout.scoring.scorer import Scorer

pytestmark = pytest.mark.slow("every task of reasoning-gym")


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


def test_what_a_source_lacks_is_named(jsonl: Path) -> None:
    pytest.importorskip("datasets")
    for message, settings in (
        ("has 9 distinct problems", {"kind": "file", "path": str(jsonl), "train": 8, "validation": 2}),
        ("no such file", {"kind": "file", "path": str(jsonl.with_name("nope.jsonl"))}),
        ("no setting 'paht'", {"kind": "file", "paht": "x"}),
        ("no revision", {"kind": "hub", "dataset": "somebody/something"}),
    ):
        with pytest.raises(RolloutError, match=message):
            load_problems(source_from(settings))


def test_chain_sum_asks_with_its_bare_expression() -> None:
    pytest.importorskip("reasoning_gym")
    settings = {"min_terms": 3, "max_terms": 3, "min_digits": 1, "max_digits": 1}
    sizes = {"train": 20, "validation": 10, "settings": settings}
    source = source_from({"kind": "reasoning_gym", "task": "chain_sum", "digits": "12345", **sizes})
    table = load_problems(source)
    assert table["prompt"].str.contains(r"^[1-5][+-][1-5][+-][1-5]=$").all()
    assert all(eval(p[:-1]) == int(a) for p, a in table.select("prompt", "answer").iter_rows())
    assert load_problems(source).equals(table)


def test_every_task_is_refused_or_its_problems_score_their_own_answers() -> None:
    reasoning_gym = pytest.importorskip("reasoning_gym")
    for task in sorted(set(reasoning_gym.factory.DATASETS) - set(REFUSED)):
        source = source_from({"kind": "reasoning_gym", "task": task, "train": 1, "validation": 1})
        loaded = load_checked(source)
        assert len(loaded.problems) == 2, task
        assert loaded.dropped.is_empty(), task
        assert loaded.dropped.columns == ["problem_id", "prompt", "answer", "verifier", "reason"]


def test_a_source_above_one_percent_of_wrong_answers_is_refused_and_one_below_is_filled_up(tmp_path: Path) -> None:
    pytest.importorskip("reasoning_gym")
    path = tmp_path / "own.jsonl"
    # gcd's scorer is that of a text: an answer with white space round it is not the text that is left of it.
    answers = [str(i) for i in range(400)]
    answers[7], answers[11] = " 7", "  "
    notes = ['{"settings": {"nonsense": 1}}' if i == 13 else "" for i in range(400)]
    frame = pl.DataFrame({"prompt": [f"q{i}" for i in range(400)], "answer": answers, "note": notes})
    frame.write_ndjson(path)
    own = {"kind": "file", "path": str(path), "verifier": "reasoning_gym:gcd", "metadata": "note"}
    loaded = load_checked(source_from({**own, "train": 297, "validation": 100}))
    assert len(loaded.problems) == 397
    assert loaded.problems.filter(pl.col("answer").is_in([" 7", "  ", "13"])).is_empty()
    reasons = {row["answer"]: row["reason"] for row in loaded.dropped.iter_rows(named=True)}
    assert reasons.pop("13").startswith("reasoning-gym refuses the task 'gcd'")
    assert reasons == {" 7": "its own answer does not score 1", "  ": "it has no reference answer"}
    assert loaded.dropped["problem_id"].is_in(loaded.problems["problem_id"].to_list()).sum() == 0
    frame.with_columns(answer=" " + pl.col("answer")).write_ndjson(path)
    with pytest.raises(RolloutError, match="refused: 1 of the first 1"):
        load_checked(source_from({**own, "train": 20, "validation": 20}))


@pytest.mark.parametrize("table", ["refused", "executing"])
def test_the_list_of_tasks_in_the_docs_is_that_of_the_code(table: str) -> None:
    root = next((folder for folder in Path(__file__).parents if (folder / "mkdocs.yml").is_file()), None)
    if root is None:
        pytest.skip("the page is in the repository, and these tests run beside a wheel")
    text = (root / "docs" / "reasoning-gym.md").read_text()
    refused, _, executing = text.partition("## Tasks that need an isolated sandbox")
    rows = re.findall(r"^\| `(\w+)` \| (.+) \|$", refused if table == "refused" else executing, re.MULTILINE)
    assert dict(rows) == dict(REFUSED if table == "refused" else EXECUTING)


def test_programs_of_a_data_file_are_executed_in_the_sandbox_only(monkeypatch: pytest.MonkeyPatch) -> None:
    codeio = pytest.importorskip("reasoning_gym.code.codeio")
    monkeypatch.setattr(codeio.CodeIODataset, "__getitem__", None)
    source = source_from({"kind": "reasoning_gym", "task": "codeio", "train": 2, "validation": 1})
    table = load_problems(source)
    assert table["prompt"].str.contains("reference code snippet").all()
    assert not table["answer"].is_in(["{}", "null"]).any()


def test_an_integral_left_as_it_is_is_no_answer() -> None:
    pytest.importorskip("reasoning_gym")
    source = source_from({"kind": "reasoning_gym", "task": "intermediate_integration", "train": 6, "validation": 2})
    table = load_problems(source)
    assert not table["answer"].str.contains("Integral").any()
    problem = table.row(0, named=True)
    integrand = json.loads(problem["metadata"])["metadata"]["integrand"]
    right = verifier("reasoning_gym:intermediate_integration")
    assert not right(f"Integral({integrand}, x)", problem["answer"], problem["metadata"])


def test_code_verifiers_and_patterns_are_not_asked_to_score_a_bare_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "code_rules.py").write_text("def has_def(response, answer, metadata):\n    return 'def' in response\n")
    monkeypatch.chdir(tmp_path)
    pl.DataFrame({"prompt": ["a", "b"], "answer": ["1", "2"]}).write_ndjson(tmp_path / "own.jsonl")
    own = {"kind": "file", "path": "own.jsonl", "train": 1, "validation": 1}
    for name in ("python:code_rules:has_def", r"exact|regex:#### (\d+)"):
        assert load_problems(source_from({**own, "verifier": name}))["verifier"].to_list() == [name] * 2
    pl.DataFrame({"prompt": ["a", "b"], "answer": ["1", " "]}).write_ndjson(tmp_path / "own.jsonl")
    for name in ("python:code_rules:has_def", r"exact|regex:#### (\d+)"):
        with pytest.raises(RolloutError, match="since it has no reference"):
            load_problems(source_from({**own, "verifier": name}))
    with pytest.raises(RolloutError, match="python:code_rules:nothing"):
        load_problems(source_from({**own, "verifier": "python:code_rules:nothing"}))


def test_metadata_for_a_rule_of_ones_own_come_from_a_column(tmp_path: Path) -> None:
    path = tmp_path / "own.parquet"
    columns = {"tests": [{"n": 1}, {"n": 2}], "text": ['{"n": 1}', '{"n": 2}'], "wrong": ["[1]", "x"]}
    frame = pl.DataFrame({"prompt": ["a", "b"], "answer": ["1", "2"], **columns})
    frame.write_parquet(path)
    own = {"kind": "file", "path": str(path), "train": 1, "validation": 1}
    for column in ("tests", "text"):
        table = load_problems(source_from({**own, "metadata": column}))
        assert dict(table.select("prompt", "metadata").iter_rows()) == {"a": '{"n":1}', "b": '{"n":2}'}
        pytest.importorskip("datasets")
        (tmp_path / "hub").mkdir(exist_ok=True)
        frame.write_parquet(tmp_path / "hub" / "rows.parquet")
        hub = {"kind": "hub", "dataset": str(tmp_path / "hub"), "answer": "answer", "verifier": "exact"}
        again = load_problems(source_from({**hub, "metadata": column, "train": 1, "validation": 1}))
        assert sorted(again["metadata"]) == ['{"n":1}', '{"n":2}']
    with pytest.raises(RolloutError, match=r"file:own.parquet are not"):
        load_problems(source_from({**own, "metadata": "wrong"}))
    with pytest.raises(RolloutError, match="there is no column nothing"):
        load_problems(source_from({**own, "metadata": "nothing"}))


def test_problems_are_checked_by_the_scorer_that_is_given(jsonl: Path) -> None:
    bare = Scorer(ScoringConfig(without=("network", "files", "seccomp")))
    own = {"kind": "file", "path": str(jsonl), "train": 1, "validation": 1, "verifier": "python:os:getcwd"}
    with pytest.raises(RolloutError, match="execute what a response"):
        load_checked(source_from(own), scorer=bare)
    bare.close()
