"""Every file that looks like a log is read or named, whatever is wrong with it or its name."""

import contextlib
import io
import json
import os
import re
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from good_logs import csv_of
from hypothesis import given, settings
from hypothesis import strategies as st
from isocompute.budget import BudgetError
from isocompute.budget.cli import main
from isocompute.budget.trainers.doctor import Given, examine
from reading_logs import VERL, lines

GIVEN = {
    **{key: str(value) for key, value in VERL.items()},
    "actor_rollout_ref.actor.ppo_epochs": "1",
    "data.gen_batch_size": "8",
    "algorithm.filter_groups.enable": "false",
    "questions": "50",
}


def said(*words):
    """The status of ``doctor``, and what it printed."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        status = main(["doctor", *map(str, words)])
    assert "Traceback" not in out.getvalue()
    return status, out.getvalue()


def sets(given=GIVEN):
    return [word for name, value in given.items() for word in ("--set", f"{name}={value}")]


def verl_rows(number, steps=6):
    """A run of veRL's, which differs from those of other numbers."""
    for step in range(0, steps + 1, 2):
        measured = {"val-core/m/acc/mean@4": round(0.1 + step / 20 + number / 100, 4)}
        trained = {"response_length/mean": 100.0 + number, "training/global_step": step} if step else {}
        yield {"step": step, **trained, **measured}


def write(folder, name, number=0):
    """A log with a run of a number, as a table or in lines."""
    path, rows = folder / name, list(verl_rows(number))
    if path.suffix != ".csv":
        return lines(path, rows)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(csv_of(rows))
    return path


def test_what_is_readable_and_no_log_is_not_named(tmp_path):
    write(tmp_path, "a.jsonl")
    (tmp_path / "notes.csv").write_text("a,b\n1,2\n")
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "a"}\n{"prompt": "b"}\n')
    (tmp_path / "train.py").write_text('METRICS = {"response_length/mean": 1, "num_tokens": 2}\n')
    (tmp_path / "README.md").write_text('It logs {"response_length/mean": 1}.\n')
    (tmp_path / "weights.bin").write_bytes(b"\x00" * 99)
    (tmp_path / "all_results.json").write_text('{\n "eval_num_tokens": 1,\n "num_tokens": 2\n}\n')
    status, out = said(tmp_path, *sets())
    assert status == 0
    assert "NOT READ" not in out
    # Unless it is what the user named.
    status, out = said(tmp_path, tmp_path / "notes.csv", *sets())
    assert status == 3
    assert f"{tmp_path / 'notes.csv'}: NOT READ" in out


@pytest.mark.parametrize("name", ["run.dat", "run.jsonl.1", "run", "run.json", "run.out"])
def test_a_log_of_another_name_is_named(name, tmp_path):
    path = shutil.move(write(tmp_path, "b.jsonl"), tmp_path / name)
    report = examine([str(tmp_path)], Given())
    assert [found.name for found in report.patients] + [found.source for found in report.unread] == [str(path)]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="pipes with names are POSIX's")
def test_only_regular_files_are_opened_and_links_end(tmp_path):
    runs, away = tmp_path / "runs", tmp_path / "away"
    write(runs, "one/run.jsonl", 1)
    write(away, "run.jsonl", 2)
    for name in ("pipe.jsonl", "trainer_state.json", "events.out.tfevents.1", "no-log"):
        os.mkfifo(runs / name)
    (runs / "nothing.csv").symlink_to(tmp_path / "nothing.csv")
    (runs / "itself.csv").symlink_to(runs / "itself.csv")
    (runs / "linked.jsonl").symlink_to(away / "run.jsonl")
    (runs / "latest").symlink_to(runs / "one")
    (runs / "loop").symlink_to(runs)
    (runs / "other").symlink_to(away)
    status, out = said(runs, *sets())
    named = {line.partition(": NOT READ")[0] for line in out.splitlines() if ": NOT READ" in line}
    lost = ("pipe.jsonl", "trainer_state.json", "events.out.tfevents.1", "nothing.csv", "itself.csv", "other")
    assert named == {str(runs / name) for name in lost}
    assert status == 3
    for name in ("one/run.jsonl", "linked.jsonl"):
        assert f"{runs / name}: veRL" in out
    assert said(runs / "pipe.jsonl")[0] == 1
    # A link that is named is followed.
    assert said(runs / "other", *sets())[0] == 0


