"""Settings that are given: for all runs, for one, in a table, or beside a log."""

import csv
import json

import pytest
from isocompute.budget import BudgetError
from isocompute.budget.trainers.doctor import Given, examine, read_table, to_be_filled_in
from reading_logs import DOCS
from test_search import GIVEN, said, sets, write

N, BATCH = "actor_rollout_ref.rollout.n", "data.train_batch_size"


def test_two_n_are_told_by_filling_in_the_table_that_is_written(tmp_path):
    paths = [write(tmp_path, f"{k}/run.jsonl", k) for k in (1, 2)]
    known = {key: value for key, value in GIVEN.items() if key != N}
    status, out = said(tmp_path, *sets(known), "--out", tmp_path / "out")
    assert status == 1
    assert "runs.csv" in out
    table = tmp_path / "out" / "runs.csv"
    assert table.read_text() == f"run,{N}\n{paths[0]},\n{paths[1]},\n"
    # One of them, then both: what was filled in stays.
    table.write_text(f"run,{N}\n{paths[0]},4\n{paths[1]},\n")
    status, out = said(tmp_path, *sets(known), "--out", tmp_path / "out")
    assert table.read_text().count("4") == 1 + str(paths).count("4")
    again = (tmp_path, *sets(known), "--runs", table, "--out", tmp_path / "out")
    status, out = said(*again)
    assert status == 3
    assert "1 of 2 runs" in out.splitlines()[-1]
    assert f"{paths[0]},4\n{paths[1]},\n" in table.read_text()
    table.write_text(table.read_text()[:-1] + "8\n")
    status, out = said(*again)
    assert status == 0
    assert "n = 4, B_p = 8" in out
    assert "n = 8, B_p = 8" in out


def test_what_is_known_of_a_run_is_filled_in(tmp_path):
    lost = write(tmp_path, "1/run.jsonl", 1)
    known = write(tmp_path, "2/run.jsonl", 2)
    (known.parent / "config.json").write_text(json.dumps({N: 8, "data": {"train_batch_size": 16}, "x": [1]}))
    text = to_be_filled_in(examine([str(tmp_path)], Given()).patients)
    rows = {row["run"]: row for row in csv.DictReader(text.splitlines())}
    assert rows[str(known)][N] == "8"
    assert rows[str(known)][BATCH] == "16"
    assert set(rows[str(lost)].values()) == {"", str(lost)}
    assert set(GIVEN) - {"data.gen_batch_size"} <= set(rows[str(lost)])


def test_the_nearest_configuration_of_the_trainer_counts_after_the_log_and_before_what_is_given(tmp_path):
    path = write(tmp_path, "sweep/run/log.csv")
    folder = path.parent
    (folder.parent / "config.yaml").write_text(f"{N}: 2\n{BATCH}: 8\n")
    # The configuration of a model is none of a run.
    (folder / "config.json").write_text(json.dumps({"model_type": "qwen2", "hidden_size": 8, "max_steps": 9}))
    rest = {key: value for key, value in GIVEN.items() if key not in (N, BATCH)}
    n_of = lambda *more: said(tmp_path, *sets(rest), *more)[1].split("n = ")[1].split(",")[0]  # noqa: E731
    assert n_of() == "2"
    (folder / ".hydra").mkdir()
    (folder / ".hydra" / "config.yaml").write_text(f"{N}: 4\n{BATCH}: 8\n")
    assert n_of() == "4"
    assert ".hydra/config.yaml" in said(tmp_path, *sets(rest))[1]
    (tmp_path / "all.json").write_text(json.dumps({N: 8}))
    assert n_of("--config", tmp_path / "all.json") == "8"
    table = tmp_path / "table"
    table.write_text(f"run,{N}\nlog.csv,16\n")
    assert n_of("--config", tmp_path / "all.json", "--runs", table) == "16"
    assert n_of("--runs", table, "--set", f"{N}=32") == "32"
    assert n_of("--runs", table, "--set", f"{N}=32", "--set", f"run/log.csv:{N}=64") == "64"
    # One that cannot be read is named.
    (folder / ".hydra" / "config.yaml").write_text("{[")
    assert str(folder / ".hydra" / "config.yaml") in said(tmp_path, *sets(rest))[1]


