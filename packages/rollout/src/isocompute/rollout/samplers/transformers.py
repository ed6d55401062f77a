"""transformers in this process, for machines where vLLM cannot run.

It decodes step by step: responses share a KV cache, begin between two steps and leave when they are finished. Tokens
are sampled by temperature, min-p, top-k and top-p, in vLLM's order and with its meaning.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..contract.files import reason_of
from ..errors import RolloutError, check_folder, library, not_loaded
from ..scoring.scorer import Scorer
from .local import LocalSampler, Prompting
from .sampling import DTYPES, Continue, Finished, Request, Response, Sampling
from .weights import Payload

if TYPE_CHECKING:
    import torch

SPREAD = 2
"""Longest prompt of a batch as a multiple of its shortest: at most so much more is computed for padding."""
SAME = 1e-5
"""Nats by which scores with padding may differ from those without, by rounding."""
REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


class TransformersSampler(LocalSampler):
    """Samples with a plain transformers model and its KV cache.

    Every response draws from its own generator, so its tokens do not depend on the batch, but for rounding: other sizes
    are multiplied by other kernels. Prompts of different lengths are answered together, the shorter ones padded, where
    the model was seen to give the same scores with padding as without.

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
        torch = library("torch", extra="transformers")
        from transformers import AutoModelForCausalLM

        try:
            loaded = AutoModelForCausalLM.from_pretrained(self.model, dtype=getattr(torch, dtype))
        except Exception as error:
            raise not_loaded(self.model, error) from None
        try:
            self._policy: Any = loaded.to(device).eval()
        except (RuntimeError, AssertionError) as error:
            raise RolloutError(f"device is {device!r}, where the model cannot be placed ({reason_of(error)})") from None
        self.device, self.dtype = device, dtype
        self._batch_size = batch_size
        # Of several lengths of prompts, each is to fill a batch.
        self.holds = 4 * batch_size
        # The head's logits of a whole prompt would take prompt length × vocabulary floats per response.
        takes = inspect.signature(self._policy.forward).parameters
        self._last_only = {"logits_to_keep": 1} if "logits_to_keep" in takes else {}
        self._spread = SPREAD if {"attention_mask", "position_ids"} <= set(takes) and self._leaves_padding_out() else 1

    def _load(self, payload: Payload) -> None:
        import torch

        mine = self._policy.state_dict()
        with torch.no_grad():
            # A tied tensor may come under one of its names or under both; names and shapes were checked.
            for name, tensor in payload.tensors(self.device):
                mine[name].copy_(tensor.detach())

    def _generate(self, requests: Sequence[Request], control: Continue) -> Finished:
        waiting: list[tuple[int, Request]] = []
        taken = 0
        while waiting or taken < len(requests):
            waiting += enumerate(requests[taken:], taken)
            taken = len(requests)
            # Shortest first: a follow-up is longer than what it follows, and waits for others of its length.
            waiting.sort(key=lambda asked: len(asked[1].prompt_ids))
            longest = self._spread * len(waiting[0][1].prompt_ids)
            begun = [asked for asked in waiting[: self._batch_size] if len(asked[1].prompt_ids) <= longest]
            waiting, decoding = waiting[len(begun) :], Decoding(self)
            while begun or decoding:
                ended = False
                for index, response in decoding.step(begun):
                    following = control(index, response)
                    if isinstance(following, Response):
                        ended = True
                        yield index, following
                    else:
                        waiting.append((index, following))
                begun = []
                if not ended:
                    yield None

    def check_joins(self) -> None:
        """Refuse a model of which responses cannot begin beside others in the making."""
        if self._spread == 1:
            raise RolloutError(
                f"the model {self.model} in {self.dtype} gives other scores beside padding (by more than {SAME:g} "
                "nats), so that its responses cannot begin beside others; another model or dtype float32 must be given"
            )
        layers(self.forward(*padded([[0]], self.device), None)[1])

    def _leaves_padding_out(self) -> bool:
        """Return whether a prompt beside a longer one gets the scores that it gets alone, and its next token, too."""
        import torch

        tokens = np.random.default_rng(0).integers(len(self.tokenizer), size=6).tolist()

        def scores(*prompts: list[int]) -> torch.Tensor:
            given, mask = padded(prompts, self.device)
            first, cache = self.forward(given, mask, None)
            second, _ = self.forward(given[:, -1:], with_one_more(mask), cache)
            return torch.stack([first[-1], second[-1]]).float().log_softmax(-1)

        try:
            return bool((scores(tokens[:3]) - scores(tokens, tokens[:3])).abs().max() <= SAME)
        except Exception:
            # A model may take a mask and not such a one, or keep no cache, which sampling names.
            return False

    def forward(self, given: torch.Tensor, mask: torch.Tensor | None, cache: Any) -> tuple[torch.Tensor, Any]:
        """Return the logits after the last of some tokens, and the cache; the mask is 0 at its padding and theirs."""
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


