"""Samplers that make prompts, rewards and tables in this process; subclasses generate."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import polars as pl

from ..errors import RolloutError
from ..scoring.metadata import metadata_of
from ..scoring.verifiers import Verifier, verifier
from ..seeds import response_seed
from .base import Sampler
from .manifest import Shapes, check_shapes, manifest
from .models import load_tokenizer
from .sampling import Draw, Request, Response, Sampling
from .table import rollouts_table


class LocalSampler(Sampler):
    """A sampler with a tokenizer of its own; a subclass turns requests into responses (``_generate``).

    Args:
        model: Directory or name of a model in the Hugging Face format.
        sampling: How responses are sampled.

    Raises:
        RolloutError: The tokenizer cannot be loaded.
    """

    def __init__(self, model: str | Path, sampling: Sampling) -> None:
        super().__init__(model, sampling)
        self.tokenizer = load_tokenizer(self.model)
        self._shapes: Shapes | None = None
        self._prompts: dict[str, list[int]] = {}

    def check(self, given: Iterable[tuple[str, tuple[int, ...]]]) -> None:
        """Compare the names and shapes that a sync brings with the model's.

        Raises:
            RolloutError: They differ.
        """
        if self._shapes is None:
            self._shapes = manifest(self.model)
        check_shapes(self._shapes, given)

    def _answer(self, problems: pl.DataFrame, draw: Draw) -> pl.DataFrame:
        problems = problems.sort("problem_id")
        rules = [verifier(name) for name in problems["verifier"].to_list()]
        ids = problems["problem_id"].to_list()
        prompts = [self._prompt(i, text) for i, text in zip(ids, problems["prompt"].to_list(), strict=True)]
        requests = [
            Request(prompt_ids=prompt, seed=response_seed(draw.seed, draw.phase, draw.step, problem_id, sample))
            for problem_id, prompt in zip(ids, prompts, strict=True)
            for sample in range(draw.first_sample, draw.first_sample + draw.samples)
        ]
        responses = self._generate(requests)
        rewards = self._rewards(problems, rules, responses, draw.samples)
        return rollouts_table(ids, requests, responses, rewards, draw=draw, version=self._version)

    def _generate(self, requests: list[Request]) -> list[Response]:
        """Return one response per request, in their order."""
        raise NotImplementedError

    def _prompt(self, problem_id: str, text: str) -> list[int]:
        """Return the token ids of a prompt."""
        # By text: two tables may give one id to two prompts.
        if text not in self._prompts:
            ids = list(self.tokenizer(text, add_special_tokens=False)["input_ids"])
            if not 0 < len(ids) <= self.sampling.max_prompt_tokens:
                raise RolloutError(
                    f"problem {problem_id} has a prompt of {len(ids)} tokens; it must have between 1 and "
                    f"max_prompt_tokens = {self.sampling.max_prompt_tokens}"
                )
            self._prompts[text] = ids
        return self._prompts[text]

    def _rewards(
        self, problems: pl.DataFrame, rules: Sequence[Verifier], responses: Sequence[Response], samples: int
    ) -> list[float]:
        """Return 1 for each right response and 0 for each other one; an aborted one is not right."""
        # Batch decoding is several times cheaper than one call per response.
        texts = self.tokenizer.batch_decode([list(r.ids) for r in responses], skip_special_tokens=True)
        answers, metadata = problems["answer"].to_list(), metadata_of(problems)
        rows = (i // samples for i in range(len(responses)))
        return [
            float(response.finish_reason != "aborted" and rules[row](text, answers[row], metadata[row]))
            for row, text, response in zip(rows, texts, responses, strict=True)
        ]
