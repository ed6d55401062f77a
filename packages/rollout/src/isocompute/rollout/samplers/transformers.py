"""A transformers sampler in this process, for machines where vLLM cannot run.

It decodes step by step: responses share a KV cache, join between two steps and leave when they finish. Tokens are
sampled with temperature, min-p, top-k and top-p, in vLLM's order and with the same meaning.
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
"""Longest prompt of a batch as a multiple of its shortest, which bounds the computation on padding."""
SAME = 1e-5
"""Largest rounding difference (nats) between scores with and without padding."""
REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


class TransformersSampler(LocalSampler):
    """Samples with a plain transformers model and its KV cache.

    Every response has its own random generator, so its tokens do not depend on the batch except for rounding: other
    sizes use other kernels. Prompts of different lengths are answered together, with padding, if the model gave the
    same scores with padding as without.

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
        # With several prompt lengths, each should fill a batch.
        self.holds = 4 * batch_size
        # Logits of a whole prompt would take prompt length × vocabulary floats per response.
        takes = inspect.signature(self._policy.forward).parameters
        self._last_only = {"logits_to_keep": 1} if "logits_to_keep" in takes else {}
        self._spread = SPREAD if {"attention_mask", "position_ids"} <= set(takes) and self._leaves_padding_out() else 1

    def _load(self, payload: Payload) -> None:
        import torch

        mine = self._policy.state_dict()
        with torch.no_grad():
            # A tied tensor may come under one or both of its names; names and shapes were checked.
            for name, tensor in payload.tensors(self.device):
                mine[name].copy_(tensor.detach())

    def _generate(self, requests: Sequence[Request], control: Continue) -> Finished:
        waiting: list[tuple[int, Request]] = []
        taken = 0
        while waiting or taken < len(requests):
            waiting += enumerate(requests[taken:], taken)
            taken = len(requests)
            # Shortest first: a follow-up is longer than its predecessor, and waits for others of its length.
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
        """Refuse a model whose responses cannot join a running batch."""
        if self._spread == 1:
            raise RolloutError(
                f"the model {self.model} in {self.dtype} gives other scores beside padding (by more than {SAME:g} "
                "nats), so that its responses cannot begin beside others; another model or dtype float32 must be given"
            )
        layers(self.forward(*padded([[0]], self.device), None)[1])

    def _leaves_padding_out(self) -> bool:
        """Return whether a prompt gets the same scores next to a longer one as alone, and so does its next token."""
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
            # A model may not support such a mask, or keep no cache; sampling reports that.
            return False

    def forward(self, given: torch.Tensor, mask: torch.Tensor | None, cache: Any) -> tuple[torch.Tensor, Any]:
        """Return the logits after the last given token, and the cache; the mask is 0 at padding of cache and tokens."""
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
    """Responses being decoded; each step samples the next token of all.

    Keys and values of earlier weights stay in the cache when the weights are replaced; the settings are those at the
    beginning.
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
        """Start responses to some requests, and sample one token of every response.

        Args:
            begun: Requests with their indices; a prompt is read once for all responses to it.

        Returns:
            The finished responses, which are removed, with their indices.
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
        """Add responses to new requests to the batch; return the logits after their prompts."""
        import torch

        prompts: dict[tuple[int, ...], int] = {}
        prompt_of = [prompts.setdefault(tuple(request.prompt_ids), len(prompts)) for _, request in begun]
        given, mask = padded(list(prompts), self._device)
        logits, cache = self._sampler.forward(given, mask, None)
        if len(prompts) < len(begun):
            chosen = torch.tensor(prompt_of, device=self._device)
            logits, mask = logits[chosen], mask if mask is None else mask[chosen]
            # Named for beam search; unlike batch_select_indices every layer has it, including linear attention.
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
        """Keep only the responses at some places."""
        import torch

        self._rows = [self._rows[place] for place in places]
        if not places:
            self._cache = self._mask = None
            return
        chosen = torch.tensor(places, device=self._device)
        self._mask = self._mask if self._mask is None else self._mask[chosen]
        self._cache.reorder_cache(chosen)

    def unfinished(self, failure: str | None = None) -> list[tuple[int, Response]]:
        """Return the unfinished responses, as aborted ones, with the indices of their requests."""
        return [(row.index, row.response("aborted", failure=failure)) for row in self._rows]

    def state(self) -> dict[str, torch.Tensor]:
        """Return the cache and the mask; with the requests and ``unfinished`` they form the state."""
        if not self._rows:
            return {}
        pairs = enumerate(layers(self._cache))
        tensors = {f"{name}.{i}": tensor for i, pair in pairs for name, tensor in zip(KV, pair, strict=True)}
        return tensors if self._mask is None else tensors | {"mask": self._mask}

    def load_state(
        self, tensors: Mapping[str, torch.Tensor], responses: Sequence[tuple[int, Request, Response]]
    ) -> None:
        """Continue from a state.

        Args:
            tensors: The tensors of ``state``; others are ignored.
            responses: The ``unfinished`` responses of that time, with their requests.
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
"""Contents of a cache layer, by their names in a state."""


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
    """Make a cache from the keys and values of each layer."""
    from transformers import DynamicCache

    cache = DynamicCache()
    for layer, (keys, values) in enumerate(pairs):
        cache.update(keys, values, layer)
    return cache


def joined(*parts: tuple[Any, torch.Tensor | None]) -> tuple[Any, torch.Tensor]:
    """Join the caches and masks of several batches; shorter responses are padded on the left."""
    import torch

    inside = [layers(cache) for cache, _ in parts]
    masks = []
    for (_, mask), ((keys, _), *_) in zip(parts, inside, strict=True):
        alone = torch.ones(keys.shape[0], keys.shape[2], dtype=torch.long, device=keys.device)
        masks.append(alone if mask is None else mask)
    longest = max(int(mask.sum(-1).max()) for mask in masks)

    def fitted(tensor: torch.Tensor, dimension: int) -> torch.Tensor:
        # If negative, this cuts padding off.
        before = longest - tensor.shape[dimension]
        return torch.nn.functional.pad(tensor, (*[0, 0] * (tensor.dim() - 1 - dimension), before, 0))

    pairs = [
        [torch.cat([fitted(tensor, 2) for tensor in same]) for same in zip(*layer, strict=True)]
        for layer in zip(*inside, strict=True)
    ]
    return cache_of(pairs), torch.cat([fitted(mask, 1) for mask in masks])


def padded(prompts: Sequence[Sequence[int]], device: str) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return prompts padded on the left, and a mask with 0 at padding and 1 elsewhere; no mask without padding."""
    import torch

    longest = max(map(len, prompts))
    pads = [longest - len(prompt) for prompt in prompts]
    given = [[0] * pad + [*prompt] for pad, prompt in zip(pads, prompts, strict=True)]
    mask = [[0] * pad + [1] * (longest - pad) for pad in pads]
    return torch.tensor(given, device=device), torch.tensor(mask, device=device) if any(pads) else None