class Decoding:
    """Responses in the making, of which each step draws the next token.

    The keys and values that some weights have made stay in the cache when others take their place; the settings are
    those of the beginning.
    """

    def __init__(self, sampler: TransformersSampler) -> None:
        self._sampler, self._sampling, self._device = sampler, sampler.sampling, sampler.device
        self._ends = frozenset(sampler.stop_token_ids)
        self._rows: list[Row] = []
        self._cache: Any = None
        self._mask: torch.Tensor | None = None

    def __len__(self) -> int:
        return len(self._rows)

    def step(self, begun: Sequence[tuple[int, Request]] = ()) -> list[tuple[int, Response]]:
        """Begin responses to some requests, and draw a token of every response.

        Args:
            begun: Requests with their indices; a prompt is read once for all responses to it.

        Returns:
            The responses that are finished, with their indices; they leave.
        """
        import torch

        logits = []
        if self._rows:
            last = torch.tensor([row.ids[-1:] for row in self._rows], device=self._device)
            self._mask = with_one_more(self._mask)
            scores, self._cache = self._sampler.forward(last, self._mask, self._cache)
            logits.append(scores)
        if begun:
            logits.append(self._begin(begun))
        with torch.inference_mode():
            scores = distribution(torch.cat(logits), self._sampling)
            if self._sampling.temperature == 0:
                tokens = scores.argmax(-1)
            else:
                tokens = draw(scores, torch.tensor([row.uniforms[len(row.ids)] for row in self._rows]))
            logprobs = scores.gather(-1, tokens[:, None]).squeeze(-1)
        finished, left, version = [], [], self._sampler.weights_version
        for place, (token, logprob) in enumerate(zip(tokens.tolist(), logprobs.tolist(), strict=True)):
            response = self._rows[place].add(token, logprob, version)
            if response is None:
                left.append(place)
            else:
                finished.append((self._rows[place].index, response))
        if finished:
            self._keep(left)
        return finished

    def _begin(self, begun: Sequence[tuple[int, Request]]) -> torch.Tensor:
        """Put responses to some requests beside the others; returns the logits after their prompts."""
        import torch

        prompts: dict[tuple[int, ...], int] = {}
        prompt_of = [prompts.setdefault(tuple(request.prompt_ids), len(prompts)) for _, request in begun]
        given, mask = padded(list(prompts), self._device)
        logits, cache = self._sampler.forward(given, mask, None)
        if len(prompts) < len(begun):
            chosen = torch.tensor(prompt_of, device=self._device)
            logits, mask = logits[chosen], mask if mask is None else mask[chosen]
            # For beam search by its name; unlike batch_select_indices every layer has it, also of linear attention.
            cache.reorder_cache(chosen)
        if self._rows:
            cache, mask = joined((self._cache, self._mask), (cache, mask))
        self._cache, self._mask = cache, mask
        self._rows += [self._row(index, request) for index, request in begun]
        return logits

    def _row(self, index: int, request: Request) -> Row:
        stop = StopTexts(self._sampler.tokenizer, self._sampling.stop) if self._sampling.stop else None
        return Row(index, request, self._ends, stop)

    def _keep(self, places: Sequence[int]) -> None:
        """Go on with the responses at some places."""
        import torch

        self._rows = [self._rows[place] for place in places]
        if not places:
            self._cache = self._mask = None
            return
        chosen = torch.tensor(places, device=self._device)
        self._mask = self._mask if self._mask is None else self._mask[chosen]
        self._cache.reorder_cache(chosen)

    def unfinished(self, failure: str | None = None) -> list[tuple[int, Response]]:
        """Return the responses as far as they are, as aborted ones, with the indices of their requests."""
        return [(row.index, row.response("aborted", failure=failure)) for row in self._rows]

    def state(self) -> dict[str, torch.Tensor]:
        """Return the cache and the mask, which make a state together with the requests and ``unfinished``."""
        if not self._rows:
            return {}
        pairs = enumerate(layers(self._cache))
        tensors = {f"{name}.{i}": tensor for i, pair in pairs for name, tensor in zip(KV, pair, strict=True)}
        return tensors if self._mask is None else tensors | {"mask": self._mask}

    def load_state(
        self, tensors: Mapping[str, torch.Tensor], responses: Sequence[tuple[int, Request, Response]]
    ) -> None:
        """Go on from a state.

        Args:
            tensors: Those of ``state``; others are left alone.
            responses: The ``unfinished`` ones then, with the requests that they answer.
        """
        self._keep([])
        for index, request, response in responses:
            row, versions, version = self._row(index, request), dict(response.versions), 0
            for at, (token, logprob) in enumerate(zip(response.ids.tolist(), response.logprobs.tolist(), strict=True)):
                version = versions.get(at, version)
                row.add(token, logprob, version)
            self._rows.append(row)
        if self._rows:
            count = sum(name.startswith("keys.") for name in tensors)
            self._cache = cache_of([[tensors[f"{name}.{i}"].to(self._device) for name in KV] for i in range(count)])
            self._mask = tensors["mask"].to(self._device) if "mask" in tensors else None


