"""What all samplers share: settings, prompts, and the making of the ``rollouts`` table."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
import pyarrow as pa

from ..errors import RolloutError
from ..seeds import response_seed
from ..verifiers import Verifier, verifier
from .manifest import Shapes, check, manifest, not_loaded, shapes_of

if TYPE_CHECKING:
    import torch


NOT_WHOLE = "the latest sync failed, and the engine holds no whole model; sync it again"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How responses are sampled.

    Attributes:
        temperature: Softmax temperature, above 0.
        max_new_tokens: Longest response (tokens), its end-of-sequence token included.
        max_prompt_tokens: Longest prompt (tokens).
        top_p: Sample from the most probable tokens that together have this probability, above 0 and up to 1;
            log-probabilities are those of the distribution that is left.

    Raises:
        RolloutError: A value is out of its range.
    """

    temperature: float = 1.0
    max_new_tokens: int = 16
    max_prompt_tokens: int = 48
    top_p: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.temperature < 100:
            raise RolloutError(f"temperature is {self.temperature}; it has to lie above 0 and below 100")
        if not 0 < self.top_p <= 1:
            raise RolloutError(f"top_p is {self.top_p}; it must lie above 0 and be at most 1")
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
        self._whole = True
        self._shapes: Shapes | None = None
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
        first_sample: int = 0,
    ) -> pl.DataFrame:
        """Answer each problem ``samples`` times.

        Args:
            problems: A ``problems`` table.
            samples: Responses per problem.
            seed: The run's seed; every response's own is derived from it (``seeds.response_seed``).
            step: Update step the responses are for (cumulative rollouts for phase ``eval``).
            phase: What they are for: ``train``, ``eval``, ``difficulty``, ``baseline`` or ``canary``.
            run_id: The run.
            first_sample: Index of a problem's first response; above 0 where earlier tries have failed.

        Returns:
            The ``rollouts`` table sorted by problem and sample. ``response_ids`` holds the end-of-sequence
            token where it was sampled, since stopping is learnt too.

        Raises:
            RolloutError: A prompt is longer than ``max_prompt_tokens``, a verifier is unknown or refused, or the
                latest sync failed.
        """
        if not self._whole:
            raise RolloutError(NOT_WHOLE)
        rules = [verifier(name) for name in problems.sort("problem_id")["verifier"].to_list()]
        problems = problems.sort("problem_id")
        ids = problems["problem_id"].to_list()
        prompts = [self._prompt(i, text) for i, text in zip(ids, problems["prompt"].to_list(), strict=True)]
        requests = [
            Request(prompt_ids=prompt, seed=response_seed(seed, phase, step, problem_id, sample))
            for problem_id, prompt in zip(ids, prompts, strict=True)
            for sample in range(first_sample, first_sample + samples)
        ]
        responses = self._generate(requests)
        rewards = self._rewards(problems, rules, responses, samples)
        return _table(
            requests,
            responses,
            rewards,
            ids,
            samples,
            first_sample=first_sample,
            step=step,
            phase=phase,
            run_id=run_id,
            version=self._version,
        )

    def sync(self, weights: Any, version: int) -> None:
        """Take over weights by their Hugging Face names, and stamp what is sampled with ``version``.

        Raises:
            RolloutError: A tensor is missing, unknown or of another shape. After any failure nothing is sampled
                until a sync succeeds.
        """
        self._whole = False
        tensors = named_tensors(weights)
        self.check(shapes_of(tensors))
        self._load(tensors)
        self._version, self._whole = version, True

    def check(self, given: Iterable[tuple[str, tuple[int, ...]]]) -> None:
        """Compare the names and shapes that a sync brings with the model's.

        Raises:
            RolloutError: They differ.
        """
        if self._shapes is None:
            self._shapes = manifest(self.model)
        check(self._shapes, given)

    def close(self) -> None:
        """Free the engine."""

    def _generate(self, requests: list[Request]) -> list[Response]:
        raise AttributeError("a sampler says how it generates")

    def _load(self, weights: Any) -> None:
        raise AttributeError("a sampler says how it loads weights")

    def _prompt(self, problem_id: str, text: str) -> list[int]:
        # By text: two tables may give one id to two prompts.
        if text not in self._prompts:
            ids = list(self.tokenizer(text, add_special_tokens=False)["input_ids"])
            if not 0 < len(ids) <= self.sampling.max_prompt_tokens:
                raise RolloutError(
                    f"problem {problem_id} has a prompt of {len(ids)} tokens; it has to have between 1 and "
                    f"max_prompt_tokens = {self.sampling.max_prompt_tokens}"
                )
            self._prompts[text] = ids
        return self._prompts[text]

    def _rewards(
        self, problems: pl.DataFrame, rules: list[Verifier], responses: list[Response], samples: int
    ) -> list[float]:
        # Batch decoding is several times cheaper than one call a response.
        texts = self.tokenizer.batch_decode([list(r.ids) for r in responses], skip_special_tokens=True)
        answers, known = problems["answer"].to_list(), metadata_of(problems)
        return [
            float(response.finish_reason != "aborted" and rules[row](text, answers[row], known[row]))
            for row, text, response in zip((i // samples for i in range(len(responses))), texts, responses, strict=True)
        ]


def metadata_of(problems: pl.DataFrame) -> list[str]:
    """What each problem's verifier needs besides the answer; nothing where a table has no such column."""
    if "metadata" not in problems.columns:
        return [""] * len(problems)
    return [text or "" for text in problems["metadata"].to_list()]


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
    first_sample: int,
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
            "sample": pl.Series(
                np.tile(np.arange(first_sample, first_sample + samples, dtype=np.int32), len(problem_ids))
            ),
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
