"""transformers in this process, for machines where vLLM cannot run."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import RolloutError
from ..scoring.scorer import Scorer
from .distribution import distribution, draw
from .local import LocalSampler
from .models import check_folder, not_loaded
from .payloads import Payload, place_of
from .prompts import Prompting
from .sampling import Continue, Finished, Request, Response, Sampling
from .stopping import StopTexts

if TYPE_CHECKING:
    import torch

DTYPES = ("float32", "bfloat16", "float16")


class TransformersSampler(LocalSampler):
    """Samples with a plain transformers model and its KV cache.

    Every response draws from its own generator, and prompts of one length are answered together without padding, so its
    tokens do not depend on the batch.

    Args:
        dtype: Type of the weights: ``float32``, ``bfloat16`` or ``float16``.
        scorer: Scores responses; by default the one of this process.

    Raises:
        RolloutError: torch or transformers is not installed, the model cannot be loaded, or an argument is not valid.
    """

    def __init__(
        self,
        model: str | Path,
        sampling: Sampling,
        *,
        device: str = "cpu",
        dtype: str = "float32",
        batch_size: int = 256,
        prompting: Prompting | None = None,
        scorer: Scorer | None = None,
    ) -> None:
        if dtype not in DTYPES:
            raise RolloutError(f"dtype is {dtype!r}; it must be one of {', '.join(DTYPES)}")
        if not isinstance(batch_size, int) or batch_size < 1:
            raise RolloutError(f"batch_size is {batch_size!r}; it must be a whole number of at least 1")
        check_folder(model)
        super().__init__(model, sampling, prompting=prompting, scorer=scorer)
        try:
            import torch
            from transformers import AutoModelForCausalLM
        except ImportError:
            raise RolloutError('torch is not installed: pip install "isocompute-rollout[transformers]"') from None
        try:
            loaded = AutoModelForCausalLM.from_pretrained(self.model, dtype=getattr(torch, dtype))
        except Exception as error:
            raise not_loaded(self.model, error) from None
        try:
            self._policy: Any = loaded.to(device).eval()
        except (RuntimeError, AssertionError) as error:
            reason = str(error).splitlines()[0]
            raise RolloutError(f"device is {device!r}, where the model cannot be placed ({reason})") from None
        self._device = device
        self._batch_size = batch_size
        # The head's logits of a whole prompt would take prompt length × vocabulary floats per response.
        takes = inspect.signature(self._policy.forward).parameters
        self._last_only = {"logits_to_keep": 1} if "logits_to_keep" in takes else {}

    @property
    def place(self) -> str:
        """The device that the model is on; see ``Sampler.place``."""
        return place_of(self._device)

    def _load(self, payload: Payload) -> None:
        import torch

        mine = self._policy.state_dict()
        with torch.no_grad():
            # A tied tensor may come under one of its names or under both; names and shapes were checked.
            for name, tensor in payload.tensors(self._device):
                mine[name].copy_(tensor.detach())

    def _generate(self, requests: Sequence[Request], control: Continue) -> Finished:
        waiting: dict[int, list[tuple[int, Request]]] = {}
        for index, request in enumerate(requests):
            waiting.setdefault(len(request.prompt_ids), []).append((index, request))
        while waiting:
            # Shortest first: a follow-up is longer than what it follows, and waits for others of its length.
            length = min(waiting)
            together = waiting.pop(length)
            if len(together) > self._batch_size:
                waiting[length] = together[self._batch_size :]
            for index, response in self._batch(together[: self._batch_size]):
                following = control(index, response)
                if isinstance(following, Response):
                    yield index, following
                else:
                    waiting.setdefault(len(following.prompt_ids), []).append((index, following))

    def _batch(self, asked: Sequence[tuple[int, Request]]) -> Iterator[tuple[int, Response]]:
        """Answer requests whose prompts have one length; a response leaves the batch when it is finished."""
        import torch

        ends = frozenset(self.stop_token_ids)
        texts = [StopTexts(self.tokenizer, self.sampling.stop) if self.sampling.stop else None for _ in asked]
        rows = [_Row(i, request, ends, stop) for (i, request), stop in zip(asked, texts, strict=True)]
        given = torch.tensor([row.request.prompt_ids for row in rows], device=self._device)
        cache = None
        while rows:
            tokens, logprobs, cache = self._step(given, cache, [row.generator for row in rows])
            left = []
            for place, (token, logprob) in enumerate(zip(tokens.tolist(), logprobs.tolist(), strict=True)):
                response = rows[place].add(token, logprob)
                if response is None:
                    left.append(place)
                else:
                    yield rows[place].index, response
            given = tokens[:, None]
            if left and len(left) < len(rows):
                chosen = torch.tensor(left, device=self._device)
                given = given[chosen]
                # For beam search by its name; unlike batch_select_indices every layer has it, also of linear attention.
                cache.reorder_cache(chosen)
            rows = [rows[place] for place in left]

    def _step(self, given: torch.Tensor, cache: Any, generators: list[torch.Generator]) -> Any:
        """Return the next tokens, their log-probabilities and the cache."""
        import torch

        with torch.inference_mode():
            out = self._policy(input_ids=given, past_key_values=cache, use_cache=True, **self._last_only)
            if getattr(out, "past_key_values", None) is None:
                raise RolloutError(f"the model {self.model} keeps no cache of keys and values, which sampling needs")
            scores = distribution(out.logits[:, -1], self.sampling)
            tokens = draw(scores, generators, greedy=self.sampling.temperature == 0)
            return tokens, scores.gather(-1, tokens[:, None]).squeeze(-1), out.past_key_values


class _Row:
    """One response in the making."""

    def __init__(self, index: int, request: Request, ends: frozenset[int], stop: StopTexts | None) -> None:
        import torch

        self.index, self.request = index, request
        self.generator = torch.Generator().manual_seed(request.seed)
        self._ends, self._stop = ends, stop
        self._ids: list[int] = []
        self._logprobs: list[float] = []

    def add(self, token: int, logprob: float) -> Response | None:
        """Take the next token; returns the response when that was its last."""
        self._ids.append(token)
        self._logprobs.append(logprob)
        text = None
        ended = token in self._ends
        if self._stop is not None and not ended:
            text = self._stop.add(token)
            ended = text is not None
        if not ended and len(self._ids) < self.request.max_new_tokens:
            return None
        return Response(
            ids=np.array(self._ids, np.int32),
            logprobs=np.array(self._logprobs, np.float32),
            finish_reason="stop" if ended else "length",
            text=text,
        )
