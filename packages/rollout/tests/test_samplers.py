"""Real engines on a tiny random model: seeds, log-probabilities, syncs."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from isocompute.rollout import RolloutError, Sampling, open_sampler, tables  # noqa: E402

SAMPLING = Sampling(max_new_tokens=8, max_prompt_tokens=8)
PROBLEMS = pl.DataFrame(
    {
        "problem_id": [f"p{i}" for i in range(6)], "prompt": ["1+1=", "2+2=", "1+2-1=", "2-1=", "1=", "2+1+1="],
        "answer": "2", "verifier": "exact", "source": "s", "split": "train",
    }
)  # fmt: skip


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

    folder = tmp_path_factory.mktemp("model")
    letters = ("<pad>", "<eos>", *"0123456789+-=")
    inner = Tokenizer(models.WordLevel({t: i for i, t in enumerate(letters)}, unk_token="<pad>"))
    inner.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    inner.decoder = decoders.Fuse()
    transformers.PreTrainedTokenizerFast(tokenizer_object=inner, pad_token="<pad>", eos_token="<eos>").save_pretrained(
        folder
    )
    save_model(folder, seed=0)
    return folder


def save_model(folder: Path, *, seed: int) -> Any:
    torch.manual_seed(seed)
    config = transformers.LlamaConfig(
        vocab_size=15, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=1,
        max_position_embeddings=64, tie_word_embeddings=False, initializer_range=0.3, eos_token_id=1,
        pad_token_id=0, bos_token_id=None,
    )  # fmt: skip
    policy = transformers.LlamaForCausalLM(config).eval()
    policy.save_pretrained(folder)
    return policy


@pytest.fixture(scope="module", params=["vllm", "transformers"])
def sampler(request: pytest.FixtureRequest, model: Path) -> Iterator[Any]:
    if request.param == "vllm":
        pytest.importorskip("vllm")
    opened = open_sampler(request.param, str(model), SAMPLING)
    yield opened
    opened.close()


def sample(sampler: Any, problems: pl.DataFrame = PROBLEMS, samples: int = 4, **other: Any) -> pl.DataFrame:
    asked = {"seed": 3, "step": 1, "phase": "train", "run_id": "r"} | other
    return tables.check(sampler.sample(problems, samples=samples, **asked), "rollouts", where="sampled")


def largest_difference(policy: Any, rollouts: pl.DataFrame) -> float:
    worst = 0.0
    for row in rollouts.iter_rows(named=True):
        ids = torch.tensor([row["prompt_ids"] + row["response_ids"]])
        with torch.no_grad():
            scores = torch.log_softmax(policy(ids).logits[0], -1)
        begin = len(row["prompt_ids"])
        for i, token in enumerate(row["response_ids"]):
            worst = max(worst, abs(float(scores[begin + i - 1, token]) - row["logprobs"][i]))
    return worst


def test_tokens_do_not_depend_on_the_batch(sampler: Any) -> None:
    whole = sample(sampler)
    parts = [sample(sampler, PROBLEMS[i : i + 1]) for i in reversed(range(len(PROBLEMS)))]
    apart = tables.concat(parts, "rollouts")
    assert whole["response_ids"].to_list() == apart["response_ids"].to_list()
    fewer = sample(sampler, samples=2)
    assert fewer["response_ids"].to_list() == whole.filter(pl.col("sample") < 2)["response_ids"].to_list()


def test_another_step_or_seed_gives_other_tokens(sampler: Any) -> None:
    first = sample(sampler)["response_ids"].to_list()
    assert sample(sampler, step=2)["response_ids"].to_list() != first
    assert sample(sampler, seed=4)["response_ids"].to_list() != first


def test_log_probabilities_are_the_models_after_every_sync(sampler: Any, model: Path, tmp_path: Path) -> None:
    assert sampler.weights_version == 0
    for version, seed in ((1, 5), (2, 6), (3, 0)):
        policy = save_model(tmp_path, seed=seed)
        before = sample(sampler)
        sampler.sync(policy.state_dict().items(), version)
        after = sample(sampler)
        assert set(after["weights_version"]) == {version}
        assert after["response_ids"].to_list() != before["response_ids"].to_list()
        assert largest_difference(policy, after) < 1e-4
    # Seed 0 is the model's own: later tests meet it as they would have.


def test_stopped_responses_end_with_the_stop_token(sampler: Any) -> None:
    rollouts = sample(sampler, samples=16)
    for row in rollouts.iter_rows(named=True):
        assert (row["response_ids"][-1] == 1) == (row["finish_reason"] == "stop")
        assert 1 not in row["response_ids"][:-1]
    assert set(rollouts["finish_reason"]) == {"stop", "length"}


def test_a_prompt_that_is_too_long_is_named(sampler: Any) -> None:
    long = PROBLEMS.head(1).with_columns(prompt=pl.lit("1+1+1+1+1="), problem_id=pl.lit("long"))
    with pytest.raises(RolloutError, match=r"problem long has a prompt of 10 tokens"):
        sample(sampler, long)


def test_a_model_that_cannot_be_loaded_is_named(tmp_path: Path) -> None:
    with pytest.raises(RolloutError, match="cannot be loaded"):
        open_sampler("transformers", str(tmp_path), SAMPLING)
