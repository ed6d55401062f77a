"""Sampling that is killed, interrupted or split, and what comes of it: the same table."""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from isocompute.rollout import load_problems, source_from
from isocompute.rollout.cli import main
from isocompute.rollout.contract import tables

pytestmark = pytest.mark.slow("1,000 problems measured in processes that are killed")

TASKS = {"chain_sum": 340, "gcd": 330, "letter_counting": 330}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random model whose tokens are bytes."""
    pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    folder = tmp_path_factory.mktemp("bytes")
    vocabulary = ("<pad>", "<eos>", *sorted(pre_tokenizers.ByteLevel.alphabet()))
    inner = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(vocabulary)}, merges=[]))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    transformers.PreTrainedTokenizerFast(tokenizer_object=inner, pad_token="<pad>", eos_token="<eos>").save_pretrained(
        folder
    )
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=len(vocabulary), hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=1,
        max_position_embeddings=1024, tie_word_embeddings=False, eos_token_id=1, pad_token_id=0, bos_token_id=None,
    )  # fmt: skip
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def problems(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A thousand problems of three tasks."""
    pytest.importorskip("reasoning_gym")
    sources = [
        source_from({"kind": "reasoning_gym", "task": task, "train": count - 30, "validation": 30})
        for task, count in TASKS.items()
    ]
    path = tmp_path_factory.mktemp("problems") / "problems.parquet"
    tables.write(pl.concat([load_problems(source) for source in sources]), "problems", path)
    return path


def asked(model: Path, problems: Path, out: Path, *, command: str = "difficulty") -> list[str]:
    flags = f"--sampler transformers --samples 2 --max-new-tokens 4 --model {model} --problems {problems} --out {out}"
    return [command, *flags.split()]


