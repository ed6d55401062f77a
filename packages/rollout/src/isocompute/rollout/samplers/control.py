"""Control of generation: forced interruption, and how often responses are interrupted or cut off.

Forced interruption is ScaleRL's control of length (arXiv 2510.13786, appendix A.10). Each response has a length of its
own, drawn uniformly by its seed. One that is still going on there is cut, a phrase is appended that ends its thinking,
and the policy goes on from it. The phrase's tokens are part of the response and of its length, have log-probability 0
and are marked in the column ``sampled`` as not sampled, so that no loss is taken of them.

A response that has closed its thinking by then, with the closing tag that the phrase ends with, is not interrupted: it
is writing its answer, and goes on without the phrase. The paper does not say what happens to such responses. Where the
phrase ends with no closing tag, every response that reaches its length is interrupted.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any

import numpy as np
import polars as pl

from ..errors import RolloutError
from .sampling import Continue, Interruption, Request, Response, Sampling, as_it_is


def controlled(requests: Sequence[Request], sampling: Sampling, tokenizer: Any) -> tuple[list[Request], Continue]:
    """Put requests under the control that the settings ask for.

    Args:
        requests: What is to be sampled; each one's ``max_new_tokens`` is its whole budget, an inserted phrase included.

    Returns:
        The requests to begin with, and what decides whether a response to one is finished.

    Raises:
        RolloutError: The phrase of an interruption has no token, or leaves no room for an answer.
    """
    if sampling.interruption is None:
        return list(requests), as_it_is
    interrupter = _Interrupter(requests, sampling.interruption, tokenizer)
    return interrupter.first, interrupter.follow


class _Interrupter:
    """Interrupts the responses to some requests, each at most once."""

    def __init__(self, requests: Sequence[Request], cut: Interruption, tokenizer: Any) -> None:
        self._requests, self._tokenizer = requests, tokenizer
        self._phrase = list(tokenizer(cut.phrase, add_special_tokens=False)["input_ids"])
        tag = re.search(r"</[^<>\s]+>$", cut.phrase.strip())
        self._closing = tag.group() if tag else None
        if not self._phrase:
            raise RolloutError(f"interruption.phrase is {cut.phrase!r}, of which the tokenizer makes no token")
        needed = cut.highest + len(self._phrase) + 1
        if any(request.max_new_tokens < needed for request in requests):
            raise RolloutError(
                f"interruption comes at up to {cut.highest} tokens and inserts {len(self._phrase)}; max_new_tokens "
                f"must be at least {needed}, which leaves one for the answer"
            )
        self.first = [replace(r, max_new_tokens=drawn_length(r.seed, cut)) for r in requests]
        self._begun: dict[int, tuple[Response, int]] = {}

    def follow(self, index: int, response: Response) -> Request | Response:
        """Return the request that follows a response, or the whole response to the request of this index."""
        begun = self._begun.pop(index, None)
        if begun is not None:
            return response if response.finish_reason == "aborted" else self._joined(*begun, response)
        if response.finish_reason != "length":
            return response
        inserted = [] if self._is_closed(response) else self._phrase
        request = self._requests[index]
        left = request.max_new_tokens - len(response.ids) - len(inserted)
        # A response whose tokens were made from a server's text may be longer than what was asked for.
        if left < 1:
            return response
        self._begun[index] = (response, len(inserted))
        return Request(
            prompt_ids=[*request.prompt_ids, *response.ids.tolist(), *inserted],
            seed=_hash(request.seed, "continued") >> 1,
            max_new_tokens=left,
        )

    def _is_closed(self, response: Response) -> bool:
        # A closing tag may be a special token.
        return self._closing is not None and self._closing in self._tokenizer.decode(
            response.ids, skip_special_tokens=False
        )

    def _joined(self, first: Response, inserted: int, last: Response) -> Response:
        """One response of the part before, the first ``inserted`` tokens of the phrase, and the part after."""
        phrase = np.array(self._phrase[:inserted], np.int32)
        ids = np.concatenate([first.ids, phrase, last.ids])
        scored = len(first.logprobs) == len(first.ids) and len(last.logprobs) == len(last.ids)
        parts = [first.logprobs, np.zeros(inserted, np.float32), last.logprobs]
        sampled = np.ones(len(ids), np.bool_)
        sampled[len(first.ids) : len(first.ids) + inserted] = False
        text = last.text
        if text is not None:
            # Only the engine knows where a stop text cut the second part.
            text = self._tokenizer.decode(np.concatenate([first.ids, phrase]), skip_special_tokens=True) + text
        return Response(
            ids=ids,
            logprobs=np.concatenate(parts) if scored else np.zeros(0, np.float32),
            finish_reason=last.finish_reason,
            text=text,
            sampled=sampled if inserted else None,
            retokenized=first.retokenized or last.retokenized,
        )


def drawn_length(seed: int, cut: Interruption) -> int:
    """Return the length (tokens) at which a response is interrupted: uniform, and a function of its seed alone.

    Args:
        seed: The response's own seed.
    """
    return cut.lowest + _hash(seed, "interrupted") % (cut.highest - cut.lowest + 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """How the completed responses of a ``rollouts`` table ended.

    Attributes:
        truncated: Share that ended at its length limit, ``finish_reason`` ``length``.
        interrupted: Share with a token that was not sampled.
    """

    truncated: float
    interrupted: float


def shares(rollouts: pl.DataFrame) -> Shares | None:
    """Return how the completed responses of a table ended; aborted ones are left out.

    Of four completed responses two were interrupted, and one of these was cut off at its limit after all: ``truncated``
    is 0.25 and ``interrupted`` is 0.5.

    Args:
        rollouts: A ``rollouts`` table, with or without the column ``sampled``.

    Returns:
        The shares, or None where no response was completed.
    """
    completed = rollouts.filter(pl.col("finish_reason") != "aborted")
    if not len(completed):
        return None
    marked = pl.col("sampled").list.all().fill_null(True) if "sampled" in completed.columns else pl.lit(True)
    truncated, interrupted = completed.select(
        truncated=(pl.col("finish_reason") == "length").mean(), interrupted=(~marked).mean()
    ).row(0)
    return Shares(truncated=float(truncated), interrupted=float(interrupted))


def _hash(seed: int, purpose: str) -> int:
    """64 bits that a response's seed and a purpose determine."""
    return int.from_bytes(blake2b(f"{seed}/{purpose}".encode(), digest_size=8).digest(), "big")