def test_a_log_counts_before_what_lies_beside_it_and_this_is_said(tmp_path):
    for name in ("trainer_state.json", "training_args.bin"):
        (tmp_path / name).write_bytes((DOCS / "n4" / name).read_bytes())
    (tmp_path / "config.json").write_text(json.dumps({"num_generations": 8}))
    status, out = said(tmp_path)
    assert status == 0
    assert "n = 4, B_p = 16" in out
    assert "num_generations 4 and not 8" in out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--set", f"c.jsonl:{N}=4"], r"no run c\.jsonl; there are .*a/run\.jsonl, .*b/run\.jsonl"),
        (["--set", f"run.jsonl:{N}=4"], "may be each of"),
        (["--set", "a/run.jsonl:wrold_size=4"], f"wrold_size; there are .*{N}"),
        (["--set", "wrold_size=4"], f"wrold_size; there are .*{N}"),
        (["--set", "n=4"], f"setting n; perhaps {N} is meant"),
        (["--set", "a/run:question=50"], "setting question; perhaps questions"),
        (["--runs", f"run,{N},{N}\na/run.jsonl,4,4\n"], "first row"),
        (["--runs", f"run,{N}\na/run.jsonl,4\na/run.jsonl,8\n"], "row 3 .* again"),
        (["--runs", f"run,{N}\na/run.jsonl,4,8\n"], "row 2 has 3 cells for 2 columns"),
        (["--runs", f"run,{N}\n,4\n"], "row 2 names no run"),
        (["--runs", f"run,{N}\nc/run.jsonl,4\n"], "no run c/run.jsonl; there are"),
    ],
)
def test_a_run_or_a_setting_that_is_not_there_is_refused_with_those_that_are(words, message, tmp_path):
    import re

    for folder in "ab":
        write(tmp_path, f"{folder}/run.jsonl", ord(folder) % 7)
    if words[0] == "--runs":
        (tmp_path / "table").write_text(words[1])
        words = ["--runs", tmp_path / "table"]
    status, out = said(tmp_path / "a", tmp_path / "b", *sets(), *words)
    assert status == 2
    assert re.search(message, out)


def test_what_is_asked_for_is_explained_and_a_file_is_no_place_for_tables(tmp_path):
    path = write(tmp_path, "run.jsonl", 1)
    assert "questions: how many problems" in said(path)[1]
    status, out = said(path, *sets(), "--out", path)
    assert (status, f"--out {path}" in out) == (2, True)


def test_a_table_may_come_from_a_spreadsheet(tmp_path):
    (tmp_path / "runs.csv").write_bytes("\ufeffrun;n\r\na/b.csv;4\r\n;\r\nc;\r\n".encode())
    assert read_table(tmp_path / "runs.csv") == {"a/b.csv": {"n": "4"}, "c": {}}
    (tmp_path / "runs.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(BudgetError, match=r"runs\.csv"):
        read_table(tmp_path / "runs.csv")


def test_the_column_of_steps_may_be_that_of_one_file(tmp_path):
    for name, column in (("a.csv", "it"), ("b.csv", "step")):
        text = write(tmp_path, name, ord(name[0]) % 5).read_text()
        (tmp_path / name).write_text(text.replace("step,", f"{column},", 1))
    status, out = said(tmp_path, *sets())
    assert status == 3
    assert f"{tmp_path / 'a.csv'}: NOT READ" in out
    assert said(tmp_path, *sets(), "--set", "a.csv:step_column=it")[0] == 0


@pytest.mark.parametrize("as_table", [True, False])
def test_logs_that_are_alike_are_two_runs_where_they_are_said_to_differ(tmp_path, as_table):
    names = [str(write(tmp_path, f"{name}/run.jsonl")) for name in ("n4", "n8")]
    for first, second, found in (("4", "8", [4, 8]), ("4", "4", [4])):
        values = {names[0]: first, "n8/run": second}
        given = {"table": {name: {N: n} for name, n in values.items()}}
        given = given if as_table else {"runs": [(name, N, n) for name, n in values.items()]}
        patients = examine([str(tmp_path)], Given(every={k: v for k, v in GIVEN.items() if k != N}, **given)).patients
        assert [patient.rows[0]["rollouts_per_problem"] for patient in patients] == found


@pytest.mark.parametrize(
    ("called", "found"),
    [
        ("a/b.log", [0]),
        ("b.log", "may be"),
        ("c/b.log", [1]),
        ("a/b", [0]),
        ("n4", [2]),
        ("x.db (n4)", [2]),
        ("n", "no run"),
    ],
)
def test_a_run_is_found_by_its_name_the_end_of_it_and_the_name_that_its_logger_gave(called, found):
    runs = [["a/b.log"], ["c/b.log"], ["x.db (n4)"]]
    given = Given(runs=[(called, N, "4")])
    if isinstance(found, str):
        with pytest.raises(BudgetError, match=found):
            given.of(runs)
    else:
        assert [k for k, said in enumerate(given.of(runs)) if said] == found
