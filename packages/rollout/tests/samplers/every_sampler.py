"""What every sampler in this process does: seeds, log-probabilities, syncs, rewards, errors.

The files that import these tests define ``kind``, the name of a sampler, and ``sampler``, one that is open.
"""

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from isocompute.rollout import RolloutError, tables
from isocompute.rollout.cli import main


def test_tokens_do_not_depend_on_the_batch(sampler: Any, tiny: Any) -> None:
    whole = tiny.sample(sampler)
    parts = [tiny.sample(sampler, tiny.problems[i : i + 1]) for i in reversed(range(len(tiny.problems)))]
    joined = tables.concat(parts, "rollouts")
    assert whole["response_ids"].to_list() == joined["response_ids"].to_list()
    fewer = tiny.sample(sampler, samples=2)
    assert fewer["response_ids"].to_list() == whole.filter(pl.col("sample") < 2)["response_ids"].to_list()


def test_another_step_or_seed_gives_other_tokens(sampler: Any, tiny: Any) -> None:
    first = tiny.sample(sampler)["response_ids"].to_list()
    assert tiny.sample(sampler, step=2)["response_ids"].to_list() != first
    assert tiny.sample(sampler, seed=4)["response_ids"].to_list() != first


def test_log_probabilities_are_the_models_after_every_sync(sampler: Any, tiny: Any, tmp_path: Path) -> None:
    assert sampler.weights_version == 0
    for version, seed in ((1, 5), (2, 6), (3, 0)):
        policy = tiny.save(tmp_path, seed=seed)
        before = tiny.sample(sampler)
        sampler.sync(policy.state_dict().items(), version)
        after = tiny.sample(sampler)
        assert set(after["weights_version"]) == {version}
        assert after["response_ids"].to_list() != before["response_ids"].to_list()
        assert tiny.largest_difference(policy, after) < 1e-4
    # Seed 0 gives the model's own weights, which later tests expect.


def test_stopped_responses_end_with_the_stop_token(sampler: Any, tiny: Any) -> None:
    rollouts = tiny.sample(sampler, samples=16)
    for row in rollouts.iter_rows(named=True):
        assert (row["response_ids"][-1] == 1) == (row["finish_reason"] == "stop")
        assert 1 not in row["response_ids"][:-1]
    assert set(rollouts["finish_reason"]) == {"stop", "length"}


def test_a_prompt_that_is_too_long_is_named(sampler: Any, tiny: Any) -> None:
    long = tiny.problems.head(1).with_columns(prompt=pl.lit("1+1+1+1+1="), problem_id=pl.lit("long"))
    with pytest.raises(RolloutError, match=r"problem long has a prompt of 10 tokens"):
        tiny.sample(sampler, long)


def test_a_sync_that_is_not_the_whole_model_is_refused_and_blocks_sampling(sampler: Any, tiny: Any) -> None:
    import torch

    policy = tiny.save(tiny.folder, seed=0)
    whole = dict(policy.state_dict())
    before, version = tiny.sample(sampler), sampler.weights_version
    last = list(whole)[-1]
    wrong = {
        f"a sync lacks the tensor {last}": {k: v for k, v in whole.items() if k != last},
        r"a sync lacks the tensor .* and \d+ more": {},
        "brings the tensor model.norm.nonsense, which the model does not have": whole
        | {"model.norm.nonsense": torch.zeros(1)},
        r"brings the tensor model.norm.weight as \(1,\); the model has it as \(32,\)": whole
        | {"model.norm.weight": torch.zeros(1)},
    }
    for message, weights in wrong.items():
        with pytest.raises(RolloutError, match=message):
            sampler.sync(weights, version + 1)
        with pytest.raises(RolloutError, match="the last sync failed"):
            tiny.sample(sampler)
    with pytest.raises(RolloutError, match=r"brings the tensor .* twice"):
        sampler.sync([*whole.items(), (last, whole[last])], version + 1)
    sampler.sync(whole, version + 1)
    after = tiny.sample(sampler)
    assert sampler.weights_version == version + 1
    assert after["response_ids"].to_list() == before["response_ids"].to_list()


def test_weights_that_end_in_an_error_block_sampling(sampler: Any, tiny: Any) -> None:
    whole = dict(tiny.save(tiny.folder, seed=0).state_dict())

    def torn() -> Any:
        yield from list(whole.items())[:3]
        raise OSError("the disk is gone")

    with pytest.raises(OSError, match="the disk is gone"):
        sampler.sync(torn(), 9)
    with pytest.raises(RolloutError, match="the last sync failed"):
        tiny.sample(sampler)
    sampler.sync(whole, 9)
    assert len(tiny.sample(sampler)) == 24


