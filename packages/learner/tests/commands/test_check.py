from pathlib import Path

import polars as pl
import pytest
import torch
from isocompute.learner.cli import main
from transformers import LlamaForCausalLM


@pytest.fixture
def recorded(rollouts: pl.DataFrame, tmp_path: Path) -> Path:
    path = tmp_path / "rollouts.parquet"
    rollouts.write_parquet(path)
    return path


def test_rollouts_of_the_model_agree_and_those_of_another_model_do_not(
    model: Path, recorded: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", str(model), str(recorded)]) == 0
    assert "agree to" in capsys.readouterr().out
    other = LlamaForCausalLM.from_pretrained(model)
    with torch.no_grad():
        other.lm_head.weight[0] += 0.1
    other.save_pretrained(tmp_path / "other")
    assert main(["check", str(tmp_path / "other"), str(recorded)]) == 2
    assert capsys.readouterr().err.count("the log-probabilities differ by up to") == 1


@pytest.mark.slow
def test_rollouts_of_a_sampler_in_lower_precision_are_judged_by_the_tolerances_given(
    model: Path, rollouts: pl.DataFrame, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "off.parquet"
    rollouts.with_columns(pl.col("logprobs").list.eval(pl.element() - 0.01)).write_parquet(path)
    for given in ([], ["--tolerance", "0.001"], ["--mean", "0.001", "--k3", "0.1"]):
        assert main(["check", str(model), str(path), *given]) == 2
        assert capsys.readouterr().err.count("above ") == 1
    assert main(["check", str(model), str(path), "--mean", "0.02", "--k3", "1e-3", "--quantile", "0.02"]) == 0
    assert "agree to 0.01 nats (mean 0.01, 0.99 quantile 0.01, k3 5e-05)" in capsys.readouterr().out


def test_what_cannot_be_compared_is_one_line(
    model: Path, recorded: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    aborted = tmp_path / "aborted.parquet"
    pl.read_parquet(recorded).with_columns(finish_reason=pl.lit("aborted")).write_parquet(aborted)
    for arguments in (
        [tmp_path / "nothing", recorded],
        [model, tmp_path / "nothing.parquet"],
        [model, aborted],
        [model, recorded, "--temperature", "0"],
    ):
        assert main(["check", *map(str, arguments)]) == 2
        assert capsys.readouterr().err.count("error: ") == 1