@settings(max_examples=40)
@given(lost=st.lists(st.sampled_from(["both", "a", "b"]), min_size=4, max_size=12), data=st.data())
def test_what_one_of_two_loggers_lacks_is_read_of_the_other_and_the_run_has_both_names(lost, data):
    rows = [
        {"step": step, "data": {"training/global_step": step, "response_length/mean": 100.0 + step}}
        for step in range(1, len(lost) + 1)
    ]
    for row in rows:
        row["data"]["val-core/set/acc/mean@2"] = data.draw(st.integers(0, 100)) / 100
    with TemporaryDirectory() as folder:
        for name in ("a", "b"):
            # The first two entries are in both, so that they are seen to be of one run.
            kept = [
                {**row, "data": {k: v for k, v in row["data"].items() if where in ("both", name) or "val" not in k}}
                for row, where in zip(rows, ["both", "both", *lost[2:]], strict=True)
            ]
            lines(Path(folder) / f"{name}.jsonl", kept)
        called = data.draw(st.sampled_from(["a", "b"]))
        said = [(f"{called}.jsonl", "actor_rollout_ref.rollout.n", "5")]
        (patient,) = examine([folder], Given(every=GIVEN, runs=said)).patients
    assert {Path(path).stem for path in (patient.name, *patient.also)} == {"a", "b"}
    assert [row["avg_at_2"] for row in patient.rows] == [row["data"]["val-core/set/acc/mean@2"] for row in rows]
    assert {row["rollouts_per_problem"] for row in patient.rows} == {5}


def test_two_runs_that_logged_the_same_are_two_where_their_seeds_differ(tmp_path):
    for seed in "12":
        write(tmp_path, f"{seed}/run.jsonl")
        (tmp_path / seed / "config.json").write_text(json.dumps({**VERL, "data.seed": int(seed)}))
    status, out = said(tmp_path, "--set", "questions=50")
    assert status == 0
    assert "seed 1," in out
    assert "seed 2," in out


@pytest.mark.parametrize(
    ("metrics", "said"),
    [
        ({"train/global_step": 1, "train/response_length": 9.0, "train/reward": 0.4}, "train/reward"),
        ({"step": 1, "response_length/mean": 9.0, "val/test_score/nq": 0.2}, r"val/test_score/nq.*0\.3"),
        ({"step": 1, "response_length/mean": 9.0}, "neither"),
    ],
)
def test_what_was_logged_in_place_of_evaluations_is_said(metrics, said, tmp_path):
    (patient,) = examine([str(lines(tmp_path / "run.jsonl", [metrics]))], Given()).patients
    assert re.search(said, patient.problem)


def test_a_file_of_runs_of_several_trainers_is_read_run_by_run(tmp_path):
    rows = [{"run_id": "v", **row} for row in verl_rows(0)]
    rows += [
        {"run_id": "o", "step": s, "train/global_step": s, "train/response_length": 9.0, "eval/eval_m_pass1": s / 9}
        for s in (1, 2)
    ]
    path = lines(tmp_path / "all.jsonl", rows)
    names = {p.name: p.trainer.name for p in examine([str(path)], Given()).patients}
    assert names == {f"{path} (v)": "verl", f"{path} (o)": "openrlhf"}


def test_a_trainer_that_is_named_needs_no_metric_of_its_own(tmp_path):
    (tmp_path / "chart.csv").write_text("train/global_step,eval/reward\n10,0.3\n20,0.4\n")
    with pytest.raises(BudgetError):
        examine([str(tmp_path)], Given())
    (patient,) = examine([str(tmp_path)], Given(), trainer="trl").patients
    assert {"num_generations", "per_device_train_batch_size", "questions"} <= set(patient.missing)
