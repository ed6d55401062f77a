"""Samplers that make prompts, rewards and tables in this process; subclasses generate."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa

from ..errors import ProblemError, RolloutError
from ..scoring.metadata import metadata_of
from ..scoring.scorer import Item, Scorer, Verdict, default_scorer
from ..seeds import response_seed
from .base import Sampler
from .control import controlled
from .faults import Faults
from .groups import Group, Layout
from .manifest import Manifest, manifest
from .models import load_tokenizer, stop_tokens
from .prompts import Prompting, PromptMaker
from .sampling import Continue, Draw, Finished, Request, Response, Sampling, as_it_is

PROBES = 4
"""Prompts of a probe."""
PROBE_TOKENS = 8
"""Tokens of each."""


class LocalSampler(Sampler):
    """A sampler with a tokenizer of its own; a subclass turns requests into responses (``_generate``).

    Args:
        scorer: Scores responses while others are generated; by default the one of this process.

    Raises:
        RolloutError: The tokenizer cannot be loaded.
    """

    retokenizes = False
    """Whether responses may come as text that is tokenized here; the table then says which did."""

    def __init__(
        self,
        model: str | Path,
        sampling: Sampling,
        *,
        prompting: Prompting | None = None,
        scorer: Scorer | None = None,
    ) -> None:
        super().__init__(model, sampling)
        self.tokenizer = load_tokenizer(self.model)
        self._prompting = prompting or Prompting()
        self.prompts = PromptMaker(self.tokenizer, self._prompting, max_prompt_tokens=sampling.max_prompt_tokens)
        self.scorer = scorer or default_scorer()
        self._ends = stop_tokens(self.model, self.tokenizer)
        self._manifest: Manifest | None = None

    @property
    def stop_token_ids(self) -> list[int]:
        """Tokens at which a response ends: the model's own and those asked for."""
        return sorted({*self._ends, *self.sampling.stop_token_ids})

    @property
    def manifest(self) -> Manifest:
        """Which tensors the model has; see ``Sampler.manifest``."""
        if self._manifest is None:
            self._manifest = manifest(self.model)
        return self._manifest

    def use(self, sampling: Sampling) -> None:
        """Sample differently from now on; see ``Sampler.use``."""
        super().use(sampling)
        self.prompts = PromptMaker(self.tokenizer, self._prompting, max_prompt_tokens=sampling.max_prompt_tokens)

    def lengths(self, problems: pl.DataFrame) -> list[int]:
        """Return the length of each problem's prompt (tokens); see ``Sampler.lengths``."""
        return [len(prompt) for prompt in self._checked(problems)]

    def probe(self) -> list[float]:
        """Return the log-probabilities of the most probable tokens after fixed prompts; see ``Sampler.probe``."""
        asked, length = self.sampling, min(PROBE_TOKENS, self.sampling.max_prompt_tokens)
        tokens = np.random.default_rng(0).integers(len(self.tokenizer), size=(PROBES, length))
        requests = [Request(prompt_ids=prompt, seed=0, max_new_tokens=1) for prompt in tokens.tolist()]
        self.sampling = Sampling(temperature=0.0, max_new_tokens=1, max_prompt_tokens=length)
        try:
            answered = dict(self._generate(requests, as_it_is))
        finally:
            self.sampling = asked
        return [float(answered[index].logprobs[0]) for index in range(PROBES)]

    def _checked(self, problems: pl.DataFrame) -> list[list[int]]:
        """Return the prompts of problems; refuse what cannot be answered or scored."""
        self.faults.check()
        self.scorer.check(problems["verifier"].to_list())
        named = zip(problems["problem_id"].to_list(), problems["prompt"].to_list(), strict=True)
        return [self.prompts.ids(problem_id, text) for problem_id, text in named]

    def _batches(self, problems: pl.DataFrame, draw: Draw) -> Iterator[pa.RecordBatch]:
        problems = problems.sort("problem_id")
        prompts = self._checked(problems)
        ids, texts = problems["problem_id"].to_list(), problems["prompt"].to_list()
        requests = [
            Request(
                prompt_ids=prompt,
                seed=response_seed(draw.seed, draw.phase, draw.step, problem_id, sample),
                max_new_tokens=self.sampling.max_new_tokens,
                messages=self.prompts.messages(text) if self.prompts.chat else (),
            )
            for problem_id, prompt, text in zip(ids, prompts, texts, strict=True)
            for sample in range(draw.first_sample, draw.first_sample + draw.samples)
        ]
        finished = self._generate(*self._control(requests))
        layout = self._layout()
        scoring = _Scoring(self.scorer, problems, self.faults)
        failure: RolloutError | None = None
        # Closed here and not when it is collected: an engine answers one stream at a time.
        with closing(finished):
            try:
                for group in self._groups(finished, ids, prompts, draw.samples):
                    scoring.submit(group)
                    for done, verdicts in scoring.ready():
                        yield self._rows(layout, done, verdicts, draw)
            except RolloutError as error:
                # Of an engine that fails, the groups that are whole are still handed out.
                failure = error
        for done, verdicts in scoring.rest():
            yield self._rows(layout, done, verdicts, draw)
        if failure is not None:
            raise failure

    def _rows(self, layout: Layout, group: Group, verdicts: Sequence[Verdict], draw: Draw) -> pa.RecordBatch:
        """Return the rows of a group; a penalty on length is taken off the rewards of right responses."""
        penalty = self.sampling.length_penalty
        if penalty is not None:
            verdicts = [
                replace(verdict, reward=penalty.reward(verdict.reward, tokens=len(response.ids), phase=draw.phase))
                for verdict, response in zip(verdicts, group.responses, strict=True)
            ]
        return layout.batch(group, verdicts, draw=draw, version=self._version)

    def _layout(self) -> Layout:
        return Layout(
            keep_text=self.sampling.keep_text,
            sampled=self.sampling.interruption is not None,
            retokenized=self.retokenizes,
        )

    def _control(self, requests: Sequence[Request]) -> tuple[list[Request], Continue]:
        """Return the requests to begin with, and what decides whether a response to one is finished."""
        return controlled(requests, self.sampling, self.tokenizer)

    def _generate(self, requests: Sequence[Request], control: Continue) -> Finished:
        """Yield the responses to requests as they finish, each once ``control`` takes it as finished.

        Closing the iterator early must free what the unfinished requests hold.
        """
        raise NotImplementedError

    def _groups(
        self, finished: Finished, ids: Sequence[str], prompts: Sequence[list[int]], samples: int
    ) -> Iterator[Group]:
        """Yield each group as it becomes complete."""
        held: dict[int, list[Response | None]] = {}
        missing: dict[int, int] = {}
        for index, response in finished:
            row, sample = divmod(index, samples)
            held.setdefault(row, [None] * samples)[sample] = response
            missing[row] = missing.get(row, samples) - 1
            if missing[row] == 0:
                responses = [r for r in held.pop(row) if r is not None]
                yield Group(
                    row=row, problem_id=ids[row], prompt_ids=prompts[row], responses=responses,
                    texts=self._texts(responses),
                )  # fmt: skip

    def _texts(self, responses: Sequence[Response]) -> list[str]:
        # Batch decoding is several times cheaper than one call per response.
        decoded = iter(
            self.tokenizer.batch_decode([r.ids for r in responses if r.text is None], skip_special_tokens=True)
        )
        return [next(decoded) if r.text is None else r.text for r in responses]


