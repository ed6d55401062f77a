"""A tiny random model with a tokenizer, problems for it, and what its log-probabilities should be."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from isocompute.rollout import Sampling, open_sampler, tables


class Tiny:
    """A Llama of two layers with untied embeddings over digits and signs."""

    sampling = Sampling(max_new_tokens=8, max_prompt_tokens=8)
    problems = pl.DataFrame(
        {
            "problem_id": [f"p{i}" for i in range(6)],
            "prompt": ["1+1=", "2+2=", "1+2-1=", "2-1=", "1=", "2+1+1="],
            "answer": "2", "verifier": "exact", "source": "s", "split": ["train"] * 4 + ["validation"] * 2,
        }
    )  # fmt: skip

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.save(folder, seed=0)

    def save(self, folder: Path, *, seed: int) -> Any:
        """Save the model with other random weights, and return it."""
        import torch
        import transformers
        from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

        vocabulary = ("<pad>", "<eos>", *"0123456789+-=")
        inner = Tokenizer(models.WordLevel({t: i for i, t in enumerate(vocabulary)}, unk_token="<pad>"))
        inner.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
        inner.decoder = decoders.Fuse()
        transformers.PreTrainedTokenizerFast(
            tokenizer_object=inner, pad_token="<pad>", eos_token="<eos>"
        ).save_pretrained(folder)
        torch.manual_seed(seed)
        config = transformers.LlamaConfig(
            vocab_size=15, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=1,
            max_position_embeddings=64, tie_word_embeddings=False, initializer_range=0.3, eos_token_id=1,
            pad_token_id=0, bos_token_id=None,
        )  # fmt: skip
        policy = transformers.LlamaForCausalLM(config).eval()
        policy.save_pretrained(folder)
        return policy

    def sample(
        self, sampler: Any, problems: pl.DataFrame | None = None, samples: int = 4, **other: Any
    ) -> pl.DataFrame:
        """Return a checked ``rollouts`` table."""
        draw = {"seed": 3, "step": 1, "phase": "train", "run_id": "r"} | other
        rollouts = sampler.sample(self.problems if problems is None else problems, samples=samples, **draw)
        return tables.check(rollouts, "rollouts", where="sampled")

    def largest_difference(self, policy: Any, rollouts: pl.DataFrame) -> float:
        """Compare a table's log-probabilities with those that a model gives its tokens."""
        import torch

        worst = 0.0
        for row in rollouts.iter_rows(named=True):
            assert len(row["response_ids"]) == len(row["logprobs"])
            ids = torch.tensor([row["prompt_ids"] + row["response_ids"]])
            with torch.no_grad():
                scores = torch.log_softmax(policy(ids).logits[0], -1)
            begin = len(row["prompt_ids"])
            for i, token in enumerate(row["response_ids"]):
                worst = max(worst, abs(float(scores[begin + i - 1, token]) - row["logprobs"][i]))
        return worst


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    """The model in a folder of its own."""
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    return Tiny(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="session")
def vllm_sampler(tiny: Tiny) -> Iterator[Any]:
    """An engine in this process with the model's own weights; a test that syncs it restores them."""
    pytest.importorskip("vllm")
    opened = open_sampler("vllm", str(tiny.folder), tiny.sampling)
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A Ray cluster of two cores, one per test file."""
    ray = pytest.importorskip("ray")
    ray.init(num_cpus=2, include_dashboard=False, object_store_memory=128 * 2**20, log_to_driver=False)
    yield ray
    ray.shutdown()
