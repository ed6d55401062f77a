"""What all samplers share: settings, prompts, and the making of the ``rollouts`` table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
import pyarrow as pa

from ..errors import RolloutError
from ..seeds import response_seed
from ..verifiers import verifier

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How responses are sampled.

    Attributes:
        temperature: Softmax temperature, above 0.
        max_new_tokens: Longest response (tokens), its end-of-sequence token included.
        max_prompt_tokens: Longest prompt (tokens).

    Raises:
        RolloutError: A value is out of its range.
    """

    temperature: float = 1.0
    max_new_tokens: int = 16
    max_prompt_tokens: int = 48

    def __post_init__(self) -> None:
        if not 0 < self.temperature < 100:
            raise RolloutError(f"temperature is {self.temperature}; it has to lie above 0 and below 100")
        for name in ("max_new_tokens", "max_prompt_tokens"):
            if getattr(self, name) < 1:
                raise RolloutError(f"{name} is {getattr(self, name)}; it has to be at least 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One response to be sampled: its prompt tokens and its own seed."""

    prompt_ids: list[int]
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Response:
    """One response: tokens, their log-probabilities (nats), and why it ended (stop, length, aborted)."""

    ids: Sequence[int]
    logprobs: Sequence[float]
    finish_reason: str


class LocalSampler:
    """A sampler that this process makes prompts and tables for; subclasses generate and sync."""

    def __init__(self, model: str | Path, sampling: Sampling) -> None:
        self.model = str(model)
        self.sampling = sampling
        self.tokenizer = load_tokenizer(self.model)
        self._version = 0
        self._prompts: dict[str, list[int]] = {}

    @property
    def weights_version(self) -> int:
        """Version of the weights that sample; 0 are the model's own."""
        return self._version

    def sample(
        self,
        problems: pl.DataFrame,
        *,
        samples: int,
        seed: int,
        step: int,
        phase: str = "train",
        run_id: str = "",
    ) -> pl.DataFrame:
        """Answer each problem ``samples`` times.

        Args:
            problems: A ``problems`` table.
            samples: Responses per problem.
            seed: The run's seed; every response's own is derived from it (``seeds.response_seed``).
            step: Update step the responses are for (cumulative rollouts for phase ``eval``).
            phase: ``train`` or ``eval``.
            run_id: The run.

        Returns:
            The ``rollouts`` table sorted by problem and sample. ``response_ids`` holds the end-of-sequence
            token where it was sampled, since stopping is learnt too.

        Raises:
            RolloutError: A prompt is longer than ``max_prompt_tokens``.
        """
        problems = problems.sort("problem_id")
        ids = problems["problem_id"].to_list()
        prompts = [self._prompt(i, text) for i, text in zip(ids, problems["prompt"].to_list(), strict=True)]
        requests = [
            Request(prompt_ids=prompt, seed=response_seed(seed, phase, step, problem_id, sample))
            for problem_id, prompt in zip(ids, prompts, strict=True)
            for sample in range(samples)
        ]
        responses = self._generate(requests)
        rewards = self._rewards(problems, responses, samples)
        return _table(
            requests,
            responses,
            rewards,
            ids,
            samples,
            step=step,
            phase=phase,
            run_id=run_id,
            version=self._version,
        )

    def sync(self, weights: Any, version: int) -> None:
        """Take over weights by their Hugging Face names, and stamp what is sampled with ``version``."""
        self._load(weights)
        self._version = version

    def close(self) -> None:
        """Free the engine."""

    def _generate(self, requests: list[Request]) -> list[Response]:
        raise AttributeError("a sampler says how it generates")

    def _load(self, weights: Any) -> None:
        raise AttributeError("a sampler says how it loads weights")

    def _prompt(self, problem_id: str, text: str) -> list[int]:
        if problem_id not in self._prompts:
            ids = list(self.tokenizer(text, add_special_tokens=False)["input_ids"])
            if not 0 < len(ids) <= self.sampling.max_prompt_tokens:
                raise RolloutError(
                    f"problem {problem_id} has a prompt of {len(ids)} tokens; it has to have between 1 and "
                    f"max_prompt_tokens = {self.sampling.max_prompt_tokens}"
                )
            self._prompts[problem_id] = ids
        return self._prompts[problem_id]

    def _rewards(self, problems: pl.DataFrame, responses: list[Response], samples: int) -> list[float]:
        # Batch decoding is several times cheaper than one call a response.
        texts = self.tokenizer.batch_decode([list(r.ids) for r in responses], skip_special_tokens=True)
        rules = [verifier(name) for name in problems["verifier"].to_list()]
        answers = problems["answer"].to_list()
        return [
            float(response.finish_reason != "aborted" and rules[i // samples](text, answers[i // samples]))
            for i, (text, response) in enumerate(zip(texts, responses, strict=True))
        ]


def load_tokenizer(model: str) -> Any:
    """Load a model's tokenizer.

    Raises:
        RolloutError: transformers is not installed, or the tokenizer cannot be loaded.
    """
    try:
        from transformers import AutoTokenizer
    except ImportError:
        raise RolloutError('transformers is not installed: pip install "isocompute-rollout[transformers]"') from None
    if Path(model).is_absolute() and not Path(model).is_dir():
        raise RolloutError(f"the base model {model} cannot be loaded (there is no such folder)")
    try:
        return AutoTokenizer.from_pretrained(model)
    except Exception as error:
        # Damaged files raise whatever the library that reads them raises.
        raise not_loaded(model, error) from None


def check_folder(model: str | Path) -> None:
    """Refuse a folder that holds no model; libraries go on to look for one of its name on the hub.

    Raises:
        RolloutError: The folder has no ``config.json``.
    """
    if Path(model).is_dir() and not (Path(model) / "config.json").is_file():
        raise RolloutError(f"the base model {model} cannot be loaded (its folder holds no config.json)")


def not_loaded(model: str, error: BaseException) -> RolloutError:
    """Return what to raise for a model that a library could not load, with the first words of its reason."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return RolloutError(f"the base model {model} cannot be loaded ({lines[0] if lines else type(error).__name__})")


def named_tensors(weights: Any) -> list[tuple[str, torch.Tensor]]:
    """Weights as a list, whatever they came as."""
    return list(weights.items() if hasattr(weights, "items") else weights)


def _table(
    requests: list[Request],
    responses: list[Response],
    rewards: list[float],
    problem_ids: list[str],
    samples: int,
    *,
    step: int,
    phase: str,
    run_id: str,
    version: int,
) -> pl.DataFrame:
    """Build the table column by column; no Python object per row and column."""
    rows = len(responses)
    return pl.DataFrame(
        {
            "run_id": pl.repeat(run_id, rows, dtype=pl.String, eager=True),
            "step": pl.repeat(step, rows, dtype=pl.Int64, eager=True),
            "phase": pl.repeat(phase, rows, dtype=pl.String, eager=True),
            "problem_id": pl.Series(np.repeat(np.array(problem_ids, dtype=object), samples), dtype=pl.String),
            "sample": pl.Series(np.tile(np.arange(samples, dtype=np.int32), len(problem_ids))),
            "prompt_ids": _lists([r.prompt_ids for r in requests], np.int32),
            "response_ids": _lists([r.ids for r in responses], np.int32),
            "logprobs": _lists([r.logprobs for r in responses], np.float32),
            "reward": pl.Series(rewards, dtype=pl.Float32),
            "finish_reason": pl.Series([r.finish_reason for r in responses], dtype=pl.String),
            "weights_version": pl.repeat(version, rows, dtype=pl.Int64, eager=True),
        }
    )


def _lists(rows: list[Any], dtype: Any) -> pl.Series:
    offsets = np.zeros(len(rows) + 1, dtype=np.int64)
    np.cumsum([len(r) for r in rows], out=offsets[1:])
    values = np.fromiter((v for r in rows for v in r), dtype=dtype, count=int(offsets[-1]))
    array = pa.LargeListArray.from_arrays(pa.array(offsets), pa.array(values))
    return pl.Series(pl.from_arrow(array))
