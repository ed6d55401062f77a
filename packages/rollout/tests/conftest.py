"""A tiny random model with a tokenizer, problems for it, and what its log-probabilities should be."""

import os
import shutil
import sys
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from isocompute.rollout import Sampling, open_sampler
from isocompute.rollout.contract import tables
from isocompute.rollout.samplers.base import Feed
from isocompute.rollout.samplers.sampling import Draw, Request

# Helpers of several folders of tests, and the tests that several samplers share.
sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent / "samplers")]
pytest.register_assert_rewrite("every_sampler", "every_sync")


class Tiny:
    """A Llama of two layers over digits, signs and the bytes of two characters, é and 😀; its head may be tied."""

    sampling = Sampling(max_new_tokens=8, max_prompt_tokens=8)
    problems = pl.DataFrame(
        {
            "problem_id": [f"p{i}" for i in range(6)],
            "prompt": ["1+1=", "2+2=", "1+2-1=", "2-1=", "1=", "2+1+1="],
            "answer": "2",
            "verifier": "exact",
            "source": "s",
            "split": ["train"] * 4 + ["validation"] * 2,
        }
    )

    def __init__(self, folder: Path, *, tied: bool = False) -> None:
        self.folder, self.tied = folder, tied
        self.save(folder, seed=0)

    @cached_property
    def tokenizer(self) -> Any:
        """Its tokenizer, which gives a character that it does not know as bytes."""
        import transformers

        return transformers.AutoTokenizer.from_pretrained(self.folder)

    def ids(self, text: str) -> list[int]:
        """Tokens of a plain prompt."""
        return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def save(self, folder: Path, *, seed: int) -> Any:
        """Save the model with other random weights, and return it."""
        import torch
        import transformers
        from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

        byte_tokens = [f"<0x{byte:02X}>" for byte in "é😀".encode()]
        vocabulary = ("<pad>", "<eos>", *"0123456789+-=", *byte_tokens)
        inner = Tokenizer(
            models.BPE({t: i for i, t in enumerate(vocabulary)}, [], unk_token="<pad>", byte_fallback=True)
        )
        inner.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
        inner.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
        transformers.PreTrainedTokenizerFast(
            tokenizer_object=inner, pad_token="<pad>", eos_token="<eos>"
        ).save_pretrained(folder)
        torch.manual_seed(seed)
        config = transformers.LlamaConfig(
            vocab_size=len(vocabulary),
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=1,
            max_position_embeddings=512,
            tie_word_embeddings=self.tied,
            initializer_range=0.3,
            eos_token_id=1,
            pad_token_id=0,
            bos_token_id=None,
        )
        policy = transformers.LlamaForCausalLM(config).eval()
        policy.save_pretrained(folder)
        return policy

    def requests(self, count: int, *, length: int = 8, prompt: str = "1+1=") -> list[Request]:
        """Requests for one prompt, with a seed each."""
        ids = self.ids(prompt)
        return [Request(prompt_ids=ids, seed=seed, max_new_tokens=length) for seed in range(count)]

    def sample(
        self, sampler: Any, problems: pl.DataFrame | None = None, samples: int = 4, **other: Any
    ) -> pl.DataFrame:
        """Return a checked ``rollouts`` table."""
        draw = {"seed": 3, "step": 1, "phase": "train", "run_id": "r"} | other
        rollouts = sampler.sample(self.problems if problems is None else problems, samples=samples, **draw)
        return tables.check(rollouts, "rollouts", where="sampled")

    def sample_fed(self, sampler: Any, samples: int = 4) -> pl.DataFrame:
        """Return the same table, for which the sampler is given another problem whenever a response has finished."""
        feed, parts = Feed(), [self.problems[row : row + 1] for row in range(len(self.problems))]
        draw = Draw(samples=samples, seed=3, step=1, run_id="r")
        feed.add(parts.pop(), draw)
        groups = []
        for group in sampler.answer(feed):
            groups += [] if group is None else [pl.DataFrame(group)]
            if parts:
                feed.add(parts.pop(), draw)
        assert not feed.unfinished
        return pl.concat(groups).sort("problem_id", "sample")

    def largest_difference(self, *compared: Any) -> float:
        """The largest of ``differences``."""
        return max(self.differences(*compared), default=0.0)

    def differences(self, policy: Any, rollouts: pl.DataFrame, sampling: Sampling | None = None) -> list[float]:
        """Compare a table's log-probabilities with those that a model gives its tokens under ``sampling``.

        What was not sampled but inserted has log-probability 0.
        """
        import torch
        from isocompute.rollout.samplers.transformers import distribution

        found = []
        for row in rollouts.iter_rows(named=True):
            assert len(row["response_ids"]) == len(row["logprobs"])
            ids = torch.tensor([row["prompt_ids"] + row["response_ids"]])
            with torch.no_grad():
                scores = distribution(policy(ids).logits[0], sampling or self.sampling)
            begin, sampled = len(row["prompt_ids"]), row.get("sampled") or [True] * len(row["response_ids"])
            for i, token in enumerate(row["response_ids"]):
                expected = float(scores[begin + i - 1, token]) if sampled[i] else 0.0
                found.append(abs(expected - row["logprobs"][i]))
        return found


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    """The model in a folder of its own."""
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    return Tiny(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="session")
def tied_tiny(tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    """The model with an output head that is its embedding."""
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    return Tiny(tmp_path_factory.mktemp("tied"), tied=True)


@pytest.fixture(scope="session")
def vllm_sampler(tiny: Tiny) -> Iterator[Any]:
    """An engine in this process with the model's own weights; a test that syncs it restores them."""
    pytest.importorskip("vllm")
    opened = open_sampler("vllm", str(tiny.folder), tiny.sampling)
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A Ray cluster for the replicas of a file; it ends with the file, since another package's tests would join it."""
    ray = pytest.importorskip("ray")
    pytest.importorskip("torch")
    import hashed

    with pytest.MonkeyPatch.context() as patch:
        # A worker for each processor, of which most would never be used.
        patch.setenv("RAY_prestart_worker_first_driver", "0")
        ray.init(num_cpus=12, include_dashboard=False, object_store_memory=128 * 2**20, log_to_driver=False)
    ray.cloudpickle.register_pickle_by_value(hashed)
    yield ray
    ray.shutdown()


@pytest.fixture(scope="session")
def server_url(tiny: Tiny, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server with the tiny model: vLLM's own in ``nox -s faults``, which costs a minute, else one that speaks so."""
    from serving import Served, Stub

    if "ISOCOMPUTE_ROLLOUT_FAULTS" in os.environ:
        server = Served(tiny.folder, tmp_path_factory.mktemp("server"))
    else:
        server = Stub(open_sampler("transformers", str(tiny.folder), Sampling()))
    yield server.url
    server.end()


@pytest.fixture(scope="session")
def chat_tiny(tiny: Tiny, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the tiny model whose tokenizer has the server's chat template."""
    from serving import TEMPLATE

    folder = tmp_path_factory.mktemp("chat") / "model"
    shutil.copytree(tiny.folder, folder)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return folder
