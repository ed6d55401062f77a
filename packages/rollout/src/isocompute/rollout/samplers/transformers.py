"""transformers in this process, for machines where vLLM cannot run.

Tokens are sampled by temperature, min-p, top-k and top-p, in vLLM's order and with its meaning.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..contract.files import reason_of
from ..errors import RolloutError
from ..scoring.scorer import Scorer
from .local import LocalSampler
from .prompts import Prompting, check_folder, not_loaded
from .sampling import DTYPES, Continue, Finished, Request, Response, Sampling
from .weights import Payload, place_of

if TYPE_CHECKING:
    import torch

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
SPREAD = 2
"""Longest prompt of a batch as a multiple of its shortest: at most so much more is computed for padding."""
SAME = 1e-5
"""Nats by which scores with padding may differ from those without, by rounding."""


class TransformersSampler(LocalSampler):
    """Samples with a plain transformers model and its KV cache.

    Every response draws from its own generator, so its tokens do not depend on the batch, but for rounding: other sizes
    are multiplied by other kernels. Prompts of different lengths are answered together, the shorter ones padded, where
    the model was seen to give the same scores with padding as without.

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
            raise RolloutError(f"device is {device!r}, where the model cannot be placed ({reason_of(error)})") from None
        self._device, self.dtype = device, dtype
        self._batch_size = batch_size
        # Of several lengths of prompts, each is to fill a batch.
        self.holds = 4 * batch_size
        # The head's logits of a whole prompt would take prompt length × vocabulary floats per response.
        takes = inspect.signature(self._policy.forward).parameters
        self._last_only = {"logits_to_keep": 1} if "logits_to_keep" in takes else {}
        self._spread = SPREAD if {"attention_mask", "position_ids"} <= set(takes) and self._leaves_padding_out() else 1

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
        taken = 0
        while waiting or taken < len(requests):
            for request in requests[taken:]:
                waiting.setdefault(len(request.prompt_ids), []).append((taken, request))
                taken += 1
            # Shortest first: a follow-up is longer than what it follows, and waits for others of its length.
            shortest = min(waiting)
            together: list[tuple[int, Request]] = []
            for length in sorted(waiting):
                if length > self._spread * shortest or len(together) == self._batch_size:
                    break
                free = self._batch_size - len(together)
                together += waiting[length][:free]
                waiting[length] = waiting[length][free:]
            waiting = {length: left for length, left in waiting.items() if left}
            for one in self._batch(together):
                if one is None:
                    yield None
                    continue
                index, response = one
                following = control(index, response)
                if isinstance(following, Response):
                    yield index, following
                else:
                    waiting.setdefault(len(following.prompt_ids), []).append((index, following))

    def _batch(self, batch: Sequence[tuple[int, Request]]) -> Iterator[tuple[int, Response] | None]:
        """Answer requests together; a response leaves the batch when it is finished, and None is a step without one."""
        import torch

        ends = frozenset(self.stop_token_ids)
        texts = [StopTexts(self.tokenizer, self.sampling.stop) if self.sampling.stop else None for _ in batch]
        rows = [_Row(i, request, ends, stop) for (i, request), stop in zip(batch, texts, strict=True)]
        uniforms = Uniforms([request.seed for _, request in batch])
        # A prompt is read once for all responses to it.
        prompts: dict[tuple[int, ...], int] = {}
        prompt_of = [prompts.setdefault(tuple(request.prompt_ids), len(prompts)) for _, request in batch]
        given, mask = self._padded(list(prompts))
        logits, cache = self._forward(given, mask, None)
        if len(prompts) < len(rows):
            chosen = torch.tensor(prompt_of, device=self._device)
            logits, mask = logits[chosen], mask if mask is None else mask[chosen]
            # For beam search by its name; unlike batch_select_indices every layer has it, also of linear attention.
            cache.reorder_cache(chosen)
        while True:
            tokens, logprobs = self._drawn(logits, uniforms)
            left = []
            for place, (token, logprob) in enumerate(zip(tokens.tolist(), logprobs.tolist(), strict=True)):
                response = rows[place].add(token, logprob)
                if response is None:
                    left.append(place)
                else:
                    yield rows[place].index, response
            if not left:
                return
            if len(left) == len(rows):
                yield None
            else:
                chosen = torch.tensor(left, device=self._device)
                tokens, mask = tokens[chosen], mask if mask is None else mask[chosen]
                cache.reorder_cache(chosen)
                uniforms.keep(left)
                rows = [rows[place] for place in left]
            mask = with_one_more(mask)
            logits, cache = self._forward(tokens[:, None], mask, cache)

    def _padded(self, prompts: Sequence[Sequence[int]]) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return prompts with padding before the shorter ones, and 1 where they are and 0 before; None without any."""
        import torch

        longest = max(map(len, prompts))
        pads = [longest - len(prompt) for prompt in prompts]
        given = [[0] * pad + [*prompt] for pad, prompt in zip(pads, prompts, strict=True)]
        mask = [[0] * pad + [1] * (longest - pad) for pad in pads]
        return torch.tensor(given, device=self._device), torch.tensor(mask, device=self._device) if any(pads) else None

    def _leaves_padding_out(self) -> bool:
        """Return whether a prompt beside a longer one gets the scores that it gets alone, and its next token, too."""
        import torch

        tokens = np.random.default_rng(0).integers(len(self.tokenizer), size=6).tolist()

        def scores(*prompts: list[int]) -> torch.Tensor:
            given, mask = self._padded(prompts)
            first, cache = self._forward(given, mask, None)
            second, _ = self._forward(given[:, -1:], with_one_more(mask), cache)
            return torch.stack([first[-1], second[-1]]).float().log_softmax(-1)

        try:
            return bool((scores(tokens[:3]) - scores(tokens, tokens[:3])).abs().max() <= SAME)
        except Exception:
            # A model may take a mask and not such a one, or keep no cache, which sampling names.
            return False

    def _forward(self, given: torch.Tensor, mask: torch.Tensor | None, cache: Any) -> tuple[torch.Tensor, Any]:
        """Return the logits after the last of some tokens, and the cache.

        Args:
            mask: Which places of the cache and of these tokens are no padding; None where there is none.
        """
        import torch

        with torch.inference_mode():
            placed = {}
            if mask is not None:
                positions = (mask.cumsum(-1) - 1).clamp(min=0)[:, -given.shape[1] :]
                placed = {"attention_mask": mask, "position_ids": positions}
            out = self._policy(input_ids=given, past_key_values=cache, use_cache=True, **placed, **self._last_only)
            if getattr(out, "past_key_values", None) is None:
                raise RolloutError(f"the model {self.model} keeps no cache of keys and values, which sampling needs")
            return out.logits[:, -1], out.past_key_values

    def _drawn(self, logits: torch.Tensor, uniforms: Uniforms) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the next token of each response and its log-probability."""
        import torch

        with torch.inference_mode():
            scores = distribution(logits, self.sampling)
            tokens = scores.argmax(-1) if self.sampling.temperature == 0 else draw(scores, uniforms.next())
            return tokens, scores.gather(-1, tokens[:, None]).squeeze(-1)


