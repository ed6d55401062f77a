"""Sets known by name, from folders in the layout of their datasets."""

import re
from pathlib import Path

import polars as pl
import pytest
from commands import made
from isocompute.rollout import RolloutError, load_checked
from isocompute.rollout.cli import main
from isocompute.rollout.problems.named import NAMED, named_set
from isocompute.rollout.problems.sources import problem_id

pytestmark = pytest.mark.slow("a process of math-verify")

pytest.importorskip("datasets")
pytest.importorskip("math_verify")

MATHS = {"problem": [f"What is {i} / 2?" for i in range(30)], "answer": [rf"\frac{{{i}}}{{2}}" for i in range(30)]}
WORKED = {
    "question": [f"Tom has {i} times 1000 apples. How many?" for i in range(30)],
    "answer": [f"{i} times 1000 is <<{i}*1000={i}000>>.\n#### {i},000" for i in range(30)],
}
SYSTEM = {"role": "system", "content": "s"}
GURU = [
    {"prompt": [SYSTEM, {"role": "user", "content": f"What is {i} / 2?"}], "reward_model": {"ground_truth": str(i / 2)}}
    for i in range(30)
]
LAYOUTS = {
    "MATH-500": ("test.jsonl", pl.DataFrame(MATHS)),
    "AIME-2024": ("data/train-00000-of-00001.parquet", pl.DataFrame(MATHS)),
    "AIME-2025": ("test.jsonl", pl.DataFrame(MATHS)),
    "GSM8K": ("main/test-00000-of-00001.parquet", pl.DataFrame(WORKED)),
    "GSM8K-train": ("main/train-00000-of-00001.parquet", pl.DataFrame(WORKED)),
    "Guru-Math": ("train/math__combined_54.4k.parquet", pl.DataFrame(GURU)),
}


def copy(folder: Path, name: str) -> Path:
    """A copy of a set's dataset, with a file of another split and another configuration beside its own."""
    path, frame = LAYOUTS[name]
    for place, rows in ((path, frame), ("other/validation-00000-of-00001.parquet", frame.head(3))):
        (folder / place).parent.mkdir(parents=True, exist_ok=True)
        rows.write_ndjson(folder / place) if place.endswith("jsonl") else rows.write_parquet(folder / place)
    return folder


@pytest.mark.parametrize("name", NAMED)
def test_a_set_is_pinned_to_a_commit_and_loaded_from_a_folder_in_the_layout_of_its_dataset(
    name: str, tmp_path: Path
) -> None:
    assert re.fullmatch("[0-9a-f]{40}", NAMED[name].revision)
    source = named_set(name.lower(), folder=str(copy(tmp_path, name)))
    source = source if source.whole else named_set(name, folder=str(tmp_path), train=20, validation=10)
    loaded = load_checked(source)
    assert loaded.dropped.is_empty()
    assert len(loaded.problems) == 30
    assert set(loaded.problems["split"]) == ({"validation"} if source.whole else {"train", "validation"})
    assert set(loaded.problems["source"]) == {f"hub:{NAMED[name].dataset}@copy"}
    answers = {row["prompt"]: row["answer"] for row in loaded.problems.iter_rows(named=True)}
    if name.startswith("GSM8K"):
        assert answers["Tom has 7 times 1000 apples. How many?"] == "7000"
    else:
        # A system message stands before the question.
        system = "s\n\n" if name == "Guru-Math" else ""
        assert answers[f"{system}What is 3 / 2?"] in {r"\frac{3}{2}", "1.5"}


def test_a_problem_has_one_id_in_the_hub_in_a_copy_and_at_every_revision(tmp_path: Path) -> None:
    copied, other = (
        named_set("MATH-500", folder=str(copy(tmp_path, "MATH-500"))),
        named_set("MATH-500", revision="0" * 40),
    )
    assert copied.key == named_set("MATH-500").key == other.key
    assert other.name == f"hub:{other.dataset}@{'0' * 40}"
    problems = load_checked(copied).problems
    expected = [problem_id("hub:HuggingFaceH4/MATH-500", prompt) for prompt in problems["prompt"].to_list()]
    assert problems["problem_id"].to_list() == expected


def test_problems_without_an_answer_are_dropped_and_too_many_refuse_the_set(tmp_path: Path) -> None:
    path = copy(tmp_path, "GSM8K") / LAYOUTS["GSM8K"][0]
    frame = pl.read_parquet(path)
    without = pl.col("answer").str.replace("####", "")
    pl.concat([frame.head(1).with_columns(without), frame.tail(29)]).write_parquet(path)
    loaded = load_checked(named_set("GSM8K", folder=str(tmp_path)))
    assert (len(loaded.problems), loaded.dropped["reason"].to_list()) == (29, ["it has no reference answer"])
    frame.with_columns(without).write_parquet(path)
    with pytest.raises(RolloutError, match="30 of its 30 problems"):
        load_checked(named_set("GSM8K", folder=str(tmp_path)))


def test_without_the_hub_one_sentence_says_what_would_help(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # The libraries read these when they are imported.
    for name in ("datasets.config", "huggingface_hub.constants"):
        module = pytest.importorskip(name)
        if hasattr(module, "HF_HUB_OFFLINE"):
            monkeypatch.setattr(module, "HF_HUB_OFFLINE", True)
    out = tmp_path / "problems.parquet"
    assert main(["problems", "--set", "MATH-500", "--out", str(out)]) == 2
    said = capsys.readouterr().err.strip().splitlines()[-1]
    assert said.startswith("error: the dataset HuggingFaceH4/MATH-500 cannot be loaded (")
    assert said.endswith("give a copy with --folder (it needs test.jsonl)")
    assert list(tmp_path.iterdir()) == []


def test_a_set_on_the_command_line_and_in_an_evaluation(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = str(copy(tmp_path / "copy", "AIME-2024"))
    out = tmp_path / "problems.parquet"
    assert main(["problems", "--set", "aime-2024", "--folder", folder, "--out", str(out)]) == 0
    assert capsys.readouterr().out.startswith("30 problems, in ")
    problems = pl.read_parquet(out)
    rollouts = made.rollouts(dict.fromkeys(problems["problem_id"], 1), samples=1)
    rollouts.write_parquet(tmp_path / "rollouts.parquet")
    asked = ["evaluate", "--set", "AIME-2024", "--folder", folder, "--rollouts", str(tmp_path / "rollouts.parquet")]
    assert main([*asked, "--out", str(tmp_path / "evaluation.json")]) == 0
    assert "avg_at_1         1.0000  0.886 to 1.000" in capsys.readouterr().out