def test_a_second_table_with_the_same_ids_is_answered_with_its_own_prompts(sampler: Any, tiny: Any) -> None:
    first = tiny.sample(sampler)
    other = tiny.problems.with_columns(prompt=pl.lit("9-9="))
    second = tiny.sample(sampler, other)
    ids = sampler.tokenizer("9-9=", add_special_tokens=False)["input_ids"]
    assert second["prompt_ids"].to_list() == [ids] * len(second)
    assert tiny.sample(sampler).equals(first)


def test_later_samples_are_those_that_more_samples_would_have(sampler: Any, tiny: Any) -> None:
    whole, later = tiny.sample(sampler, samples=4), tiny.sample(sampler, samples=2, first_sample=2)
    same = ["problem_id", "sample", "prompt_ids", "response_ids", "reward", "finish_reason"]
    assert later.select(same).equals(whole.filter(pl.col("sample") >= 2).select(same))


def test_rewards_use_the_metadata_of_a_problem(sampler: Any, tiny: Any) -> None:
    pytest.importorskip("reasoning_gym")
    problems = tiny.problems.with_columns(verifier=pl.lit("reasoning_gym:number_format"), answer=pl.lit("2"))
    sums = {}
    for solution in (2, -1):
        known = problems.with_columns(metadata=pl.lit(json.dumps({"metadata": {"solution": solution}})))
        rollouts = tiny.sample(sampler, known, samples=64)
        texts = sampler.tokenizer.batch_decode(rollouts["response_ids"].to_list(), skip_special_tokens=True)
        right = [text.strip().isdigit() and int(text) == solution for text in texts]
        assert all(reward == 1 for reward, expected in zip(rollouts["reward"], right, strict=True) if expected)
        sums[solution] = rollouts["reward"].sum()
    assert sums[2] != sums[-1]
    for without in (problems, problems.with_columns(metadata=pl.lit(None, dtype=pl.String))):
        with pytest.raises(RolloutError, match="number_format needs the metadata"):
            tiny.sample(sampler, without)


def test_refused_tasks_are_refused_before_anything_is_sampled(
    sampler: Any, tiny: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sampler, "_generate", None)
    with pytest.raises(RolloutError, match="task spiral_matrix is refused"):
        tiny.sample(sampler, tiny.problems.with_columns(verifier=pl.lit("reasoning_gym:spiral_matrix")))


def test_top_p_samples_from_the_most_probable_tokens_only(
    sampler: Any, tiny: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    policy = tiny.save(tiny.folder, seed=0)
    with monkeypatch.context() as patch:
        patch.setattr(sampler, "sampling", dataclasses.replace(tiny.sampling, top_p=0.5))
        rollouts = tiny.sample(sampler, samples=8)
    assert rollouts["response_ids"].to_list() != tiny.sample(sampler, samples=8)["response_ids"].to_list()
    for row in rollouts.iter_rows(named=True):
        ids = torch.tensor([row["prompt_ids"] + row["response_ids"]])
        with torch.no_grad():
            chances = torch.softmax(policy(ids).logits[0].double(), -1)
        begin = len(row["prompt_ids"]) - 1
        for place, token in enumerate(row["response_ids"]):
            ordered, tokens = chances[begin + place].sort(descending=True)
            count = int((ordered.cumsum(0) - ordered < 0.5).sum())
            nucleus = dict(
                zip(tokens[:count].tolist(), (ordered[:count] / ordered[:count].sum()).tolist(), strict=True)
            )
            assert token in nucleus
            assert abs(torch.tensor(nucleus[token]).log().item() - row["logprobs"][place]) < 1e-4


def damaged(tiny: Any, folder: Path, how: str) -> Path:
    """A base model that cannot be loaded."""
    model = folder / "model"
    if how == "missing":
        return model
    shutil.copytree(tiny.folder, model)
    if how == "without a config":
        (model / "config.json").unlink()
    else:
        weights = model / "model.safetensors"
        weights.write_bytes(b"\xff" * 100 + weights.read_bytes()[100:])
    return model


@pytest.mark.parametrize("how", ["missing", "without a config", "corrupted"])
def test_a_base_model_that_cannot_be_loaded_is_one_line(
    kind: str, how: str, tiny: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    model = damaged(tiny, tmp_path, how)
    tiny.problems.write_parquet(tmp_path / "problems.parquet")
    asked = ["generate", "--model", str(model), "--sampler", kind, "--problems", str(tmp_path / "problems.parquet"),
             "--out", str(tmp_path / "rollouts.parquet")]  # fmt: skip
    assert main(asked) == 2
    stderr = capfd.readouterr().err
    assert "Traceback" not in stderr
    assert [
        line for line in stderr.splitlines() if line.startswith(f"error: the base model {model} cannot be loaded (")
    ]
    assert not (tmp_path / "rollouts.parquet").exists()