def with_one_more(mask: torch.Tensor | None) -> torch.Tensor | None:
    """Return a mask of places with one more, of a token."""
    import torch

    return mask if mask is None else torch.nn.functional.pad(mask, (0, 1), value=1)


class Uniforms:
    """Uniform draws from a generator of each response's own, on the CPU: they depend on no batch and no device."""

    AHEAD = 64
    """Numbers that are drawn at a time, since a call takes longer than its numbers; they are those of single calls."""

    def __init__(self, seeds: Sequence[int]) -> None:
        import torch

        self._generators = [torch.Generator().manual_seed(seed) for seed in seeds]
        self._drawn = torch.empty(0)
        self._taken = self.AHEAD

    def next(self) -> torch.Tensor:
        """Return the next number of each response, float64."""
        import torch

        if self._taken == self.AHEAD:
            drawn = [torch.rand(self.AHEAD, generator=each, dtype=torch.float64) for each in self._generators]
            self._drawn, self._taken = torch.stack(drawn), 0
        self._taken += 1
        return self._drawn[:, self._taken - 1]

    def keep(self, places: Sequence[int]) -> None:
        """Go on with the responses at some places."""
        self._generators = [self._generators[place] for place in places]
        if self._taken < self.AHEAD:
            self._drawn = self._drawn[list(places)]