def started(arguments: list[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "isocompute.rollout.cli", *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True, env={**os.environ, "OMP_NUM_THREADS": "1"},
        # A shell's job in the background ignores it, and so do its children.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )  # fmt: skip


def groups_kept(out: Path) -> int:
    """Complete groups in the journal beside a file."""
    found = 0
    for path in sorted(out.with_name(f"{out.name}.partial").glob("*/*.arrows")):
        try:
            with pa.ipc.open_stream(path.read_bytes()) as stream:
                for _ in stream:
                    found += 1
        except (pa.ArrowException, OSError):
            continue
    return found


def stopped(process: subprocess.Popen[str], out: Path, *, at: int, by: signal.Signals) -> str:
    """Wait until so many groups are kept, send a signal, and return what was said on stderr."""
    while groups_kept(out) < at:
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.05)
    process.send_signal(by)
    return process.communicate()[1]


def assert_same(found: pl.DataFrame, expected: pl.DataFrame) -> None:
    """Compare rollouts; the last bit of a log-probability depends on how many prompts transformers has in a batch."""
    assert found.drop("logprobs").equals(expected.drop("logprobs"))
    assert found["logprobs"].list.len().equals(expected["logprobs"].list.len())
    difference = found["logprobs"].explode().to_numpy() - expected["logprobs"].explode().to_numpy()
    assert abs(difference).max() < 1e-5


def test_a_thousand_problems_killed_twice_are_measured_as_if_undisturbed(
    model: Path, problems: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole, whole_rollouts = tmp_path / "whole.parquet", tmp_path / "whole_rollouts.parquet"
    assert main([*asked(model, problems, whole), "--rollouts-out", str(whole_rollouts)]) == 0
    assert "1,000/1,000 groups, 2,000 responses" in capsys.readouterr().err
    out, rollouts = tmp_path / "killed.parquet", tmp_path / "killed_rollouts.parquet"
    command = [*asked(model, problems, out), "--rollouts-out", str(rollouts)]
    draw = random.Random()
    kept = 0
    for _ in range(2):
        process = started(command)
        stopped(process, out, at=kept + draw.randint(50, 350), by=signal.SIGKILL)
        assert process.returncode == -signal.SIGKILL
        kept = groups_kept(out)
        assert not out.exists()
        assert not rollouts.exists()
    assert main(command) == 0
    assert "1,000/1,000 groups, 2,000 responses" in capsys.readouterr().err
    assert out.read_bytes() == whole.read_bytes()
    assert_same(pl.read_parquet(rollouts), pl.read_parquet(whole_rollouts))
    assert set(pl.read_parquet(out)["pass_rate_samples"]) == {2}
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        path.name for path in (whole, whole_rollouts, out, rollouts)
    )


def test_ctrl_c_says_how_to_go_on_and_the_same_command_does(model: Path, problems: Path, tmp_path: Path) -> None:
    out = tmp_path / "rollouts.parquet"
    command = asked(model, problems, out, command="generate")
    process = started(command)
    said = stopped(process, out, at=20, by=signal.SIGINT)
    assert process.returncode == 130
    last = said.strip().splitlines()[-1]
    assert last.startswith("interrupted; ")
    assert f"of 1,000 groups are kept in {out}.partial, and the same command goes on from there" in last
    assert "Traceback" not in said
    assert not out.exists()
    kept = groups_kept(out)
    assert kept >= 20
    assert main([*command, "--limit", str(1000)]) == 0
    assert len(pl.read_parquet(out)) == 2000
    # What is complete is not sampled again, and nothing else may take its place.
    before = out.read_bytes()
    assert main(command) == 0
    assert main([*command, "--seed", "1"]) == 2
    assert out.read_bytes() == before


@pytest.fixture
def few(problems: Path, tmp_path: Path) -> Iterator[Path]:
    """Twenty of the problems."""
    path = tmp_path / "few.parquet"
    tables.write(pl.read_parquet(problems).sample(20, seed=0), "problems", path)
    return path


def test_shards_in_one_folder_are_the_table_of_the_whole(model: Path, few: Path, tmp_path: Path) -> None:
    whole = tmp_path / "whole.parquet"
    assert main(asked(model, few, whole, command="generate")) == 0
    sizes = []
    for part in ("1/3", "2/3", "3/3"):
        assert main([*asked(model, few, tmp_path / "shards", command="generate"), "--shard", part]) == 0
        file = tmp_path / "shards" / part.replace("/", "-of-") / "rollouts.parquet"
        sizes.append(len(pl.read_parquet(file)))
    assert sum(sizes) == 40
    assert min(sizes) > 0
    assert_same(tables.read(tmp_path / "shards", "rollouts"), tables.read(whole, "rollouts"))


def test_a_higher_limit_continues_a_lower_one(model: Path, few: Path, tmp_path: Path) -> None:
    short, whole = tmp_path / "short.parquet", tmp_path / "whole.parquet"
    command = asked(model, few, short, command="generate")
    assert main([*command, "--limit", "5"]) == 0
    first = pl.read_parquet(few).sort("problem_id")["problem_id"].head(5).to_list()
    assert pl.read_parquet(short)["problem_id"].unique().sort().to_list() == first
    assert main([*command, "--limit", "6"]) == 2
    assert main([*command, "--overwrite"]) == 0
    assert main(asked(model, few, whole, command="generate")) == 0
    assert_same(pl.read_parquet(short), pl.read_parquet(whole))


def test_unfinished_work_of_other_settings_is_named_and_stays(
    model: Path, few: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "rollouts.parquet"
    other = tmp_path / "rollouts.parquet.partial" / "0123456789abcdef"
    other.mkdir(parents=True)
    (other / "00000.arrows").write_bytes(b"kept")
    assert main(asked(model, few, out, command="generate")) == 0
    assert (
        "also holds unfinished work with other settings (0123456789abcdef), which stays there"
        in capsys.readouterr().err
    )
    assert (other / "00000.arrows").read_bytes() == b"kept"
    assert [path.name for path in other.parent.iterdir() if path.is_dir()] == ["0123456789abcdef"]


def test_a_model_that_was_overwritten_is_another_run(model: Path, few: Path, tmp_path: Path, tiny: Any) -> None:
    out = tmp_path / "rollouts.parquet"
    copy = tmp_path / "checkpoint"
    copy.mkdir()
    for path in model.iterdir():
        (copy / path.name).write_bytes(path.read_bytes())
    assert main(asked(copy, few, out, command="generate")) == 0
    assert main(asked(copy, few, out, command="generate")) == 0
    weights = bytearray((copy / "model.safetensors").read_bytes())
    weights[-1] ^= 1
    (copy / "model.safetensors").write_bytes(weights)
    assert main(asked(copy, few, out, command="generate")) == 2
