"""Logs that the frameworks wrote (fixtures/make.py), or in the format that they document, as ``evals``."""

import json
import shutil
from pathlib import Path

import pytest
from isocompute.frontier import FrontierError
from isocompute.frontier.cli import main
from isocompute.frontier.contract import tables
from isocompute.frontier.data.ingest import ingest

FIXTURES = Path(__file__).parents[2] / "fixtures"
QUESTIONS = {"questions": "16"}


def test_trl_counts_completions_over_micro_batches() -> None:
    trl = FIXTURES / "trl"
    evals, notes = ingest("trl", [str(trl / "trainer_state.json")], config=trl / "config.json", constants=QUESTIONS)
    assert evals["step"].to_list() == [2, 4, 6]
    # Two micro-batches of 8 completions a step: 16, of 4 problems.
    assert evals["rollouts"].to_list() == [32, 64, 96]
    assert evals["rollouts_per_problem"].unique().to_list() == [4]
    assert evals["problems_per_batch"].unique().to_list() == [4]
    assert evals["seed"].unique().to_list() == [3]
    logged = json.loads((trl / "trainer_state.json").read_text())["log_history"]
    assert evals["avg_at_2"].to_list() == [e["eval_reward"] for e in logged if "eval_reward" in e]
    lengths = [e["completions/mean_length"] for e in logged if "completions/mean_length" in e]
    assert evals["tokens"][-1] == pytest.approx(16 * sum(lengths), abs=1)
    assert notes == ["avg_at_2 is eval_reward"]


def test_trl_counts_batches_that_are_used_several_times(tmp_path: Path) -> None:
    trl = FIXTURES / "trl"
    settings = json.loads((trl / "config.json").read_text())
    # One batch of 32 completions for four micro-batches, each used twice: a batch lasts four optimizer steps.
    config = tmp_path / "config.json"
    sizes = {"generation_batch_size": 32, "steps_per_generation": 4, "num_iterations": 2}
    config.write_text(json.dumps({**settings, **sizes}))
    evals, _ = ingest("trl", [str(trl / "trainer_state.json")], config=config, constants=QUESTIONS)
    assert evals["rollouts"].to_list() == [32, 32, 64]
    assert evals["problems_per_batch"].unique().to_list() == [8]


def test_trl_asks_for_what_a_trainer_state_does_not_hold() -> None:
    state = str(FIXTURES / "trl" / "trainer_state.json")
    with pytest.raises(FrontierError, match=r"rollouts_per_problem .* is not known: none of num_generations .* --set"):
        ingest("trl", [state])
    with pytest.raises(FrontierError, match=r"questions .how many validation problems there are. is not known"):
        ingest("trl", [state], config=FIXTURES / "trl" / "config.json")


def test_verl_counts_prompts_and_marks_what_is_biased() -> None:
    verl = FIXTURES / "verl"
    evals, notes = ingest("verl", [str(verl / "run.jsonl")], config=verl / "config.json", constants=QUESTIONS)
    assert evals["rollouts"].to_list() == [0, 2 * 64, 4 * 64]
    # Two updates for each logged step: mini-batches of half a batch.
    assert evals["step"].to_list() == [0, 4, 8]
    assert evals["tokens"].to_list() == [0, 64 * (11 + 12), 64 * (11 + 12 + 13 + 14)]
    assert evals["problem_set"].unique().to_list() == ["gsm8k"]
    # The accuracy, not the reward of the same name.
    assert evals["avg_at_4"].to_list() == pytest.approx([0.3, 0.34, 0.38])
    assert {"best_at_4_biased", "worst_at_4_biased"} <= set(evals.columns)
    assert "best_at_4" not in evals.columns
    assert any("resamples with replacement" in note for note in notes)