class _Row:
    """One response in the making."""

    def __init__(self, index: int, request: Request, ends: frozenset[int], stop: StopTexts | None) -> None:
        self.index, self.request = index, request
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


def distribution(logits: torch.Tensor, sampling: Sampling) -> torch.Tensor:
    """Return the log-probabilities of the distribution that tokens are sampled from.

    Args:
        logits: Shape ``(responses, vocabulary)``.
        sampling: The settings; at temperature 0 nothing is left out and nothing tempered.

    Returns:
        Float32, the same shape, −∞ for what is left out; each row's probabilities have a total of 1.
    """
    import torch
    from transformers import MinPLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

    scores = logits.float()
    if sampling.temperature > 0:
        scores = scores / sampling.temperature
        if sampling.min_p > 0:
            scores = MinPLogitsWarper(sampling.min_p)(None, scores)
        if sampling.top_k > 0:
            scores = TopKLogitsWarper(sampling.top_k)(None, scores)
        if sampling.top_p < 1:
            scores = TopPLogitsWarper(sampling.top_p)(None, scores)
    return torch.log_softmax(scores, -1)


def draw(scores: torch.Tensor, uniforms: torch.Tensor) -> torch.Tensor:
    """Sample one token per response, by the inverse of its distribution function at a uniform number.

    Args:
        scores: From ``distribution``, shape ``(responses, vocabulary)``.
        uniforms: From 0 to 1, shape ``(responses,)``, float64.
    """
    import torch

    cumulative = scores.double().exp().cumsum(-1)
    places = (uniforms.to(scores.device) * cumulative[:, -1])[:, None]
    return torch.searchsorted(cumulative, places, right=True).squeeze(-1).clamp(max=scores.shape[-1] - 1)


class StopTexts:
    """Decodes one response token by token, and finds the first of some texts in it."""

    def __init__(self, tokenizer: Any, stop: Sequence[str]) -> None:
        self._tokenizer, self._stop = tokenizer, stop
        self._ids: list[int] = []
        self._begin, self._end = 0, 0
        self._text = ""

    def add(self, token: int) -> str | None:
        """Take the next token of the response.

        Returns:
            The response's text up to the stop text, once there is one; before that None.
        """
        self._ids.append(token)
        # A token's text may depend on the one before it, so that some are decoded again with each new one.
        known = self._decoded(self._ids[self._begin : self._end])
        whole = self._decoded(self._ids[self._begin :])
        # Until the last byte of a character there is no character to look for.
        if len(whole) <= len(known) or whole.endswith(REPLACEMENT):
            return None
        new = whole[len(known) :]
        self._begin, self._end = self._end, len(self._ids)
        before = len(self._text)
        self._text += new
        return self._cut(before)

    def _cut(self, before: int) -> str | None:
        """The text before the stop text that is complete first, among those that reach beyond ``before`` characters."""
        places = [(self._text.find(stop, max(0, before - len(stop) + 1)), stop) for stop in self._stop]
        ends = [(at + len(stop), at) for at, stop in places if at >= 0]
        # The earliest end, since one token may complete several; of those that end together the longest.
        return self._text[: min(ends)[1]] if ends else None

    def _decoded(self, ids: Sequence[int]) -> str:
        text: str = self._tokenizer.decode(ids, skip_special_tokens=True)
        return text
