"""vLLM's engine, step by step: requests in, each response out as soon as it has finished."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ...errors import RolloutError
from ..sampling import Continue, Finished, Request, Response, Sampling, aborted


class EngineLoop:
    """Feeds an engine, steps it and hands out what has finished.

    Args:
        engine: vLLM's ``LLMEngine``.
        ahead: Most requests given to the engine at a time: as many as it generates together and some that wait.
    """

    def __init__(self, engine: Any, *, name: str, ahead: int) -> None:
        self._engine, self._name, self._ahead = engine, name, ahead
        self._streaming = False
        self._failure = ""

    def run(
        self, requests: Sequence[Request], control: Continue, *, sampling: Sampling, stop_token_ids: list[int]
    ) -> Finished:
        """Yield the indices of requests and their responses in the order in which they finish.

        Closing the iterator takes what is unfinished out of the engine.

        Args:
            control: Takes a response as finished or asks for more.

        Raises:
            RolloutError: The engine fails, has failed before, or still answers another stream.
        """
        if self._engine is None:
            raise RolloutError("the sampler is closed")
        if self._failure:
            raise RolloutError(f"{self._name} failed before ({self._failure}); open another sampler")
        if self._streaming:
            raise RolloutError(
                f"{self._name} is still answering another stream, which must be read to its end or closed first"
            )
        self._streaming = True
        params = _params(sampling, stop_token_ids)
        active: set[int] = set()
        try:
            waiting = deque(enumerate(requests))
            while waiting or active:
                while waiting and len(active) < self._ahead:
                    index, request = waiting.popleft()
                    self._add(index, request, params)
                    active.add(index)
                for index, response in self._step():
                    decided = control(index, response)
                    if isinstance(decided, Request):
                        self._add(index, decided, params)
                    else:
                        active.discard(index)
                        yield index, decided
        finally:
            self._streaming = False
            if active and self._engine is not None and not self._failure:
                self._engine.abort_request([str(index) for index in active])

    def close(self) -> None:
        """Let go of the engine."""
        self._engine = None

    def reset_prefix_cache(self) -> None:
        """Forget the KV cache of prompts, as after a sync.

        Raises:
            RolloutError: The engine does not let go of it, so that the old weights would go on answering.
        """
        # A request that was taken out may still hold its blocks until the step in flight has ended.
        for _ in range(3):
            if self._engine.reset_prefix_cache():
                return
            self._engine.step()
        raise RolloutError(
            f"{self._name} still holds the KV cache of the weights before the sync; open another sampler"
        )

    def _add(self, index: int, request: Request, params: Any) -> None:
        # A shallow copy: what differs between requests are two numbers.
        own = copy.copy(params)
        own.seed, own.max_tokens = request.seed, request.max_new_tokens
        prompt = {"type": "token", "prompt_token_ids": request.prompt_ids}
        try:
            self._engine.add_request(str(index), prompt, own)
        except ValueError as error:
            raise RolloutError(f"{self._name} refuses a request ({_line(error)})") from error

    def _step(self) -> Iterator[tuple[int, Response]]:
        try:
            outputs = self._engine.step()
        except Exception as error:
            self._failure = _line(error)
            raise RolloutError(f"{self._name} failed while sampling ({self._failure})") from error
        for output in outputs:
            yield int(output.request_id), _response(output.outputs[0])


def _params(sampling: Sampling, stop_token_ids: list[int]) -> Any:
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    return SamplingParams(
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        min_p=sampling.min_p,
        stop=list(sampling.stop),
        stop_token_ids=stop_token_ids,
        max_tokens=sampling.max_new_tokens,
        seed=0,
        logprobs=0,
        flat_logprobs=True,
        detokenize=bool(sampling.stop),
        output_kind=RequestOutputKind.FINAL_ONLY,
        # The engine would copy each request's deeply.
        skip_clone=True,
    )


def _response(output: Any) -> Response:
    if output.finish_reason not in ("stop", "length"):
        return aborted(f"vLLM ended it: {output.finish_reason}")
    return Response(
        ids=np.array(output.token_ids, np.int32),
        logprobs=np.array(output.logprobs.logprobs, np.float32),
        finish_reason=output.finish_reason,
        # vLLM's text is used for a stop text only, which may end within a token.
        text=output.text if isinstance(output.stop_reason, str) else None,
    )


def _line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
