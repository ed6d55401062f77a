"""Every file that looks like a log is read or named, whatever is wrong with it or its name."""

import contextlib
import io
import json
import os
import re
import shutil
from pathlib import Path

import polars as pl
import pytest
from isocompute.budget import BudgetError
from isocompute.budget.cli import main
from isocompute.budget.trainers.doctor import Given, examine
from isocompute.budget.trainers.logs.sources import read_logs
from isocompute.budget.trainers.registry import READERS
from isocompute.budget.trainers.search import log_sources
from reading_logs import DOCS, FIXTURES, VERL, asked, csv_of, lines, logged_run

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
        ({"step": 1, "response_length/mean": 9.0, "val/test_score/nq": 0.2}, "val/test_score/nq"),
        ({"step": 1, "response_length/mean": 9.0}, "response_length/mean"),
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


def test_runs_of_several_trainers_are_found_and_written_and_what_is_not_read_is_named(tmp_path, capsys):
    shutil.copytree(DOCS, tmp_path / "runs" / "trl")
    shutil.copy(FIXTURES / "wandb" / "run.wandb", tmp_path / "runs")
    (tmp_path / "runs" / "notes.csv").write_text("a,b\n1,2\n")
    (tmp_path / "runs" / "twice.csv").write_text("step,val-core/m/acc/mean@4,val-core/m/acc/mean@4\n1,0.5,0.5\n")
    told = ["--json", str(tmp_path / "told.json")]
    assert main(["doctor", str(tmp_path / "runs"), "--out", str(tmp_path / "out"), *told]) == 3
    evals = pl.read_parquet(tmp_path / "out" / "evals.parquet")
    assert evals["run_id"].n_unique() == 3
    assert sorted(evals["rollouts_per_problem"].unique().to_list()) == [4, 16]
    # Every average is one quantity, whatever it was taken of.
    assert evals["avg_at_4"].null_count() == 0
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert json.loads((tmp_path / "told.json").read_text()) == manifest
    assert [run["trainer"] for run in manifest["runs"]] == ["trl"] * 3
    assert [unread["source"] for unread in manifest["unread"]] == [str(tmp_path / "runs" / "twice.csv")]
    said = capsys.readouterr().out
    assert "7,680 rollouts and 35,134 response tokens in 120 steps, by its log and formula" in said
    assert "--group learning_rate" in said


def test_all_that_is_missing_is_said_at_once(tmp_path):
    given = {"actor_rollout_ref.rollout.n": 4, "data.train_batch_size": 16, "questions": 400}
    given |= {"actor_rollout_ref.actor.ppo_mini_batch_size": 8, "actor_rollout_ref.actor.ppo_epochs": 1}
    given |= {"algorithm.filter_groups.enable": "false"}
    found = asked(shutil.copy(FIXTURES / "verl" / "run.jsonl", tmp_path), given)
    assert found == ("verl", set(given), [0, 128, 256])


SWIFT = {"completions/mean_length": 2.0, "reward": 0.5, "rewards/right/mean": 0.5, "loss": 0.1, "memory(GiB)": 1.0}
LOGS = {
    "trl": list(logged_run()),
    "swift": [{"global_step/max_steps": f"{step}/9", "train_speed(iter/s)": 0.1, **SWIFT} for step in (1, 2)],
    "verl": [{"step": 1, "training/global_step": 1, "response_length/mean": 5.0, "val-core/m/acc/mean@4": 0.5}],
    "openrlhf": [
        {"train/global_step": 1, "train/response_length": 5.0, "train/reward": 0.5, "train/return": 0.5},
        {"eval/global_step": 1, "eval/eval_math_pass1": 0.5, "eval/eval_math_pass4": 0.8},
    ],
    "prime-rl": [
        {"step": 1, "progress/rollouts": 8, "progress/tokens": 80, "reward/all/mean": 0.5},
        {"step": 2, "eval/math/avg@4": 0.5, "eval/math/pass@4": 0.8, "eval/math/completion_len/mean": 7.0},
    ],
    "skyrl": [
        {"_step": 0, "eval/math/avg_score": 0.5, "eval/math/pass_at_4": 0.8, "eval/all/generate/avg_num_tokens": 5.0},
        {"_step": 1, "trainer/global_step": 1, "reward/avg_pass_at_4": 0.5, "generate/avg_num_tokens": 5.0},
    ],
    "tinker": [
        {"step": 0, "progress/batch": 0, "optim/lr": 1e-5, "test/env/all/reward/total": 0.5},
        {"step": 1, "env/all/total_episodes": 8, "env/all/total_ac_tokens": 80, "env/all/reward/total": 0.5},
    ],
    "slime": [
        {"eval/step": 0, "eval/aime": 0.5, "eval/aime-pass@4": 0.8, "eval/aime-truncated_ratio": 0.1},
        {"rollout/step": 0, "rollout/response_len/mean": 5.0, "rollout/truncated_ratio": 0.1},
        {"train/step": 0, "train/loss": 0.1, "train/grad_norm": 1.0},
    ],
}