KV = ("keys", "values")
"""What a layer of a cache holds, by its names in a state."""


def layers(cache: Any) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return keys and values of each layer of a cache: (responses, heads, tokens, width)."""
    from transformers.cache_utils import DynamicLayer

    other = [type(layer).__name__ for layer in cache.layers if type(layer) is not DynamicLayer]
    if other:
        raise RolloutError(
            f"the model's cache has a layer {other[0]}, which is more than keys and values of every token"
        )
    return [(layer.keys, layer.values) for layer in cache.layers]


def cache_of(pairs: Sequence[Sequence[torch.Tensor]]) -> Any:
    """Return a cache of the keys and values of each layer."""
    from transformers import DynamicCache

    cache = DynamicCache()
    for layer, (keys, values) in enumerate(pairs):
        cache.update(keys, values, layer)
    return cache


def joined(*parts: tuple[Any, torch.Tensor | None]) -> tuple[Any, torch.Tensor]:
    """Return the cache and the mask of the responses of several, with the shorter ones padded before their tokens."""
    import torch

    inside = [layers(cache) for cache, _ in parts]
    masks = []
    for (_, mask), ((keys, _), *_) in zip(parts, inside, strict=True):
        alone = torch.ones(keys.shape[0], keys.shape[2], dtype=torch.long, device=keys.device)
        masks.append(alone if mask is None else mask)
    longest = max(int(mask.sum(-1).max()) for mask in masks)

    def fitted(tensor: torch.Tensor, dimension: int) -> torch.Tensor:
        # Below 0 it is cut: all that is there is padding.
        before = longest - tensor.shape[dimension]
        return torch.nn.functional.pad(tensor, (*[0, 0] * (tensor.dim() - 1 - dimension), before, 0))

    pairs = [
        [torch.cat([fitted(tensor, 2) for tensor in same]) for same in zip(*layer, strict=True)]
        for layer in zip(*inside, strict=True)
    ]
    return cache_of(pairs), torch.cat([fitted(mask, 1) for mask in masks])


def padded(prompts: Sequence[Sequence[int]], device: str) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return prompts with padding before the shorter ones, and 1 where they are and 0 before; None without any."""
    import torch

    longest = max(map(len, prompts))
    pads = [longest - len(prompt) for prompt in prompts]
    given = [[0] * pad + [*prompt] for pad, prompt in zip(pads, prompts, strict=True)]
    mask = [[0] * pad + [1] * (longest - pad) for pad in pads]
    return torch.tensor(given, device=device), torch.tensor(mask, device=device) if any(pads) else None


def with_one_more(mask: torch.Tensor | None) -> torch.Tensor | None:
    """Return a mask of places with one more, of a token."""
    import torch

    return mask if mask is None else torch.nn.functional.pad(mask, (0, 1), value=1)


def uniforms(seed: int, count: int) -> NDArray[np.float64]:
    """Return the numbers at which a response's tokens are drawn, on the CPU: they depend on no batch and no device."""
    import torch

    numbers: NDArray[np.float64] = torch.rand(
        count, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
    ).numpy()
    return numbers


class Row:
    """One response in the making."""

    def __init__(self, index: int, request: Request, ends: frozenset[int], stop: StopTexts | None) -> None:
        self.index, self.request = index, request
        self._ends, self._stop = ends, stop
        self.uniforms = uniforms(request.seed, request.max_new_tokens)
        self.ids: list[int] = []
        self._logprobs: list[float] = []
        self._versions: list[tuple[int, int]] = []

    def add(self, token: int, logprob: float, version: int) -> Response | None:
        """Take the next token, which weights of a version have drawn; returns the response when that was its last."""
        if not self._versions or self._versions[-1][1] != version:
            self._versions.append((len(self.ids), version))
        self.ids.append(token)
        self._logprobs.append(logprob)
        text = None
        ended = token in self._ends
        if self._stop is not None and not ended:
            text = self._stop.add(token)
            ended = text is not None
        if not ended and len(self.ids) < self.request.max_new_tokens:
            return None
        return self.response("stop" if ended else "length", text=text)

    def response(self, finish_reason: str, *, text: str | None = None, failure: str | None = None) -> Response:
        """Return the response as far as it is."""
        return Response(
            ids=np.array(self.ids, np.int32),
            logprobs=np.array(self._logprobs, np.float32),
            finish_reason=finish_reason,
            text=text,
            failure=failure,
            versions=tuple(self._versions),
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
        """Take the next token; returns the response's text up to the stop text, once there is one."""
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
        # Only texts that reach beyond what was there before.
        places = [(self._text.find(stop, max(0, before - len(stop) + 1)), stop) for stop in self._stop]
        ends = [(at + len(stop), at) for at, stop in places if at >= 0]
        # The earliest end, since one token may complete several; of those that end together the longest.
        return self._text[: min(ends)[1]] if ends else None

    def _decoded(self, ids: Sequence[int]) -> str:
        text: str = self._tokenizer.decode(ids, skip_special_tokens=True)
        return text
