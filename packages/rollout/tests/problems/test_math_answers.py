"""Reference answers that math-verify scores, in its process."""

from pathlib import Path

import polars as pl
import pytest
from isocompute.rollout import load_problems, source_from, verifier

pytestmark = pytest.mark.slow("a process of math-verify")

pytest.importorskip("math_verify")


def test_a_hugging_face_dataset_in_guru_maths_layout(tmp_path: Path) -> None:
    pytest.importorskip("datasets")
    rows = [
        {
            "prompt": [{"role": "system", "content": "s"}, {"role": "user", "content": f"What is {i} / 2?"}],
            "reward_model": {"ground_truth": str(i / 2)},
        }
        for i in range(8)
    ]
    pl.DataFrame(rows).write_parquet(tmp_path / "train.parquet")
    table = load_problems(source_from({"kind": "hub", "dataset": str(tmp_path), "train": 5, "validation": 3}))
    assert table["prompt"].str.starts_with("What is").all()
    assert verifier("math")("so \\boxed{1/2}", "0.5")
    assert not verifier("math")("so \\boxed{2}", "0.5")


def test_reference_answers_for_math_are_scored_in_a_box(tmp_path: Path) -> None:
    path = tmp_path / "own.jsonl"
    frame = pl.DataFrame({"prompt": [f"q{i}" for i in range(3)], "answer": ["1/2", "x^2", r"\frac{3}{4}"]})
    frame.write_ndjson(path)
    own = {"kind": "file", "path": str(path), "verifier": "math", "train": 2, "validation": 1}
    assert len(load_problems(source_from(own))) == 3