def claimed(source):
    """The trainers in whose layout a log can be read, and whose marks it has."""
    found = set()
    for name, reader in READERS.items():
        try:
            logs = [log for one in log_sources(str(source))[0] for log in read_logs(one, reader.layout)]
        except BudgetError:
            continue
        keys = {key for log in logs for key in (*log.config, *(k for _, metrics in log.rows for k in metrics))}
        found |= {name} if any(map(reader.marks.match, keys)) else set()
    return found


@pytest.mark.parametrize("name", READERS)
def test_a_log_is_of_one_trainer(tmp_path, name):
    log = lines(tmp_path / "log.jsonl", LOGS[name])
    # ms-swift logs what TRL does, in a file without TRL's steps.
    assert claimed(log) == {name}
    assert [patient.trainer.name for patient in examine([str(tmp_path)], Given()).patients] == [name]


@pytest.mark.parametrize("called", "ab")
def test_what_one_of_two_loggers_lacks_is_read_of_the_other_and_the_run_has_both_names(tmp_path, called):
    rows = list(verl_rows(1, steps=8))
    # An evaluation is in one of them alone, as where a logger was killed.
    for name, lost in (("a", 1), ("b", 3)):
        lines(tmp_path / f"{name}.jsonl", [row for number, row in enumerate(rows) if number != lost])
    said = [(f"{called}.jsonl", "actor_rollout_ref.rollout.n", "5")]
    (patient,) = examine([str(tmp_path)], Given(every=GIVEN, runs=said)).patients
    assert {Path(path).stem for path in (patient.name, *patient.also)} == {"a", "b"}
    assert [row["avg_at_4"] for row in patient.rows] == [row["val-core/m/acc/mean@4"] for row in rows]
    assert {row["rollouts_per_problem"] for row in patient.rows} == {5}


def test_two_logs_are_of_one_run_where_all_that_both_logged_is_alike_and_more_than_one_number(tmp_path):
    whole, other = (list(verl_rows(number, steps=2)) for number in (1, 2))
    lines(tmp_path / "a.jsonl", whole)
    for rows, runs in ((whole, 1), ([whole[0], *other[1:]], 2), (whole[:1], 2)):
        lines(tmp_path / "b.jsonl", rows)
        assert len(examine([str(tmp_path)], Given(every=GIVEN)).patients) == runs


def test_logs_that_are_alike_and_differ_in_settings_are_one_run_that_says_so(tmp_path: Path) -> None:
    state = {"max_steps": 2, "train_batch_size": 8, "global_step": 2}
    state["log_history"] = [{"step": k, "reward": 0.1 * k, "num_tokens": 100 * k} for k in (1, 2)]
    for name, n in (("a", 4), ("b", 8)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "trainer_state.json").write_text(json.dumps(state))
        (tmp_path / name / "config.json").write_text(json.dumps({"num_generations": n}))
    (patient,) = examine([str(tmp_path)], Given()).patients
    assert [note for note in patient.notes if "num_generations 8 and not 4" in note]


def test_a_table_of_evaluations_is_called_so(tmp_path: Path) -> None:
    (tmp_path / "evals.csv").write_text("rollouts,rollouts_per_problem,avg_at_4\n1024,8,0.3\n")
    (unread,) = examine([str(tmp_path / "evals.csv")], Given()).unread
    assert "isocompute-frontier fit" in unread.reason