class _Scoring:
    """Groups that are being scored.

    Args:
        problems: The ``problems`` table that they answer, in its order.
        faults: Takes note of problems that cannot be scored.
    """

    def __init__(self, scorer: Scorer, problems: pl.DataFrame, faults: Faults) -> None:
        self._scorer, self._faults = scorer, faults
        self._answers, self._metadata = problems["answer"].to_list(), metadata_of(problems)
        self._verifiers = problems["verifier"].to_list()
        self._waiting: dict[Future[list[Verdict]], Group] = {}

    def submit(self, group: Group) -> None:
        """Begin with a group; aborted responses earn 0 and are not scored."""
        row = group.row
        items = [
            Item(verifier=self._verifiers[row], response=text, answer=self._answers[row], metadata=self._metadata[row])
            for response, text in zip(group.responses, group.texts, strict=True)
            if response.finish_reason != "aborted"
        ]
        self._waiting[self._scorer.submit(items, hold=True)] = group

    def ready(self) -> Iterator[tuple[Group, list[Verdict]]]:
        """Yield the groups that are scored by now: one with responses that hang holds up no other."""
        for future in [waiting for waiting in self._waiting if waiting.done()]:
            group = self._waiting.pop(future)
            try:
                verdicts = future.result()
            except ProblemError as error:
                group, verdicts = self._faults.lost(group, error), []
            else:
                if verdicts:
                    self._faults.scored()
            yield group, _in_order(group, verdicts)

    def rest(self) -> Iterator[tuple[Group, list[Verdict]]]:
        """Wait for all other groups and yield each as it is scored."""
        self._scorer.flush()
        while self._waiting:
            wait(self._waiting, return_when=FIRST_COMPLETED)
            yield from self.ready()


def _in_order(group: Group, verdicts: Iterable[Verdict]) -> list[Verdict]:
    """The verdicts on all responses of a group, of which the aborted ones were not scored."""
    scored = iter(verdicts)
    return [
        Verdict(reward=0.0) if response.finish_reason == "aborted" else next(scored) for response in group.responses
    ]