def test_verl_counts_the_groups_that_filtering_evicted(tmp_path: Path) -> None:
    lines = [json.loads(line) for line in (FIXTURES / "verl" / "run.jsonl").read_text().splitlines()]
    for line in lines[1:]:
        line["data"]["training/filter_groups/evicted_samples"] = 8
    (tmp_path / "run.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    config = FIXTURES / "verl" / "config.json"
    evals, _ = ingest("verl", [str(tmp_path)], config=config, constants=QUESTIONS)
    # The metric counts prompts, whatever its name, and each of them had four responses.
    assert evals["rollouts"].to_list() == [0, 2 * (64 + 32), 4 * (64 + 32)]


def test_openrlhf_divides_by_what_dynamic_filtering_kept(tmp_path: Path) -> None:
    log = tmp_path / "wandb.csv"
    log.write_text(
        "train/global_step,train/dynamic_filtering_pass_rate,train/response_length,"
        "eval/eval_math_pass1,eval/eval_math_pass4\n0,,,0.2,0.5\n1,400,100,,\n2,200,100,0.3,0.6\n"
    )
    config = tmp_path / "config.json"
    config.write_text(
        json.dumps({"rollout": {"n_samples_per_prompt": 8, "batch_size": 16}, "train": {"batch_size": 64, "seed": 1},
                    "eval": {"n_samples_per_prompt": 4}})
    )  # fmt: skip
    evals, notes = ingest("openrlhf", [str(log)], config=config, constants=QUESTIONS)
    # 400 responses per 100 prompts: half of the prompts passed, with eight responses each.
    assert evals["rollouts"].to_list() == [0, 128 * 2 + 128 * 4]
    assert evals["step"].to_list() == [0, 4]
    assert evals["avg_at_4"].to_list() == [0.2, 0.3]
    assert evals["best_at_4"].to_list() == [0.5, 0.6]
    assert any("dynamic filtering" in note for note in notes)


def test_prime_rl_sums_the_rollouts_of_each_step(tmp_path: Path) -> None:
    log = tmp_path / "metrics.jsonl"
    rows = [
        {"step": 1, "eval/math/avg@4": 0.2, "eval/math/pass@4": 0.5, "eval/math/pass^4": 0.1},
        {"step": 1, "progress/rollouts": 64, "progress/total_rollouts": 0, "progress/tokens": 640},
        {"step": 2, "progress/rollouts": 60, "progress/total_rollouts": 64, "progress/tokens": 600},
        # Evaluations run beside training: that of step 3 began when two batches had been shipped.
        {"step": 3, "progress/rollouts": 72, "progress/total_rollouts": 124, "progress/tokens": 720},
        {"step": 3, "eval/math/avg@4": 0.3, "eval/math/pass@4": 0.6, "eval/math/pass^4": 0.15},
    ]
    log.write_text("".join(json.dumps(row) + "\n" for row in rows))
    constants = {"rollouts_per_problem": "8", "batch_rollouts": "64", **QUESTIONS}
    evals, _ = ingest("prime-rl", [str(log)], constants=constants)
    assert evals["rollouts"].to_list() == [0, 124]
    assert evals["tokens"].to_list() == [0, 1240]
    assert evals["problems_per_batch"].unique().to_list() == [8]
    assert evals["worst_at_4"].to_list() == [0.1, 0.15]


def test_what_was_ingested_can_be_fitted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "run.jsonl"
    lines = [{"step": s, "data": {"val-core/m/acc/mean@4": 0.2 + 0.3 * s / (s + 5)}} for s in range(12)]
    log.write_text("".join(json.dumps(line) + "\n" for line in lines))
    table = tmp_path / "evals.parquet"
    config = str(FIXTURES / "verl" / "config.json")
    assert main(["ingest", "verl", str(log), "--config", config, "--set", "questions=300", "--out", str(table)]) == 0
    assert len(tables.read(table, "evals")) == 12
    assert main(["fit", str(table), "--out", str(tmp_path / "fitted"), "--bootstrap", "20"]) == 0
    assert (tmp_path / "fitted" / "report.html").exists()
    assert f"12 evaluations of 1 run in {table}\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("run.jsonl", '{"loss": 1}\n{"loss": 2}\n', "line 1 has no step"),
        ("run.jsonl", '{"step": 1\n{"step": 2}\n', "line 1 is not JSON"),
        ("run.csv", "loss,reward\n1,2\n", "has no column of steps"),
        ("run.csv", "Step,a - reward,b - reward\n1,2,3\n", "mixes the runs a, b"),
        ("trainer_state.json", "[]", "is not the trainer_state.json"),
        ("run.jsonl", '{"step": 1, "loss": 2}\n', "holds no evaluation"),
    ],
)
def test_a_file_that_is_not_a_log_is_one_clear_error(
    name: str, content: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / name).write_text(content)
    given = ["--set", "rollouts_per_problem=4", "--set", "problems_per_batch=4", "--set", "questions=9"]
    assert main(["ingest", "verl", str(tmp_path / name), *given, "--out", str(tmp_path / "o.parquet")]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "o.parquet").exists()


def test_a_folder_holds_one_run(tmp_path: Path) -> None:
    for name in ("a.jsonl", "b.jsonl"):
        shutil.copy(FIXTURES / "verl" / "run.jsonl", tmp_path / name)
    with pytest.raises(FrontierError, match=r"one .jsonl or .csv file; it holds a.jsonl, b.jsonl"):
        ingest("verl", [str(tmp_path)], config=FIXTURES / "verl" / "config.json", constants=QUESTIONS)