def with_one_more(mask: torch.Tensor | None) -> torch.Tensor | None:
    """Extend a mask by one token."""
    import torch

    return mask if mask is None else torch.nn.functional.pad(mask, (0, 1), value=1)


def uniforms(seed: int, count: int) -> NDArray[np.float64]:
    """Return the random numbers for a response's tokens, on the CPU: they depend on no batch and no device."""
    import torch

    numbers: NDArray[np.float64] = torch.rand(
        count, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
    ).numpy()
    return numbers


class Row:
    """One response being decoded."""

    def __init__(self, index: int, request: Request, ends: frozenset[int], stop: StopTexts | None) -> None:
        self.index, self.request = index, request
        self._ends, self._stop = ends, stop
        self.uniforms = uniforms(request.seed, request.max_new_tokens)
        self.ids: list[int] = []
        self._logprobs: list[float] = []
        self._versions: list[tuple[int, int]] = []

    def add(self, token: int, logprob: float, version: int) -> Response | None:
        """Add the next token, sampled by a version of the weights; return the response if that was its last token."""
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
        """Return the response so far."""
        return Response(
            ids=np.array(self.ids, np.int32),
            logprobs=np.array(self._logprobs, np.float32),
            finish_reason=finish_reason,
            text=text,
            failure=failure,
            versions=tuple(self._versions),
        )


def distribution(logits: torch.Tensor, sampling: Sampling) -> torch.Tensor:
    """Return the log-probabilities of the distribution from which tokens are sampled.

    Args:
        logits: Shape ``(responses, vocabulary)``.
        sampling: The settings; at temperature 0 nothing is left out and nothing is tempered.

    Returns:
        Float32, the same shape, −∞ for tokens left out; the probabilities of each row sum to 1.
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
    """Sample one token per response by inverting the cumulative distribution at a uniform number.

    Args:
        scores: From ``distribution``, shape ``(responses, vocabulary)``.
        uniforms: From 0 to 1, shape ``(responses,)``, float64.
    """
    import torch

    cumulative = scores.double().exp().cumsum(-1)
    places = (uniforms.to(scores.device) * cumulative[:, -1])[:, None]
    return torch.searchsorted(cumulative, places, right=True).squeeze(-1).clamp(max=scores.shape[-1] - 1)


class StopTexts:
    """Decodes one response token by token, and finds the first of several stop texts in it."""

    def __init__(self, tokenizer: Any, stop: Sequence[str]) -> None:
        self._tokenizer, self._stop = tokenizer, stop
        self._ids: list[int] = []
        self._begin, self._end = 0, 0
        self._text = ""

    def add(self, token: int) -> str | None:
        """Add the next token; return the response's text up to the stop text, once there is one."""
        self._ids.append(token)
        # A token's text may depend on the previous one, so some tokens are decoded again with each new one.
        known = self._decoded(self._ids[self._begin : self._end])
        whole = self._decoded(self._ids[self._begin :])
        # A character exists only after its last byte.
        if len(whole) <= len(known) or whole.endswith(REPLACEMENT):
            return None
        new = whole[len(known) :]
        self._begin, self._end = self._end, len(self._ids)
        before = len(self._text)
        self._text += new
        # Search only for texts that extend beyond the previous text.
        places = [(self._text.find(stop, max(0, before - len(stop) + 1)), stop) for stop in self._stop]
        ends = [(at + len(stop), at) for at, stop in places if at >= 0]
        # The earliest end, since one token may complete several; of texts that end together the longest.
        return self._text[: min(ends)[1]] if ends else None

    def _decoded(self, ids: Sequence[int]) -> str:
        text: str = self._tokenizer.decode(ids, skip_special_tokens=True)
        return text
