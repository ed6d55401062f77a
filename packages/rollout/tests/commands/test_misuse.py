"""Wrong use of the console script: one sentence, exit code 2, and nothing on disk that was not there before."""

from pathlib import Path
from typing import Any

import polars as pl
import pytest
from commands.made import rollouts
from isocompute.rollout.cli import main

pytestmark = pytest.mark.slow("dozens of wrong commands")

SAMPLE = "--model {model} --sampler transformers --problems {problems} --max-new-tokens 2"
GENERATE = f"generate {SAMPLE} --out {{out}}"
EVALUATE = f"evaluate {SAMPLE} --out {{json}}"
SPLIT = "split {measured} --train 2 --validation 1 --out {out}"

WRONG = {
    # Numbers out of their range.
    f"{GENERATE} --samples 0": "0; it must be at least 1",
    f"{EVALUATE} --k 0": "--k is 0; it must be at least 1",
    f"{EVALUATE} --k 5 --samples 4": "be at most --samples = 4",
    f"{SPLIT} --interval 0.6 0.3": "an interval within 0 to 1",
    f"{SPLIT} --interval 0 0 --min-samples 128": "128 times are asked for,",
    # Shards.
    f"{GENERATE} --shard 1/2": "with --shard, --out must",
    f"generate {SAMPLE} --out {{folder}}/shards --shard 3/2": "--shard is '3/2'; it must",
    f"generate {SAMPLE} --out {{folder}}/shards --shard 1/1000": "--shard 1/1000 holds none",
    # Unknown keys and values that are none.
    f"{GENERATE} --engine color=red": "no setting color",
    f"{GENERATE} --engine batch_size": "--engine is 'batch_size';",
    f"{GENERATE} --engine-config {{text}}": "must be a mapping of settings",
    "generate --model {model} --problems {problems} --out {out} --engine color=red": "engine has no setting 'color'",
    f"{GENERATE} --scoring color=red": "scoring has no setting 'color'",
    f"{GENERATE} --few-shot {{text}}": "line 1: not JSON",
    "problems --set MATH-5000 --out {out}": "called 'MATH-5000'; there",
    "problems --set MATH-500 --folder {folder}/none --out {out}": "none: no such folder",
    # Missing files, and files that are something else.
    "generate --model {model} --problems none.parquet --out {out}": "none.parquet: no such",
    "generate --model {folder}/none --sampler transformers --problems {problems} --out {out}": "no such folder",
    "score {rollouts} --problems {problems} --out {out}": "--model must name its tokenizer",
    f"{SPLIT} --interval 0.6 0.7": "0 of 4 measured ones have it (the mean pass rate is 0.50): generate other",
    # Outputs that cannot be.
    f"generate {SAMPLE} --out {{folder}}/r.csv": "--out must be a .parquet file",
    f"generate {SAMPLE} --out {{rollouts}}": "choose another --out",
    f"difficulty {SAMPLE} --out {{measured}}": "choose another --out",
    f"difficulty {SAMPLE} --out {{out}} --rollouts-out {{folder}}": "--rollouts-out is a",
    f"{EVALUATE} --pass-rates {{json}}": "--pass-rates must be a",
    # Flags that contradict each other.
    f"{GENERATE} --interrupt-phrase now": "--interrupt-phrase needs",
    "generate --model {model} --problems {problems} --sampler openai --out {out}": "openai needs --base-url",
    f"difficulty {{rollouts}} {SAMPLE} --out {{out}}": "to count in or --model",
    "difficulty {rollouts} --problems {problems} --samples 4 --out {out}": "--samples needs --model",
    "problems {text} --set MATH-500 --out {out}": "of their source or --set",
    "problems {text} --revision main --out {out}": "--revision needs --set",
    "evaluate --out {json}": "--model to sample with or",
    "evaluate --model {model} --out {json}": "evaluate needs questions",
    "evaluate --rollouts {rollouts} --problems {problems} --set AIME-2024 --out {json}": "contradict each other",
    "evaluate --rollouts {rollouts} --temperature 0 --out {json}": "--temperature needs --model",
    f"{EVALUATE} --step 3": "--step needs --rollouts",
    f"{EVALUATE} --phase difficulty": "--model it must be one of",
    # What selects never measures.
    "difficulty {selecting} --problems {measured} --fresh --out {out}": "they selected problems",
    # Runs that cannot be compared.
    "evaluate --rollouts {rollouts} --against {longer} --out {json}": "3 responses per question",
    "evaluate --rollouts {both} --out {json}": "run_ids (r, s); --run-id",
    "evaluate --rollouts {rollouts} --against {both} --out {json}": "a table with one is needed",
}


@pytest.fixture(scope="module")
def files(tiny: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("misuse")
    ids = tiny.problems["problem_id"].to_list()
    measured = tiny.problems.with_columns(pass_rate=pl.lit(0.5), pass_rate_samples=pl.lit(4, dtype=pl.Int32))
    short = rollouts(ids, samples=2)
    tables = {
        "problems": tiny.problems,
        "measured": measured,
        "rollouts": short,
        "longer": rollouts(ids, samples=3),
        "selecting": rollouts(ids, samples=2, phase="difficulty"),
        "both": pl.concat([short, rollouts(ids, samples=2, run="s")]),
    }
    for name, table in tables.items():
        table.write_parquet(folder / f"{name}.parquet")
    (folder / "text.txt").write_text("neither\n")
    made = {name: str(folder / f"{name}.parquet") for name in tables}
    return {**made, "model": str(tiny.folder), "folder": str(folder), "text": str(folder / "text.txt")}


@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_use_is_one_sentence_and_leaves_everything_as_it_was(
    wrong: str,
    files: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = Path(files["folder"])
    before = {path: path.read_bytes() for path in folder.iterdir()}
    places = {**files, "out": str(tmp_path / "out.parquet"), "json": str(tmp_path / "out.json")}
    assert main([word.format(**places) for word in wrong.split()]) == 2
    said = capsys.readouterr().err.strip().splitlines()
    assert said[-1].startswith("error: ")
    assert WRONG[wrong] in said[-1]
    assert not any("Traceback" in line for line in said)
    assert {path: path.read_bytes() for path in folder.iterdir()} == before
    assert list(tmp_path.iterdir()) == []
